"""Knobs: the settings of an engine, as one object that is simulated, run and tuned."""

from typing import Literal

import msgspec

KnobValue = bool | int | float | str


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of an engine: its type and range, its default, and when it may change."""

    name: str
    type: Literal["bool", "int", "float", "choice"]
    default: KnobValue | None
    """None: the engine decides when nothing is said."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    changes: Literal["live", "relaunch"] = "relaunch"
    """live: may change while training; relaunch: fixed when the processes start."""
    variable: str = ""
    """The environment variable that carries it, if the engine reads one."""
    meaning: str


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen values for the knobs of one engine; what is absent stays at its default."""

    engine: str
    values: dict[str, KnobValue] = {}
