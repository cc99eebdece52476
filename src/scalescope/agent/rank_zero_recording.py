"""Records the collectives of a step that runs as rank 0 of N: numbers alone, never tensors or works.

A moment is a time of the host's monotonic clock; on a GPU it is an event in the stream that computes as well, so that
it tells where in its work a collective was issued and needed, not when the CPU, which runs ahead, put it there.
"""

from __future__ import annotations

import threading
from itertools import accumulate
from typing import Any, NamedTuple

from .recorder import now

_NEVER = -1


class Group(NamedTuple):
    """A process group of the script."""

    name: str
    size: int
    stride: int  # Distance between its ranks; 0: they are not evenly apart


class _Span(NamedTuple):
    """A phase of the step, or of a part of it that another phase interrupts."""

    phase: str
    began: int  # Index of a moment
    ended: int


class Recording:
    """The recorder of one process; it is off but for the steps that are recorded."""

    def __init__(self) -> None:
        self.is_on = False
        self.groups: list[Group] = []
        self._stream: Any = None  # Of a GPU, which computes
        self._event: Any = None
        self._free: list[Any] = []
        self._first = 0  # Number of the first collective of this step: works of an earlier one may still be waited for
        self._issued: list[list[Any]] = []
        self._clear()

    def _clear(self) -> None:
        self._first += len(self._issued)
        # Per collective: operation, bytes, dtype, group, phase, module, prefetched, moments issued, and from which its
        # result was made up, and until which (0: there was nothing to make up), needed.
        self._issued = []
        self._moments: list[int] = []
        self._events: list[Any] = []
        self._lock = threading.Lock()  # A backward of the GPU runs in a thread of its own
        self._spans: list[_Span] = []
        self._open: list[tuple[str, int]] = []
        self._until_backward_ends: list[int] = []
        self._gathers: dict[int, int] = {}
        self._owned: set[int] = set()

    # Steps

    def use_gpu(self) -> None:
        """The model computes on a GPU: from now on moments are events, too."""
        import torch

        self._event = torch.cuda.Event

    def begin(self) -> None:
        """The next step is recorded, from here on."""
        self._clear()
        if self._event is not None:
            import torch

            self._stream = torch.cuda.current_stream()
        self._moment()
        self.is_on = True

    def end(self) -> None:
        """The step is over."""
        last = self._moment()
        self.is_on = False
        while self._open:
            self._close(last)

    def summary(self, origin: int = 0) -> dict[str, Any]:
        """Seconds of the parts of the step that ended last, and its collectives in the order of issue.

        Args:
            origin: When it began, by the host's clock, if that was not where recording began: after a pause.
        """
        last = len(self._moments) - 1
        self._find_forward()
        at_s = self._seconds()
        if origin and not self._events:  # the clock of a GPU is not the host's
            pause_s = (origin - self._moments[0]) * 1e-9
            at_s = [max(each - pause_s, 0.0) for each in at_s]
        self._free += self._events
        filled = [0.0] * len(at_s)  # By moment, what was made up before it in this step
        for row in self._issued:
            if row[9]:
                filled[row[9]] += at_s[row[9]] - at_s[row[8]]
        filled = list(accumulate(filled))
        parts = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
        for span in self._spans:
            parts[span.phase] += at_s[span.ended] - at_s[span.began] - filled[span.ended] + filled[span.began]
        messages = [
            [
                *row[:7],
                at_s[row[7]] - filled[row[7]],
                None if row[10] == _NEVER else at_s[row[10]] - filled[row[10]],
                at_s[row[9]] - at_s[row[8]] if row[9] else 0.0,
            ]
            for row in self._issued
        ]
        step_s, fill_s = at_s[last], filled[last]
        self._clear()
        return {"step_s": step_s, "fill_s": fill_s, **parts, "messages": messages}

    def _find_forward(self) -> None:
        """Take all before the first backward as forward if the model hides its calls, as one that compiled itself."""
        first = min((span.began for span in self._spans if span.phase == "backward"), default=0)
        if first and not any(span.phase == "forward" for span in self._spans):
            self._spans.append(_Span("forward", 0, first))
            for row in self._issued:
                row[4] = "forward" if row[4] == "other" and row[7] < first else row[4]

    def _seconds(self) -> list[float]:
        """Every moment in seconds after the first; those of one thread were taken in the order of time."""
        if not self._events:
            return [(at - self._moments[0]) * 1e-9 for at in self._moments]
        import torch

        torch.cuda.synchronize()  # a fill may be in another stream than the one that computes
        first = self._events[0]
        return [0.0, *(first.elapsed_time(each) * 1e-3 for each in self._events[1:])]

    def _moment(self, *, here: bool = False) -> int:
        """Keep this moment; its index. `here`: of the stream that works now, not of the one that computes."""
        with self._lock:
            at = len(self._moments)
            self._moments.append(now())
            if self._event is not None:
                event = self._free.pop() if self._free else self._event(enable_timing=True)
                event.record() if here else event.record(self._stream)
                self._events.append(event)
        return at

    # Phases

    def enter(self, phase: str) -> None:
        """A phase begins, maybe inside another one: LBFGS calls the model in its step."""
        if self.is_on:
            at = self._moment()
            if self._open:
                outer, began = self._open[-1]
                self._spans.append(_Span(outer, began, at))
            self._open.append((phase, at))

    def leave(self, phase: str) -> None:
        """The phase that began last is over."""
        if self.is_on and any(each == phase for each, _ in self._open):
            at = self._moment()
            if phase == "backward":
                self._backward_is_over(at)
            while self._close(at) != phase:  # one that raised was not left
                pass

    def _close(self, at: int) -> str:
        phase, began = self._open.pop()
        self._spans.append(_Span(phase, began, at))
        if self._open:
            self._open[-1] = (self._open[-1][0], at)
        return phase

    def _backward_is_over(self, at: int) -> None:
        for number in self._until_backward_ends:
            row = self._issued[number - self._first]
            row[10] = at if row[10] == _NEVER else row[10]
        self._until_backward_ends.clear()

    # Collectives

    def add_group(self, name: str, ranks: list[int]) -> int:
        """A group of the script; its index."""
        steps = {later - earlier for earlier, later in zip(ranks, ranks[1:])}  # noqa: B905, RUF007 - Python 3.9
        stride = steps.pop() if len(steps) == 1 else int(len(ranks) < 2)
        self.groups.append(Group(name, len(ranks), stride))
        return len(self.groups) - 1

    def issue(self, operation: str, size: int, dtype: str, group: int, module: str, prefetched: bool) -> int:
        """A collective was called; its number."""
        phase = self._open[-1][0] if self._open else "other"
        at = self._moment()
        with self._lock:
            self._issued.append([operation, size, dtype, group, phase, module, prefetched, at, 0, 0, _NEVER])
            return self._first + len(self._issued) - 1

    def fill_begins(self) -> int:
        """Mark the moment at which a result begins to be made up; its index."""
        return self._moment(here=True)

    def filled(self, number: int, began: int) -> None:
        """Record that the result of a collective was made up between the moment `began` and now."""
        self._issued[number - self._first][8:10] = [began, self._moment(here=True)]

    def wait(self, number: int) -> None:
        """Somebody waits for it; an engine says itself when it needs those that it owns."""
        if self._is_of_this_step(number) and number not in self._owned:
            self._need(number)

    def _is_of_this_step(self, number: int) -> bool:
        return self.is_on and 0 <= number - self._first < len(self._issued)

    def _need(self, number: int) -> None:
        row = self._issued[number - self._first]
        if row[10] == _NEVER:
            row[10] = self._moment()

    def needed_after_backward(self, number: int) -> None:
        """Mark a collective for which only the end of backward waits, as for a bucket of DDP."""
        if self._is_of_this_step(number):
            self._owned.add(number)
            self._until_backward_ends.append(number)

    def own_gather(self, owner: int, number: int) -> None:
        """A gather for a group of parameters, which says itself when it needs them."""
        if self._is_of_this_step(number):
            self._owned.add(number)
            self._gathers[owner] = number

    def gather_is_needed(self, owner: int) -> None:
        """The parameters of this group are needed now."""
        number = self._gathers.pop(owner, _NEVER)
        if self._is_of_this_step(number):
            self._need(number)

    def backward_is_over(self) -> None:
        """Whatever waits for the end of backward is needed now."""
        if self.is_on and self._until_backward_ends:
            self._backward_is_over(self._moment())
