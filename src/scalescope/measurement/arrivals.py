"""Says when the output files of a launch grow, as it happens: inotify, with polling where it tells nothing."""

import contextlib
import ctypes
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_LOOK_ANYWAY_MS = 50
"""inotify is silent about what other hosts write into a shared folder."""
_WITHOUT_INOTIFY_MS = 5
_REST_S = 0.001
"""Between two looks: a script that prints without end must not cost a core."""

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def following(folder: Path, look: Callable[[], object]) -> Iterator[None]:
    """Call `look` from a thread of its own within about a millisecond of every change of a file NAME.out in there."""
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


def _follow(changes: int, stop: int, look: Callable[[], object]) -> None:
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    if changes >= 0:
        poll.register(changes, select.POLLIN)
    patience_ms = _LOOK_ANYWAY_MS if changes >= 0 else _WITHOUT_INOTIFY_MS
    resting = select.poll()
    resting.register(stop, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll(patience_ms)}
        if stop in ready:
            return
        # Names end with a zero byte: ranks' records in the same folder change often and are not output.
        if changes not in ready or b".out\0" in os.read(changes, 65_536):
            look()
        if resting.poll(_REST_S * 1000):
            return
