"""PyTorch's fully_shard: parameters, gradients and optimizer state in shards, gathered block by block."""

from collections.abc import Mapping

from scalescope.engines.base import SHARDING, Engine, Exchange, in_blocks
from scalescope.records.job import Knob, KnobValue
from scalescope.records.profile import ModelProfile


class Fsdp2(Engine):
    """Parameters gathered before a block's forward and backward, gradients reduce-scattered after its backward."""

    name = "fsdp2"
    title = "FSDP2"
    live_module = "scalescope.engines.fsdp2_live"
    trace_marks = ("FSDP::", "fsdp::")
    shards = True
    operations = SHARDING
    sets_in_scripts = False
    is_surveyed = False  # A survey sees gradients, not which of them make a block
    fewer_exchanges = (
        "accumulate gradients over 2 batches, after model.set_requires_gradient_sync(False) for the first of them"
    )
    colour = "#882255"
    knobs: tuple[Knob, ...] = (
        Knob(
            name="reshard_after_forward",
            is_argument=True,
            type="bool",
            default=None,
            meaning="free a block's parameters after its forward and gather them again for its backward: less memory, "
            "more traffic (unset: every block does, the root does not)",
        ),
        Knob(
            name="backend",
            type="choice",
            default=None,
            choices=("gloo", "nccl"),
            meaning="communication backend (unset: nccl on GPUs, gloo otherwise)",
        ),
    )

    def environment(self, values: Mapping[str, KnobValue], *, named_hosts: bool) -> dict[str, str]:
        """On one machine the ranks talk over loopback only."""
        loopback = {} if named_hosts else {"GLOO_SOCKET_IFNAME": "lo"}
        return loopback | super().environment(values, named_hosts=named_hosts)

    def launcher(self, values: Mapping[str, KnobValue]) -> str:
        """PyTorch's own."""
        return "torchrun"

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """A group for each block and one for the rest, as `fsdp2_live.wrap` shards a MODEL."""
        reshards = values.get("reshard_after_forward")
        return Exchange(
            backend=str(values.get("backend") or ("gloo" if profile.device == "cpu" else "nccl")),
            messages=(),
            shards=in_blocks(profile.gradients, None if reshards is None else bool(reshards)),
        )

    def values_for(self, moved_by: str) -> dict[str, KnobValue]:
        """The backend of its process group."""
        return {"backend": moved_by}


FSDP2 = Fsdp2()
