"""No engine: one process trains alone. The baseline of every speedup."""

from collections.abc import Mapping

from scalescope.engines.base import Engine, Exchange
from scalescope.records.job import NO_ENGINE, KnobValue
from scalescope.records.profile import ModelProfile


class Plain(Engine):
    """Training without an exchange of gradients."""

    name = NO_ENGINE
    title = "no engine"
    colour = "#808080"
    why_not_tuned = "exchanges nothing"
    live_module = "scalescope.engines.plain_live"

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """Return an exchange without messages."""
        return Exchange(backend=NO_ENGINE, messages=())


PLAIN = Plain()
