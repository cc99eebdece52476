"""Processes of a launch: found by a mark in their environment, and ended, here and on other hosts.

Run as a program, this file is the watchdog of a launch: when its input closes without a word, scalescope was killed,
and the watchdog ends what is left. It needs the standard library only, so that it starts fast.
"""

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
ANSWER_WITHIN_S = 15.0
TERMINATE_WITHIN_S = KILLED_WITHIN_S = 5.0
DISMISSED = b"."  # What a watchdog is told when nothing of its launch is left
_LOOK_EVERY_S = 0.01


class Mark(NamedTuple):
    """A variable that tells our processes from all others."""

    name: str
    value: str
    is_folder: bool = False  # Whether the variable names something in the folder `value`

    def is_in(self, environment: bytes) -> bool:
        """True when an environment, as /proc shows it, holds the variable."""
        end = "/" if self.is_folder else "\0"
        return os.fsencode(f"\0{self.name}={self.value}{end}") in b"\0" + environment + b"\0"

    @property
    def for_grep(self) -> str:
        """Options and a pattern with which grep finds the variable in such an environment."""
        text = f"{self.name}={self.value}"
        if not self.is_folder:
            return f"-qzxF {shlex.quote(text)}"
        escaped = re.sub(r"[\[.*^$\\]", r"\\\g<0>", text)
        return f"-qz {shlex.quote(f'^{escaped}/')}"


def of_launch(launch: str) -> Mark:
    """The mark of every process of a launch."""
    return Mark("SCALESCOPE_LAUNCH", launch)


def of_folder(folder: str) -> Mark:
    """The mark of every process of any launch in a result folder."""
    return Mark("SCALESCOPE_FOLDER", folder, is_folder=True)


def carrying(mark: Mark) -> Iterator[int]:
    """Ids of all processes on this machine that carry the mark."""
    yield from (int(name) for name in os.listdir("/proc") if name.isdigit() and carries(int(name), mark))  # noqa: PTH208


def carries(pid: int, mark: Mark) -> bool:
    """True when a process carries the mark; one of another user, or one that has ended, does not."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark.is_in(file.read())
    except OSError:
        return False


def pidfd_of(pid: int) -> int | None:
    """A descriptor that stays with a process whatever becomes of its id; None on kernels before 5.3."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def signal_marked(pid: int, mark: Mark, number: int) -> None:
    """Send a signal to a process if it carries the mark; another one that has got its id meanwhile is left alone."""
    pidfd = pidfd_of(pid)  # before the look at the mark: what was looked at is what the signal reaches
    try:
        if carries(pid, mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number) if pidfd is None else signal.pidfd_send_signal(pidfd, number)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def end_marked(mark: Mark, within_s: float = 0.0, told: Collection[int] = ()) -> int:
    """End whatever carries the mark on this machine; how many processes that were.

    Args:
        mark: What they carry.
        within_s: They are asked to end first, and killed after this time.
        told: Processes that know already that they are to end.
    """
    asked, count = set(told), 0
    kill_from = time.monotonic() + within_s
    while time.monotonic() < kill_from + KILLED_WITHIN_S and (marked := set(carrying(mark))):
        count = max(count, len(marked))
        late = time.monotonic() >= kill_from
        for pid in marked if late else marked - asked:
            signal_marked(pid, mark, signal.SIGKILL if late else signal.SIGTERM)
        asked |= marked
        time.sleep(0.05)
    return count


_END_ON_HOST = (
    "for round in 1 2 3 4 5; do left=; for p in /proc/[0-9]*; do if grep {} $p/environ 2>/dev/null; "
    'then left=1; kill -9 "${{p#/proc/}}"; fi; done; [ "$left" ] || break; sleep 0.2; done'
)


def end_on_hosts(ssh: str, hosts: Sequence[str], mark: Mark) -> None:
    """End whatever carries the mark on other hosts, on all of them at once; a host that does not answer is left."""
    words = [(ssh, *SSH_OPTIONS, host, _END_ON_HOST.format(mark.for_grep)) for host in hosts]
    running: list[subprocess.Popen[bytes]] = []
    with contextlib.suppress(OSError):  # no such program
        for each in words:
            running.append(
                subprocess.Popen(each, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
    deadline = time.monotonic() + ANSWER_WITHIN_S
    for client in running:
        try:
            client.wait(timeout=max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()


class Endings:
    """Tells of children as soon as they end."""

    def __init__(self, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
        self.left = list(processes)
        self._pidfds = {process.pid: pidfd_of(process.pid) for process in processes}

    def next(self, within_s: float) -> list["subprocess.Popen[bytes]"]:
        """Children that have ended; waits for one, but not longer than this."""
        pidfds = [pidfd for process in self.left if (pidfd := self._pidfds[process.pid]) is not None]
        if len(pidfds) == len(self.left):
            select.select(pidfds, [], [], within_s)
        else:
            wait_by_looking(self.left, within_s)
        ended = [process for process in self.left if process.poll() is not None]
        self.left = [process for process in self.left if process.returncode is None]
        return ended

    def close(self) -> None:
        """Give the descriptors back."""
        for pidfd in self._pidfds.values():
            if pidfd is not None:
                os.close(pidfd)


def wait_by_looking(processes: Sequence["subprocess.Popen[bytes]"], within_s: float) -> None:
    """Wait until one of the children has ended, where the kernel cannot tell."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        time.sleep(_LOOK_EVERY_S)


def start_watchdog(launch: str, ssh: str, hosts: Sequence[str]) -> "subprocess.Popen[bytes]":
    """A process that ends the launch when its input closes, unless it was told that it is dismissed."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, launch, ssh, *hosts],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends scalescope's group or terminal leaves it alone
    )


def watch(launch: str, ssh: str, hosts: Sequence[str]) -> None:
    """Wait for the end of scalescope, and end the launch if it could not do so itself."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1) == DISMISSED:
        return
    mark = of_launch(launch)
    told = [pid for pid in carrying(mark) if _leads(pid)]  # by the kernel, when scalescope ended: see runner.py
    end_marked(mark, TERMINATE_WITHIN_S, told)
    end_on_hosts(ssh, hosts, mark)


def _leads(pid: int) -> bool:
    """True when a process leads its session, as launchers do."""
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


if __name__ == "__main__":
    watch(sys.argv[1], sys.argv[2], sys.argv[3:])
