"""PyTorch's DistributedDataParallel: its knobs and what its ranks need around them."""

from collections.abc import Mapping

from scalescope.records.knobs import Knob, KnobValue


class Ddp:
    """Gradients in buckets, all-reduced while backward goes on."""

    name = "ddp"
    live_module = "scalescope.engines.ddp_live"
    knobs: tuple[Knob, ...] = (
        Knob(
            name="bucket_cap_mb",
            type="float",
            default=None,
            low=0.001,
            high=4096,
            unit="MiB",
            changes="live",
            meaning="a bucket is sent once it holds this much (unset: 1 MiB for the first, 25 MiB for the others)",
        ),
        Knob(
            name="gradient_as_bucket_view",
            type="bool",
            default=False,
            changes="live",
            meaning="gradients live inside the buckets: no copies, less memory",
        ),
        Knob(
            name="static_graph",
            type="bool",
            default=False,
            meaning="promises that every step uses the same parameters",
        ),
        Knob(
            name="find_unused_parameters",
            type="bool",
            default=False,
            meaning="search the graph each step for parameters without a gradient",
        ),
        Knob(
            name="backend",
            type="choice",
            default=None,
            choices=("gloo", "nccl"),
            meaning="who moves the bytes (unset: nccl on GPUs, gloo otherwise)",
        ),
    )

    def environment(self, values: Mapping[str, KnobValue], *, named_hosts: bool) -> dict[str, str]:
        """On one machine the ranks talk over loopback only."""
        return {} if named_hosts else {"GLOO_SOCKET_IFNAME": "lo"}

    def launcher(self, values: Mapping[str, KnobValue]) -> str:
        """PyTorch's own."""
        return "torchrun"


DDP = Ddp()
