"""Event loops that a stopped library leaves behind sleep, others do not; all wake when the process ends."""

import select
import threading
import time
from collections.abc import Iterator

import pytest

from scalescope.engines.idle_threads_live import IdleThreads, threads


class Loop:
    """A thread that waits as Gloo's do, 10 ms at a time."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.turns, self._ends, self._seconds = 0, False, seconds
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with select.epoll() as nothing:
            while not self._ends:
                nothing.poll(self._seconds)
                self.turns += 1

    def turns_in(self, seconds: float) -> int:
        before = self.turns
        time.sleep(seconds)
        return self.turns - before

    def end(self) -> bool:
        self._ends = True
        self._thread.join(10)
        return not self._thread.is_alive()


@pytest.fixture
def loops() -> Iterator[list[Loop]]:
    made: list[Loop] = []
    yield made
    assert [loop.end() for loop in made] == [True] * len(made)


def put_to_sleep(idle: IdleThreads, loop: Loop) -> None:
    """Once it waits; a busy machine may look between two waits."""
    for _ in range(100):
        assert loop._thread.native_id in threads()
        idle._began = {loop._thread.native_id}
        idle.put_to_sleep()
        if idle._asleep:
            return
        time.sleep(0.01)


def test_a_loop_that_nobody_needs_sleeps_until_the_process_ends(loops: list[Loop]) -> None:
    idle, loop, other = IdleThreads(), Loop(), Loop()
    loops += [loop, other]
    put_to_sleep(idle, loop)
    assert idle._asleep == [loop._thread.native_id]
    time.sleep(0.05)
    assert loop.turns_in(0.3) == 0
    assert other.turns_in(0.3) > 0
    idle._wake()
    assert loop.end()


def test_a_thread_that_waits_for_anything_else_is_left_alone(loops: list[Loop]) -> None:
    idle = IdleThreads()
    with idle.noted():
        loops.append(Loop(0.02))
    idle.put_to_sleep()
    assert not idle._asleep
    assert loops[0].turns_in(1.0) > 0


def test_threads_that_were_there_before_are_left_alone(loops: list[Loop]) -> None:
    idle = IdleThreads()
    loops.append(Loop())
    with idle.noted():
        pass
    idle.put_to_sleep()
    assert not idle._asleep


def test_threads_that_begin_with_a_library_are_its_own(loops: list[Loop]) -> None:
    idle = IdleThreads()
    with idle.noted():
        loops.append(Loop())
    assert idle._began == {loops[0]._thread.native_id}
