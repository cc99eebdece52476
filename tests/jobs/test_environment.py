"""Values of --env are shown nowhere, whoever starts the ranks and wherever they run; what Slurm says is read."""

import os

import pytest

from scalescope.errors import UsageError
from scalescope.jobs.hosts import slots_of_allocation
from scalescope.jobs.masking import masked, shown_commands
from scalescope.launchers import LAUNCHERS, Launcher
from scalescope.options import parse_environment
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


@pytest.mark.parametrize(
    ("variables", "slots"),
    [
        ({"JOB_CPUS_PER_NODE": "2(x4)", "JOB_NUM_NODES": "4"}, (2, 2, 2, 2)),
        ({"JOB_CPUS_PER_NODE": "2(x3),1", "JOB_NUM_NODES": "4"}, (2, 2, 2, 1)),
        ({"JOB_CPUS_PER_NODE": "4", "JOB_NUM_NODES": "1"}, (4,)),
        ({"JOB_NUM_NODES": "2"}, (1, 1)),
        ({"JOB_CPUS_PER_NODE": "16,4", "JOB_NUM_NODES": "2", "CPUS_PER_TASK": "8"}, (2, 1)),
        ({"JOB_CPUS_PER_NODE": "16(x2)", "JOB_NUM_NODES": "2", "NTASKS_PER_NODE": "1"}, (1, 1)),
        ({"JOB_CPUS_PER_NODE": "64(x2)", "JOB_NUM_NODES": "2", "GPUS_PER_NODE": "4"}, (4, 4)),
        ({"JOB_CPUS_PER_NODE": "64(x2)", "JOB_NUM_NODES": "2", "GPUS_PER_NODE": "a100:2,v100:1"}, (3, 3)),
        ({"JOB_CPUS_PER_NODE": "64(x2)", "JOB_NUM_NODES": "2", "GPUS_PER_NODE": "4", "NTASKS_PER_NODE": "1"}, (4, 4)),
        ({"JOB_CPUS_PER_NODE": "64(x2)", "JOB_NUM_NODES": "2", "GPUS_PER_NODE": "4", "NTASKS_PER_NODE": "2"}, (2, 2)),
        ({}, (1,)),
    ],
)
def test_ranks_that_nodes_of_an_allocation_take(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], slots: tuple[int, ...]
) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    assert slots_of_allocation() == ()
    for name, value in {"JOB_NODELIST": "n[1-4]", **variables}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert slots_of_allocation() == slots
