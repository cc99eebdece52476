"""What every engine states about itself, and how its knobs are read from people."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Protocol

from scalescope.engines.exchange import Exchange
from scalescope.errors import UsageError
from scalescope.records.knobs import Knob, Knobs, KnobValue
from scalescope.records.profile import ModelProfile

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Engine(Protocol):
    """A way to exchange gradients."""

    name: str
    knobs: tuple[Knob, ...]
    live_module: str
    """The module that wraps a model inside a rank; it imports torch or horovod."""
    polls: bool
    """Whether its own threads use a core while there is nothing to send."""

    def environment(self, values: Mapping[str, KnobValue], *, named_hosts: bool) -> dict[str, str]:
        """The variables its ranks need, for these knob values."""

    def launcher(self, values: Mapping[str, KnobValue]) -> str:
        """The launcher that fits when the user names none."""

    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """What a step of this model exchanges under these knob values."""


def parse_knobs(engine: Engine, assignments: Sequence[str]) -> Knobs:
    """`name=value` texts as checked knobs of one engine."""
    known = {knob.name: knob for knob in engine.knobs}
    values: dict[str, KnobValue] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"--knob takes name=value, not '{assignment}'")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or sorted(known)
            nothing = f"engine {engine.name} has no knobs"
            raise UsageError(f"{engine.name} has no knob '{name}': {', '.join(near) or nothing}")
        values[name] = parse_value(known[name], text.strip())
    return Knobs(engine=engine.name, values=values)


def parse_value(knob: Knob, text: str) -> KnobValue:
    """One value, checked against the knob's type and range."""
    expected = describe_range(knob)
    try:
        if knob.type == "bool":
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text.lower()]
        if knob.type == "choice":
            return {choice: choice for choice in knob.choices}[text]
        number = int(text) if knob.type == "int" else float(text)
    except (KeyError, ValueError):
        raise UsageError(f"knob {knob.name} takes {expected}, not '{text}'") from None
    if not (knob.low is None or number >= knob.low) or not (knob.high is None or number <= knob.high):
        raise UsageError(f"knob {knob.name} takes {expected}, not {text}")
    return number


def describe_range(knob: Knob) -> str:
    """What a knob accepts, in words."""
    if knob.type == "bool":
        return "true or false"
    if knob.type == "choice":
        return " or ".join(knob.choices)
    kind = "a whole number" if knob.type == "int" else "a number"
    unit = f" {knob.unit}" if knob.unit else ""
    if knob.high is None:
        return f"{kind} from {knob.low:g}{unit}" if knob.low is not None else kind
    return f"{kind} from {knob.low:g} to {knob.high:g}{unit}"
