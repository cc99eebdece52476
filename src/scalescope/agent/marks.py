"""Times of the parts of every step (input, forward, backward, waiting for gradients, optimizer): one line per step."""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any

from .recorder import LineFile, now

FORMAT_VERSION = 1
_WRITE_EVERY_NS = 20_000_000
_PARTS = ("input", "forward", "backward", "synchronize", "optimizer")


class Marks:
    """Spans of the step that runs, and the file that they go to when it ends."""

    def __init__(self, folder: str, *, from_start: bool = False) -> None:
        self._folder, self._from_start = folder, from_start
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self._file: LineFile | None = None
        self._lines: list[str] = []
        self._write_at = 0
        self._forward_began = 0
        self._spans: dict[str, list[list[int]]] = {part: [] for part in _PARTS}

    def open(self, **identity: Any) -> None:
        """From here on lines are written; the first says whose they are and what the clock showed when."""
        clock, wall = _clocks()
        path = os.path.join(self._folder, f"marks-rank{identity['rank']}.jsonl")  # noqa: PTH118 - cheap
        self._file = LineFile(path, "marks", os.O_TRUNC)
        self._lines.append(
            json.dumps({"kind": "hello", "version": FORMAT_VERSION, "t": clock, "wall_ns": wall, **identity})
        )
        self.flush()

    @property
    def _is_open(self) -> bool:
        return self._file is not None and self._file.is_open

    @property
    def _takes_spans(self) -> bool:
        return self._from_start if self._file is None else self._file.is_open

    def timed(self, part: str, original: Any) -> Any:
        """The function, with the time of every call noted as this part of a step."""

        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            if not self._takes_spans:
                return original(*arguments, **options)
            began = now()
            try:
                return original(*arguments, **options)
            finally:
                self._spans[part].append([began, now()])

        return call

    def shift(self, by: int) -> None:
        """Move what was noted so far behind a pause of `by` nanoseconds, which belongs to no step."""
        for spans in self._spans.values():
            spans[:] = [[began + by, ended + by] for began, ended in spans]

    def forward_begins(self, module: Any, arguments: Any, options: Any) -> None:
        """The model is called."""
        self._forward_began = now() if module.training else 0

    def forward_ends(self, module: Any, arguments: Any, result: Any) -> None:
        """The model returns."""
        if self._forward_began and self._is_open:
            self._spans["forward"].append([self._forward_began, now()])
        self._forward_began = 0

    def optimizer(self, began: int, ended: int) -> None:
        """An optimizer stepped; what its closure did is no part of that."""
        if not self._is_open:
            return
        parts = ("input", "forward", "backward")
        inside = [(span[0], span[1], part) for part in parts for span in self._spans[part]]
        for first, last, part in sorted(inside):
            if last > began:
                if first > began and part != "backward":  # what lies before a backward is the loss
                    self._spans["optimizer"].append([began, first])
                began = last
        if ended > began:
            self._spans["optimizer"].append([began, ended])

    def step(self, number: int, began: int, ended: int, *, traced: bool) -> None:
        """The step is over: its line, written at once or with those of the next 20 ms."""
        if not self._is_open:
            return
        parts = "".join(f',"{part}":{spans}' for part, spans in self._spans.items() if spans)
        self._lines.append(f'{{"kind":"step","n":{number},"s":{began},"t":{ended},"traced":{int(traced)}{parts}}}')
        for spans in self._spans.values():
            spans.clear()
        if ended > self._write_at:
            self.flush()
            self._write_at = ended + _WRITE_EVERY_NS

    def flush(self) -> None:
        """Hand all lines to the operating system."""
        if self._file is not None and self._lines:
            self._file.write("\n".join([*self._lines, ""]))
            self._lines.clear()

    def close(self) -> None:
        """The process ends."""
        self.flush()
        if self._file is not None:
            self._file.close()


def _clocks() -> tuple[int, int]:
    """One moment on our clock and on the wall's; of several readings the one that took the least time."""
    readings = [(now(), time.time_ns(), now()) for _ in range(7)]
    before, wall, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return (before + after) // 2, wall
