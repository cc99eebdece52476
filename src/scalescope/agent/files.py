"""Notices a launch that starts from what an earlier one left behind, such as a checkpoint."""

from __future__ import annotations

import builtins
import functools
import io
import os
import time
from typing import Any

_NOT_DATA = ("/proc/", "/sys/", "/dev/", os.path.expanduser("~/.cache/"))  # noqa: PTH111 - pathlib is slow to import


class StaleReads:
    """Until the training begins: files that are read, and were changed between the measurement's start and ours."""

    def __init__(self, since_ns: int, own_folder: str) -> None:
        self._since_s = since_ns * 1e-9
        self._started_s = time.time()
        self._own_folder = own_folder + os.sep
        self.found: list[str] = []
        self._open = builtins.open

        @functools.wraps(self._open)
        def noticing_open(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            self._notice(file, mode)
            return self._open(file, mode, *arguments, **options)

        self._replacement = builtins.open = io.open = noticing_open

    def stop(self) -> None:
        """Take everything back."""
        if builtins.open is self._replacement:
            builtins.open = self._open
        if io.open is self._replacement:
            io.open = self._open

    def _notice(self, file: Any, mode: str) -> None:
        if "r" not in mode or not isinstance(file, (str, os.PathLike)):
            return
        path = os.path.abspath(os.fspath(file))  # noqa: PTH100
        if path in self.found or not isinstance(path, str) or path.endswith((".py", ".pyc")):
            return
        if path.startswith(_NOT_DATA) or path.startswith(self._own_folder):
            return
        try:
            changed_s = os.stat(path).st_mtime  # noqa: PTH116
        except OSError:
            return
        if self._since_s < changed_s < self._started_s:
            self.found.append(path)
