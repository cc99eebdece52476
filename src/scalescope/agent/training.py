"""The contract of what a search switches in a rank; the live half of every engine has its own side of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Training(Protocol):
    """A training whose knobs can be switched in this rank: one kind per engine."""

    engine: str
    made: str  # What the script did to be tuned
    model: Any  # None: nobody has seen it
    hierarchical: Any  # What has an `allreduce` by hosts, or None

    @property
    def is_first(self) -> bool:
        """True on rank 0."""

    def about(self) -> dict[str, Any]:
        """For the first line to the search: world_size, backend, device."""

    def meet(self) -> tuple[Any, str]:
        """The group in which ranks agree, or why there is none: alike on every rank."""

    def refusal(self) -> str:
        """Why knobs cannot change, as far as this rank knows; empty: they can."""

    def prepare(self, group: Any) -> dict[str, Any]:
        """Prepare switches; returns what the search wants to know: current values, fixed knobs and so on."""

    def is_busy(self) -> bool:
        """True while the script is in the middle of something: the switch has to wait for another step."""

    def switch(self, values: dict[str, Any], variables: dict[str, str], group: Any) -> str:
        """On every rank: to these values, changed from those at first; or to those at first, and why."""

    def fixed_by(self, values: dict[str, Any], problem: str) -> dict[str, str]:
        """Knobs that a problem with these values shows to be unchangeable, and why."""

    def restore(self, group: Any) -> None:
        """On every rank: the knobs as they were at first."""

    def finish(self) -> None:
        """The search is over in this rank: what only switches need can go."""

    def watch_leaving(self, client: Any) -> Callable[[], None]:
        """See when ranks stop to make steps together; returns how to see it no more."""

    @property
    def cannot_train(self) -> bool:
        """True when a switch went so wrong that there is no exchange any more."""
