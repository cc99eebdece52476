"""Exchanges that scripts and traces show and that no model is launched with: FSDP1, and collectives called by hand."""

from collections.abc import Mapping

from scalescope.engines.base import Engine, Exchange
from scalescope.errors import UsageError
from scalescope.records.job import KnobValue
from scalescope.records.profile import ModelProfile


class Seen(Engine):
    """An exchange that is named, measured and explained, but not modelled."""

    live_module = "scalescope.engines.plain_live"

    def launcher(self, values: Mapping[str, KnobValue]) -> str:
        """The one of torch's process groups."""
        return "torchrun"

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """Refuse: nothing states which messages a step sends."""
        raise UsageError(f"{self.title} cannot be modelled yet: use `scalescope measure` and `scalescope explain`")

    def values_for(self, moved_by: str) -> dict[str, KnobValue]:
        """Return no knobs: it has none here."""
        return {}


class Fsdp1(Seen):
    """torch.distributed.fsdp.FullyShardedDataParallel."""

    name = "fsdp"
    title = "FSDP"
    trace_marks = ("FullyShardedDataParallel.",)
    operations = ("allgather", "reducescatter")


class Collectives(Seen):
    """Collectives of torch.distributed that no wrapper called: by the script, by an optimizer, by another library."""

    name = "collectives"
    title = "Collectives"


FSDP1, COLLECTIVES = Fsdp1(), Collectives()
