"""No engine: one process trains alone. The baseline of every speedup."""

from collections.abc import Mapping

from scalescope.engines.base import Exchange
from scalescope.records.job import Knob, KnobValue
from scalescope.records.profile import ModelProfile


class Plain:
    """Training without an exchange of gradients."""

    name = "none"
    knobs: tuple[Knob, ...] = ()
    live_module = "scalescope.engines.plain_live"
    polls = False

    def environment(self, values: Mapping[str, KnobValue], *, named_hosts: bool) -> dict[str, str]:
        """Nothing is needed."""
        return {}

    def launcher(self, values: Mapping[str, KnobValue]) -> str:
        """The one that all others are compared with."""
        return "torchrun"

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """Nothing."""
        return Exchange(backend="none", messages=())


PLAIN = Plain()
