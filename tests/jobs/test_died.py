"""Which rank a failed launch names, and how that rank ended: from files that launchers and ranks leave."""

from pathlib import Path

import pytest

from scalescope.jobs.watch import LaunchWatch
from scalescope.launchers import find_launcher
from scalescope.launchers.runner import LAUNCHER_OUTPUT
from scalescope.progress import Progress
from scalescope.records.job import Job, Knobs

TORCHRUN = "  rank      : {} (local_rank: {})\n  exitcode  : {} (pid: 7)\n"
LOST = "RuntimeError: [../gloo/pair.cc:598] Connection closed by peer [127.0.0.1]:4242\n"


def died(folder: Path, name_of: str = "torchrun", **said: str) -> str:
    for name, text in said.items():
        (folder / (LAUNCHER_OUTPUT if name == "launcher" else f"{name}.out")).write_text(text)
    job = Job(
        command=("train.py",), np=2, knobs=Knobs(engine="ddp"), folder=str(folder), launch="x", threads_per_rank=1
    )
    return LaunchWatch(job, Progress(), None).died(find_launcher(name_of))[0]


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (1, "ended with exit code 1"),
        (120, "ended with exit code 120"),
        (-9, "was killed by SIGKILL (perhaps out of memory)"),
        (137, "was killed by SIGKILL (perhaps out of memory)"),
        (0, "failed"),
    ],
)
def test_a_rank_ended_by_a_code_or_by_a_signal(tmp_path: Path, code: int, how: str) -> None:
    assert died(tmp_path, launcher=TORCHRUN.format(1, 1, code)) == f"rank 1 {how} before its first step"


def test_a_signal_that_the_launcher_names_is_reported(tmp_path: Path) -> None:
    text = "mpirun noticed that process rank 1 with PID 7 on node here exited on signal 11 (Segmentation fault)."
    (tmp_path / LAUNCHER_OUTPUT).write_text(text)
    assert died(tmp_path, "mpirun") == "rank 1 was killed by SIGSEGV before its first step"


def test_ranks_that_the_launcher_ended_or_that_lost_a_peer_are_not_to_blame(tmp_path: Path) -> None:
    ended = "".join(TORCHRUN.format(rank, rank, code) for rank, code in ((0, -15), (2, 1), (3, 1)))
    assert died(tmp_path, launcher=ended, rank2=LOST, rank3="ValueError: mine\n").startswith("rank 3 ended with")


def test_a_node_on_which_slurm_could_start_no_rank_is_named(tmp_path: Path) -> None:
    """Its slurmd is gone; the ranks of other nodes are killed for it, and are not to blame."""
    said = (
        "srun: error: Task launch for StepId=16.5 failed on node n2: Communication connection failure\n"
        "srun: error: Application launch failed: Communication connection failure\n"
        "srun: error: n1: task 0: Killed\n"
    )
    problem = "could not start ranks on n2 (Communication connection failure)"
    assert died(tmp_path, "srun-torchrun", launcher=said) == f"srun {problem}"
    assert died(tmp_path, "own", launcher=said) == f"the command {problem}"


def test_without_a_word_of_the_launcher_the_rank_with_an_error_is_named(tmp_path: Path) -> None:
    assert died(tmp_path) == "the launch failed before the first step"
    assert died(tmp_path, rank1="Traceback (most recent call last):\n") == "rank 1 failed before its first step"
