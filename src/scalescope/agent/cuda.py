"""Step times on a GPU: events in the stream, a few hundred a second at most, read later; nothing waits for them."""

from __future__ import annotations

from typing import Any

from .recorder import Recorder

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
        """Record an event after so many steps; once a block is full, write down the one before it."""
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
