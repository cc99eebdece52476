"""Puts to sleep what a stopped Horovod leaves behind: the event loops of its Gloo, awake a hundred times a second.

After a dozen switches they kept the ranks of a training from their cores. Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import platform
import signal
from collections.abc import Iterator
from typing import Any

_WAITS = {"x86_64": ("232", "281"), "aarch64": ("22",)}.get(platform.machine(), ())  # epoll_wait and epoll_pwait
_GLOO_WAITS_MS = 10


class IdleThreads:
    """Threads that began with a library of Horovod and outlive its stop."""

    def __init__(self) -> None:
        self._began: set[int] = set()
        self._asleep: list[int] = []
        self._libc: Any = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """A library starts meanwhile: threads that were not there before are its own."""
        before = threads()
        yield
        self._began = threads() - before

    def put_to_sleep(self) -> None:
        """The library has been stopped: those of its threads that are still there wait for nothing."""
        left, self._began = self._began & threads(), set()
        waiting = [thread for thread in left if _is_gloo_loop(thread)]
        if waiting and (self._libc or self._prepare()):
            for thread in waiting:
                self._libc.tgkill(os.getpid(), thread, _sleep_signal())
            self._asleep += waiting

    def _prepare(self) -> bool:
        """Take two unused signals, one whose handler waits and one that ends the wait; False: not possible."""
        sleep, wake = _sleep_signal(), _sleep_signal() + 1
        libc = ctypes.CDLL(None)
        if any(signal.getsignal(number) != signal.SIG_DFL for number in (sleep, wake)) or not hasattr(libc, "tgkill"):
            return False
        for number, handler in ((sleep, libc.pause), (wake, libc.sched_yield)):
            libc.signal(number, ctypes.cast(handler, ctypes.c_void_p))
        self._libc = libc
        atexit.register(self._wake)
        return True

    def _wake(self) -> None:
        """The process ends, and what ends Gloo may wait for its loops."""
        for thread in self._asleep:
            self._libc.tgkill(os.getpid(), thread, _sleep_signal() + 1)


def threads() -> set[int]:
    """Ids of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}  # noqa: PTH208 - pathlib is slow to import


def _is_gloo_loop(thread: int) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/syscall") as file:
            words = file.read().split()
    except OSError:
        return False
    return len(words) > 4 and words[0] in _WAITS and int(words[4], 16) == _GLOO_WAITS_MS


def _sleep_signal() -> int:
    return signal.SIGRTMAX - 7
