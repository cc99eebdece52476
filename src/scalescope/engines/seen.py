"""Exchanges that scripts and traces show and no model is launched with: HSDP, FSDP1, collectives called by hand."""

from collections.abc import Mapping

from scalescope.engines.base import SHARDING, Engine, Exchange
from scalescope.engines.fsdp2 import FSDP2
from scalescope.errors import UsageError
from scalescope.records.job import KnobValue
from scalescope.records.profile import ModelProfile


class Seen(Engine):
    """An exchange that is named, measured and explained, but not modelled."""

    live_module = "scalescope.engines.plain_live"
    is_surveyed = False

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """Refuse: nothing states which messages a step sends."""
        raise UsageError(f"{self.title} cannot be modelled yet: use `scalescope measure` and `scalescope explain`")


class Hsdp(Seen):
    """fully_shard with a mesh of two dimensions: shards in one group, copies of them in the other."""

    name = "hsdp"
    title = "HSDP"
    trace_marks = FSDP2.trace_marks
    operations = (*SHARDING, "allreduce")


class Replicated(Seen):
    """FSDP2's replicate: whole parameters on every rank, gradients all-reduced block by block."""

    name = "replicate"
    title = "replicate"
    trace_marks = FSDP2.trace_marks
    operations = ("allreduce",)


class Fsdp1(Seen):
    """torch.distributed.fsdp.FullyShardedDataParallel."""

    name = "fsdp"
    title = "FSDP"
    trace_marks = ("FullyShardedDataParallel.",)
    operations = SHARDING
    not_recorded = "when FSDP1 needs what it gathers is not recorded: its collectives are taken to block compute"


class Collectives(Seen):
    """Collectives of torch.distributed that no wrapper called: by the script, by an optimizer, by another library."""

    name = "collectives"
    title = "Collectives"


HSDP, REPLICATED, FSDP1, COLLECTIVES = Hsdp(), Replicated(), Fsdp1(), Collectives()
