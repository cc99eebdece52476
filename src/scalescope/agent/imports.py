"""Imports and reads of a script before it trains: how long imports take, when a module that is waited for has come,
and files that an earlier launch left behind, such as a checkpoint.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .recorder import now, reason, say

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
        """Note a file that is opened, without raising: an error here would end the script's own call."""
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
        if "/site-packages/" in path or "/dist-packages/" in path:  # what pip has just installed
            return
        if self._since_s < changed_s < self._started_s and path not in self.found:
            self.found.append(path)


bootstrap: Any = sys.modules["_frozen_importlib"]


class ImportWatch:
    """Stands in front of Python's import machinery until the first step of the training."""

    def __init__(self, callbacks: dict[str, Callable[[Any], None]]) -> None:
        self.seconds_ns = 0
        self._callbacks = callbacks
        self._outermost_since = 0
        self._main_thread = threading.main_thread().ident
        self._find = bootstrap._find_and_load

        def _find_and_load(name: str, import_: Any) -> Any:
            return self._timed(name, import_)

        # In tracebacks Python hides its own import frames; ours must be hidden with them.
        code = bootstrap._find_and_load.__code__
        for function in (_find_and_load, ImportWatch._timed):
            function.__code__ = function.__code__.replace(co_filename=code.co_filename)
        self._replacement = bootstrap._find_and_load = _find_and_load

    def _timed(self, name: str, import_: Any) -> Any:
        outermost = not self._outermost_since and threading.get_ident() == self._main_thread
        if outermost:
            self._outermost_since = now()
        try:
            module = self._find(name, import_)
        finally:
            if outermost:
                self.pause()
        callback = self._callbacks.pop(name, None)
        if callback:
            try:
                callback(module)
            except Exception as problem:  # another torch than expected: that is not the script's trouble
                say(f"{name} is not watched: {reason(problem)}")
        return module

    def pause(self) -> None:
        """Stop the clock of imports, as when a script trains while it is being imported."""
        if self._outermost_since:
            self.seconds_ns += now() - self._outermost_since
            self._outermost_since = 0

    def stop(self) -> None:
        """Take everything back."""
        self.pause()
        if bootstrap._find_and_load is self._replacement:
            bootstrap._find_and_load = self._find
