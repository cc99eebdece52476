"""What is left of a launch when its launcher has ended."""

import os
from pathlib import Path

import pytest

from scalescope.launchers.processes import carrying, of_launch
from scalescope.launchers.runner import run
from scalescope.records.job import Command, Ending, Job, Knobs

pytestmark = pytest.mark.launches


class Watch:
    """Sees nothing."""

    def tick(self) -> int:
        return 0

    def stalled(self, seconds: float) -> tuple[str, str]:
        return "stalled", ""


def ended(folder: Path, line: str) -> Ending:
    """How a launch of this shell line ends; nothing of it may be left."""
    mark = f"left-{os.getpid()}-{folder.name}"  # Folders of two runs of the tests may have one name
    words = ("sh", "-c", line)
    job = Job(command=words, np=1, knobs=Knobs(engine="ddp"), folder=str(folder), launch=mark, threads_per_rank=1)
    ending = run([Command(argv=words, env={"SCALESCOPE_LAUNCH": mark})], job, Watch(), timeout_s=60)
    assert list(carrying(of_launch(mark))) == []
    return ending


def test_processes_that_outlive_their_launcher_are_removed_and_counted(tmp_path: Path) -> None:
    ending = ended(tmp_path, "sleep 60 & sleep 60 &")
    assert (ending.problem, ending.leftovers) == ("", 2)


def test_a_launch_that_leaves_nothing_has_no_leftovers(tmp_path: Path) -> None:
    assert (ended(tmp_path, "true").problem, ended(tmp_path, "true").leftovers) == ("", 0)


def test_leftovers_are_not_reported_after_a_failure(tmp_path: Path) -> None:
    ending = ended(tmp_path, "sleep 60 & exit 3")
    assert (ending.problem, ending.leftovers) == ("the launcher ended with exit code 3", 0)


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("kill -9 $$", "was killed by SIGKILL (perhaps out of memory)"),
        ("kill -TERM $$", "was killed by SIGTERM"),
        ("exit 139", "was killed by SIGSEGV"),
        ("exit 255", "ended with exit code 255"),
    ],
)
def test_a_launcher_that_a_signal_ended_is_named_with_it(tmp_path: Path, line: str, how: str) -> None:
    assert ended(tmp_path, line).problem == f"the launcher {how}"
