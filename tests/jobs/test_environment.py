"""Values of --env are shown nowhere, whoever starts the ranks and wherever they run; what Slurm says is read."""

import pytest

from scalescope.errors import UsageError
from scalescope.jobs.environment import _expand_counts, masked, shown_commands
from scalescope.jobs.request import parse_environment
from scalescope.launchers import LAUNCHERS, Launcher
from scalescope.records.job import Host, Job, Knobs

ENV = {"TOKEN": "hunter2", "SCALESCOPE_TUNE": "1"}


@pytest.mark.parametrize("hosts", [(), (Host("a", 1), Host("b", 1))], ids=["here", "on hosts"])
@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
def test_no_command_shows_them(launcher: Launcher, hosts: tuple[Host, ...]) -> None:
    job = Job(
        command=("python", "train.py"),
        np=2,
        knobs=Knobs(engine="ddp"),
        folder="/results",
        launch="mark",
        threads_per_rank=1,
        hosts=hosts,
        env={**ENV, "NCCL_DEBUG": "INFO"},
    )
    lines = shown_commands(launcher, job, ENV)
    assert len(lines) == len(launcher.commands(job))
    for line in lines:
        assert "hunter2" not in line
        assert "TOKEN=***" in line
        assert "NCCL_DEBUG=INFO" in line
        assert "SCALESCOPE_TUNE=1" in line


def test_names_stay() -> None:
    assert masked(ENV) == {"TOKEN": "***", "SCALESCOPE_TUNE": "1"}


@pytest.mark.parametrize("text", ["MY-TOKEN=hunter2", "hunter2", "TOKEN=***"])
def test_a_complaint_does_not_show_them(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_environment([text])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("text", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,3", [1, 3]), ("", [1])])
def test_tasks_of_nodes_as_slurm_writes_them(text: str, counts: list[int]) -> None:
    assert _expand_counts(text) == counts
