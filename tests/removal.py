"""Remove what a test made on the machine, also when the test process is told to end."""

import atexit
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_removers: list[Callable[[], None]] = []


def at_the_end(remove: Callable[[], None]) -> None:
    """Call `remove`, which can be called twice, when this process ends by itself or by SIGTERM."""
    if not _removers:
        atexit.register(_remove_all)
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _on_terminate)
    _removers.append(remove)


def is_gone(pid: str) -> bool:
    """Whether the process that made something, and put its id into the name, has ended without removing it."""
    return not Path("/proc", pid).exists()


def _remove_all() -> None:
    while _removers:
        _removers.pop()()


def _on_terminate(number: int, _frame: FrameType | None) -> None:
    _remove_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
