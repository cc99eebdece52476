"""Step times on a GPU: events in the stream that nothing waits for, read when they are asked for or written down."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .recorder import Recorder, now

if TYPE_CHECKING:
    from .between import Step

_BLOCK = 32


class CudaClock:
    """Marks begin and end of steps in the current stream and writes when the GPU reached them."""

    def __init__(self, recorder: Recorder) -> None:
        import torch

        self._event: Any = torch.cuda.Event
        self._recorder = recorder
        self._origin = self._new()
        self._origin.record()
        self._open: list[tuple[str, int, Any]] = []
        self._waiting: list[tuple[str, int, Any]] = []
        self._free: list[Any] = []

    def _new(self) -> Any:
        return self._event(enable_timing=True)

    def mark(self, what: str, steps: int) -> None:
        """Record an event after this many steps; once a block is full, write down the one before it."""
        event = self._free.pop() if self._free else self._new()
        event.record()
        self._open.append((what, steps, event))
        if len(self._open) >= _BLOCK and (not self._waiting or self._waiting[-1][2].query()):
            self._write()
            self._open, self._waiting = [], self._open

    def _write(self) -> None:
        if not self._waiting:
            return
        origin = self._origin
        marks = [[what, steps, round(origin.elapsed_time(event) * 1e6)] for what, steps, event in self._waiting]
        self._recorder.line("gpu", marks=marks)
        self._free += [event for _, _, event in self._waiting]
        self._waiting = []

    def close(self) -> None:
        """At the end of the process waiting is free."""
        for _ in range(2):
            if self._waiting:
                self._waiting[-1][2].synchronize()
                self._write()
            self._open, self._waiting = [], self._open


class GpuTimes:
    """An event in the stream at every call of the model; nothing waits for them before the times are asked for."""

    def __init__(self) -> None:
        import torch

        self._new: Any = functools.partial(torch.cuda.Event, enable_timing=True)
        self._marks: list[tuple[int, Any]] = []
        self.restart()

    def restart(self) -> None:
        """The next step begins now."""
        self._marks.clear()
        self.mark()

    def mark(self) -> None:
        """Whatever was begun before is over as soon as the GPU gets here."""
        event = self._new()
        event.record()
        self._marks.append((now(), event))

    def timed(self, steps: list[Step]) -> list[Step]:
        """With the GPU's own times: a step lasts until the model is called for the next one, or until now."""
        self._marks[-1][1].synchronize()
        before, at, found = self._marks[0][1], 1, []
        for number, step in enumerate(steps):
            while self._marks[at][0] < step.end:
                at += 1
            event = self._marks[at][1]
            whole = step.whole and (number + 1 == len(steps) or steps[number + 1].whole)
            found.append(step._replace(nanoseconds=round(before.elapsed_time(event) * 1e6), whole=whole))
            before = event
        return found
