"""PyTorch's fully_shard: parameters, gradients and optimizer state in shards, gathered block by block."""

from collections.abc import Mapping

from scalescope.engines.base import SHARDING, Exchange, OverTorch, in_blocks
from scalescope.records.job import Knob, KnobValue
from scalescope.records.profile import ModelProfile


class Fsdp2(OverTorch):
    """Parameters gathered before a block's forward and backward, gradients reduce-scattered after its backward."""

    name = "fsdp2"
    title = "FSDP2"
    live_module = "scalescope.engines.fsdp2_live"
    trace_marks = ("FSDP::", "fsdp::")
    shards = True
    operations = SHARDING
    recorded_by = "reduce_scatter"
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
        OverTorch.backend_knob,
    )

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """A group for each block and one for the rest, as `fsdp2_live.wrap` shards a MODEL."""
        value = values.get("reshard_after_forward")
        reshards = None if value is None else bool(value)
        return Exchange(
            backend=self.backend(profile, values),
            messages=(),
            shards=in_blocks(profile.gradients, reshards),
            sharded=tuple(point for point in profile.sharded if point.reshards == reshards),
        )


FSDP2 = Fsdp2()
