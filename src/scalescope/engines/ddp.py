"""PyTorch's DistributedDataParallel: its knobs and what its ranks need around them."""

from collections.abc import Mapping

from scalescope.engines.exchange import MIB, Exchange, in_buckets
from scalescope.records.knobs import Knob, KnobValue
from scalescope.records.profile import ModelProfile

_FIRST_MIB, _CAP_MIB = 1, 25
"""While bucket_cap_mb is unset; set, it holds for the first bucket too."""


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

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """Buckets in the order in which gradients get ready, as DDP rebuilds them after its first step."""
        cap = values.get("bucket_cap_mb")
        first_mib, cap_mib = (float(cap), float(cap)) if cap is not None else (_FIRST_MIB, _CAP_MIB)
        return Exchange(
            backend=str(values.get("backend") or ("gloo" if profile.device == "cpu" else "nccl")),
            messages=in_buckets(profile.gradients, first_mib * MIB, cap_mib * MIB),
            broadcasts=profile.buffers_bytes,
            copies=not values.get("gradient_as_bucket_view", False),
        )


DDP = Ddp()
