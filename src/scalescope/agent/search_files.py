"""The files by which rank 0 and the search talk.

The files lie in the folder of the launch. The search writes one file per directive, `directive-00000.json` and so on;
rank 0 appends lines to `reports.jsonl`. scalescope.tuner.controller_files is the other end and takes the names from
here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from .recorder import now

FORMAT_VERSION = 1
DIRECTIVE, REPORTS = "directive-{:05d}.json", "reports.jsonl"
PATIENCE_S = 120.0  # A search that does not answer for this long has timed out


class FileController:
    """The search at the other end of the files in a folder.

    A search that is gone, or that can be told nothing any more, is one that wants to let go.
    """

    def __init__(
        self, folder: str, is_alive: Callable[[], bool] = lambda: True, patience_s: float = PATIENCE_S
    ) -> None:
        self._folder, self._is_alive, self._patience_ns = folder, is_alive, int(patience_s * 1e9)
        self._next = self._waits_since = 0
        self._problem = ""

    def ask(self) -> dict[str, Any] | None:
        """The directive in the next file; None while it is not there."""
        if self._problem:
            return let_go(self._problem)
        alive = self._is_alive()  # before the look: the last thing that a search writes still counts
        try:
            with open(os.path.join(self._folder, DIRECTIVE.format(self._next))) as file:  # noqa: PTH118 - cheap
                directive: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            self._waits_since = self._waits_since or now()
            if not alive:
                return let_go("the process of the search has ended")
            if now() - self._waits_since > self._patience_ns:
                return let_go(f"the search has not answered for {self._patience_ns * 1e-9:.0f} s")
            return None
        except (OSError, ValueError) as problem:
            return let_go(f"what the search wants next cannot be read: {problem}")
        self._next += 1
        self._waits_since = 0
        return directive

    def tell(self, line: dict[str, Any]) -> None:
        """Append a line at once."""
        try:
            with open(os.path.join(self._folder, REPORTS), "a") as file:  # noqa: PTH118
                file.write(json.dumps(line) + "\n")
        except OSError as problem:
            self._problem = f"the search cannot be told what was measured: {problem.strerror}"


def let_go(why: str) -> dict[str, Any]:
    """The directive to end the search and to leave the training as it was."""
    return {"kind": "let_go", "why": why}
