"""Says when files of a folder grow, as it happens: inotify, or polling where there is none."""

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_HEADER = struct.Struct("iIII")
"""Of an event: watch, kind, cookie, length of the name that follows."""
_WITHOUT_INOTIFY_MS = 10
_REST = 50
"""After every look, rest this many times the CPU time it took: 2 % of a core, whatever a script prints."""

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def following(folder: Path, look: Callable[[set[str] | None], object]) -> Iterator[None]:
    """From a thread of its own, call `look` with the names of files as they change; None: any may have changed."""
    with contextlib.ExitStack() as stack:
        stop = os.eventfd(0)
        stack.callback(os.close, stop)
        changes = _watch(folder)
        if changes >= 0:
            stack.callback(os.close, changes)
        thread = threading.Thread(target=_follow, args=(changes, stop, look), name="scalescope-output", daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.eventfd_write(stop, 1)
            thread.join()


def _watch(folder: Path) -> int:
    """A descriptor that is readable after changes in the folder; -1 when the system gives none (its limit is low)."""
    descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if descriptor >= 0 and _libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_MODIFY | _IN_CREATE) < 0:
        os.close(descriptor)
        return -1
    return descriptor


def _follow(changes: int, stop: int, look: Callable[[set[str] | None], object]) -> None:
    stopped, either = select.poll(), select.poll()
    stopped.register(stop, select.POLLIN)
    either.register(stop, select.POLLIN)
    if changes >= 0:
        either.register(changes, select.POLLIN)
    rest_ms = 0.0
    while not stopped.poll(rest_ms):
        ready = either.poll(None if changes >= 0 else _WITHOUT_INOTIFY_MS)
        began_s = time.thread_time()
        look(_names(os.read(changes, 65_536)) if (changes, select.POLLIN) in ready else None)
        rest_ms = max(1000 * _REST * (time.thread_time() - began_s), 1.0)


def _names(events: bytes) -> set[str]:
    """The files that inotify's events are about."""
    names, offset = set(), 0
    while offset < len(events):
        *_, length = _HEADER.unpack_from(events, offset)
        offset += _HEADER.size + length
        names.add(os.fsdecode(events[offset - length : offset].rstrip(b"\0")))
    return names
