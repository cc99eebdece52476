"""PyTorch's DistributedDataParallel: its knobs and what its ranks need around them."""

import json
from collections.abc import Mapping
from typing import Literal

from scalescope.engines.base import MIB, Exchange, OverTorch, in_buckets, short_value
from scalescope.records.job import Knob, KnobValue
from scalescope.records.profile import ModelProfile

# While bucket_cap_mb is unset; set, it counts for the first bucket too, unless first_bucket_mb is set.
_FIRST_MIB, _CAP_MIB = 1.0, 25.0
_ROUTES: dict[KnobValue | None, Literal["ring", "tree"]] = {"Ring": "ring", "Tree": "tree"}


class Ddp(OverTorch):
    """Gradients in buckets, all-reduced while backward runs."""

    name = "ddp"
    title = "DDP"
    live_module = "scalescope.engines.ddp_live"
    trace_marks = (
        "DistributedDataParallel.forward",
        "torch::distributed::reducer::",
        "torch.distributed.ddp.reducer::",
    )
    operations = ("allreduce", "broadcast")
    fewer_exchanges = "accumulate gradients over 2 batches under model.no_sync()"
    message_size = "DistributedDataParallel(..., bucket_cap_mb={mib:g})"
    no_broadcasts = (
        "DistributedDataParallel(..., broadcast_buffers=False): then every rank keeps its own BatchNorm "
        "statistics, which changes evaluation slightly; or nn.SyncBatchNorm, or fewer buffers."
    )
    colour = "#0072b2"
    knobs: tuple[Knob, ...] = (
        Knob(
            name="bucket_cap_mb",
            is_argument=True,
            type="float",
            default=None,
            unset=_CAP_MIB,
            tried=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 50.0, 100.0),
            low=0.001,
            high=4096,
            unit="MiB",
            changes="live",
            meaning="a bucket is sent once it holds this much (unset: 1 MiB for the first, 25 MiB for the others)",
        ),
        Knob(
            name="first_bucket_mb",
            type="float",
            default=None,
            unset=_FIRST_MIB,
            tried=(0.0625, 0.25, 1.0),
            low=0.001,
            high=4096,
            unit="MiB",
            changes="live",
            meaning="the first bucket is sent once it holds this much: a small one starts the exchange early "
            "(unset: 1 MiB, or bucket_cap_mb where that is set)",
        ),
        Knob(
            name="gradient_as_bucket_view",
            is_argument=True,
            type="bool",
            default=False,
            tried=(False, True),
            on_request=True,  # it keeps gradients in a buffer of its own, and detaches them in place
            changes="live",
            meaning="gradients live inside the buckets: no copies, less memory",
        ),
        Knob(
            name="hierarchical_allreduce",
            type="bool",
            default=False,
            tried=(False, True),
            changes="live",
            meaning="sum inside each host, then between hosts, then share inside: less traffic between hosts",
        ),
        Knob(
            name="static_graph",
            is_argument=True,
            type="bool",
            default=False,
            tried=(False, True),
            meaning="promises that every step uses the same parameters",
        ),
        Knob(
            name="find_unused_parameters",
            is_argument=True,
            type="bool",
            default=False,
            modelled=False,
            meaning="search the graph each step for parameters without a gradient",
        ),
        OverTorch.backend_knob,
        Knob(
            name="nccl_algo",
            type="choice",
            default=None,
            tried=(None, "Ring", "Tree"),
            choices=("Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree"),
            variable="NCCL_ALGO",
            modelled=tuple(map(str, _ROUTES)),
            meaning="the route of NCCL's messages: rings for bandwidth, trees for latency (unset: NCCL decides)",
        ),
        Knob(
            name="nccl_proto",
            type="choice",
            default=None,
            tried=(None, "LL", "LL128", "Simple"),
            choices=("LL", "LL128", "Simple"),
            variable="NCCL_PROTO",
            meaning="how NCCL hands data over: LL and LL128 for small messages, Simple for large (unset: NCCL decides)",
        ),
        Knob(
            name="nccl_max_nchannels",
            type="int",
            default=None,
            tried=(None, 2, 4, 8, 16),
            low=1,
            high=64,
            variable="NCCL_MAX_NCHANNELS",
            modelled=False,
            meaning="how many blocks of the GPU NCCL may take: more move more, fewer leave more to compute "
            "(unset: NCCL decides)",
        ),
    )

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """Buckets in the order in which gradients get ready, as DDP rebuilds them after its first step."""
        cap, first = values.get("bucket_cap_mb"), values.get("first_bucket_mb")
        cap_mib = _CAP_MIB if cap is None else float(cap)
        first_mib = float(first) if first is not None else _FIRST_MIB if cap is None else cap_mib
        return Exchange(
            backend=self.backend(profile, values),
            messages=in_buckets(profile.gradients, first_mib * MIB, cap_mib * MIB),
            broadcasts=profile.buffers_bytes,
            broadcast_tensors=profile.buffers,
            copies=not values.get("gradient_as_bucket_view", False),
            algorithm=_ROUTES.get(values.get("nccl_algo"), "auto"),
            protocol=protocol if isinstance(protocol := values.get("nccl_proto"), str) else None,
            by_hosts=bool(values.get("hierarchical_allreduce", False)),
        )

    def how_to_use(self, values: Mapping[str, KnobValue], path: str) -> list[str]:
        """Arguments of the wrapper; what has none is applied to the wrapped model."""
        arguments = [f"{name}={short_value(values[name])!r}" for name in self.arguments if name in values]
        cap, first = values.get("bucket_cap_mb"), values.get("first_bucket_mb")
        smaller_first = first is not None and (cap is None or float(first) < float(cap))
        lines = []
        if "backend" in values:
            lines.append(f"  torch.distributed.init_process_group({values['backend']!r})")
        if arguments:
            lines.append(f"  model = DistributedDataParallel(model, {', '.join(arguments)})")
        if smaller_first or values.get("hierarchical_allreduce"):
            lines.append(f"  scalescope.apply_tuned(model, {json.dumps(path)})  # the wrapped model")
        return ["In your script:", *lines] if lines else []


DDP = Ddp()
