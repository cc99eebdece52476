"""Times the imports of a script and calls back when a module that is waited for has been imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from .recorder import now, reason, say

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
        """What follows is no import, even when a script trains while it is being imported."""
        if self._outermost_since:
            self.seconds_ns += now() - self._outermost_since
            self._outermost_since = 0

    def stop(self) -> None:
        """Take everything back."""
        self.pause()
        if bootstrap._find_and_load is self._replacement:
            bootstrap._find_and_load = self._find
