"""Notices a launch that starts from what an earlier one left behind, such as a checkpoint."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_NOT_DATA = ("/proc/", "/sys/", "/dev/", os.path.expanduser("~/.cache/"))  # noqa: PTH111 - pathlib is slow to import


class StaleReads:
    """Collects files that are read now and were changed after the measurement began, but before this process did."""

    def __init__(self, since_ns: int, own_folder: str) -> None:
        self._since_s = since_ns * 1e-9
        self._started_s = time.time()
        self._own_folder = own_folder + os.sep
        self._reported: set[str] = set()
        self.found: list[str] = []
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open":
            return
        path, mode = arguments[0], arguments[1]
        if not isinstance(path, str) or not isinstance(mode, str) or "r" not in mode:
            return
        path = os.path.abspath(path)  # noqa: PTH100
        if path in self._reported or path.endswith((".py", ".pyc")):
            return
        if path.startswith(_NOT_DATA) or path.startswith(self._own_folder):
            return
        try:
            changed_s = os.stat(path).st_mtime  # noqa: PTH116
        except OSError:
            return
        if self._since_s < changed_s < self._started_s:
            self._reported.add(path)
            self.found.append(path)
