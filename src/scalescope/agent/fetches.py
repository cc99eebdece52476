"""Batches that were fetched after an interruption, some of them ahead: they belong to the next step.

Scripts fetch all batches of an accumulation before the first forward, or one more than they need; others skip some, or
evaluate in between. Batches since the beginning of the pass count, unless there are more than usual.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from .recorder import now
from .steps import StepClock


class Fetch(NamedTuple):
    """One batch."""

    at: int
    wait: int
    samples: int


class Fetches:
    """What was fetched since the pass began, and what is known of the steps before."""

    def __init__(self) -> None:
        self.pending: list[Fetch] = []
        self.too_many = False  # Whether nobody can tell which of them the next step is made of
        self._usual = 0  # in one step
        self._trained_on: set[int] = set()  # datasets

    def in_step(self, iterator: Any, count: int) -> None:
        """A step that goes on fetched from this iterator, and `count` batches so far."""
        self._usual = max(self._usual, count)
        self._trained_on.add(_dataset(iterator))

    def is_for_evaluation(self, iterator: Any) -> bool:
        """Whether an iterator that is used while the model is not in training is none of the training's."""
        return bool(self._trained_on) and _dataset(iterator) not in self._trained_on

    def add(self, fetch: Fetch) -> None:
        """Take in a batch that may be the next step's."""
        self.pending.append(fetch)
        if len(self.pending) > self._usual + 1:
            self.too_many = True
            del self.pending[:-1]

    def clear(self) -> None:
        """They have been used, or were for something else."""
        self.pending.clear()
        self.too_many = False


def _dataset(iterator: Any) -> int:
    return id(getattr(iterator, "_dataset", None))


def watch_fetches(
    module: Any, clock: StepClock, pass_begins: Callable[[], None], fetched: Callable[[Any, Any, int, int], None]
) -> None:
    """See passes over loaders and, while the clock looks closely, what they give; `module` is torch's of loaders."""
    loader, iterator = module.DataLoader, module._BaseDataLoaderIter
    make_iterator, fetch = loader.__iter__, iterator.__next__

    @functools.wraps(make_iterator)
    def begin_pass(self_: Any) -> Any:
        pass_begins()
        return make_iterator(self_)

    @functools.wraps(fetch)
    def timed_fetch(self_: Any) -> Any:
        if not clock.looks_closely:
            return fetch(self_)
        started = now()
        batch = fetch(self_)
        fetched(self_, batch, started, now())
        return batch

    loader.__iter__, iterator.__next__ = begin_pass, timed_fetch
