"""Notices a launch that starts from what an earlier one left behind, such as a checkpoint."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_NOT_DATA = ("/proc/", "/sys/", "/dev/", os.path.expanduser("~/.cache/"))  # noqa: PTH111 - pathlib is slow to import


class StaleReads:
    """Until the training begins: files that are read, and were changed between the measurement's start and ours.

    Python's audit event comes before a file is opened and replaces nothing that a script may hold on to. An audit hook
    stays for good, so after `stop` it returns at once.
    """

    def __init__(self, since_ns: int, own_folder: str) -> None:
        self._since_s = since_ns * 1e-9
        self._started_s = time.time()
        self._own_folder = own_folder + os.sep
        self.found: list[str] = []
        self._is_on = True
        sys.addaudithook(self._on_event)

    def stop(self) -> None:
        """Notice nothing any more."""
        self._is_on = False

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What is raised here would end the script's own call."""
        if event == "open" and self._is_on:
            try:
                self._notice(*arguments[:2])
            except Exception:
                self._is_on = False

    def _notice(self, file: Any, mode: Any) -> None:
        if not isinstance(file, str) or not isinstance(mode, str) or "r" not in mode:
            return
        try:
            path = os.path.abspath(file)  # noqa: PTH100
            changed_s = os.stat(path).st_mtime  # noqa: PTH116
        except (OSError, ValueError):
            return
        if path.endswith((".py", ".pyc")) or path.startswith(_NOT_DATA) or path.startswith(self._own_folder):
            return
        if self._since_s < changed_s < self._started_s and path not in self.found:
            self.found.append(path)
