"""Options of jobs: what a dry run shows of them, and what does not go together; nothing is submitted here."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import CommandLine

GPU_SITE = Path(__file__).parents[2] / "examples" / "sites" / "gpu.toml"
JOB = ("--submit", "slurm", "--dry-run", "--per-node", "2")


def commands(shown: str) -> list[list[str]]:
    """The words after `scalescope` that each shown script runs."""
    return [shlex.split(line.partition("scalescope ")[2]) for line in shown.splitlines() if line.startswith("exec ")]


def value(words: list[str], flag: str) -> str | None:
    return words[words.index(flag) + 1] if flag in words else None


def test_a_dry_run_shows_the_script_its_node_hours_and_its_launches(scalescope: CommandLine) -> None:
    words = ("measure", "cnn", "--submit", "slurm", "--dry-run", "--nodes", "1,2,4", "--site", str(GPU_SITE))
    shown = scalescope.in_this_process(*words).stdout
    assert (
        "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n#SBATCH --time=01:00:00\n" in shown
    )
    assert "module load cuda/12.4\nsource ~/venvs/train/bin/activate\n" in shown
    assert "# 1 job: at most 4 node-hours (4 x 1 h)\n# 15 launches: about " in shown
    ((verb, *words),) = commands(shown)
    assert (verb, value(words, "--np"), value(words, "--per-node")) == ("measure", "4,8,16", "4")
    assert value(words, "--relative-to") == "smallest"
    assert not {"--submit", "--site", "--nodes", "--dry-run"} & set(words)
    assert list(scalescope.folder.iterdir()) == []


def test_a_job_for_every_point_has_the_nodes_that_it_needs(scalescope: CommandLine) -> None:
    shown = scalescope.in_this_process("measure", "cnn", *JOB, "--np", "1,2,6", "--per-point").stdout
    assert re.findall(r"--nodes=(\d+)", shown) == ["1", "1", "3"]
    first, *others = commands(shown)
    assert value(first, "--np") == "1"
    assert [(words[1], value(words, "--np")) for words in others] == [("--resume", "2"), ("--resume", "6")]
    assert "# 3 jobs: 5 node-hours for every hour" in shown


@pytest.mark.parametrize(
    ("options", "launcher"),
    [
        ((), "srun-torchrun"),
        (("--engine", "fsdp2"), "srun-torchrun"),
        (("--engine", "horovod"), "srun"),
        (("--launcher", "srun"), "srun"),
    ],
)
def test_ranks_start_under_a_torchrun_on_every_node_or_under_srun(
    scalescope: CommandLine, options: tuple[str, ...], launcher: str
) -> None:
    (words,) = commands(scalescope.in_this_process("measure", "mlp", *JOB, "--np", "1,2", *options).stdout)
    assert value(words, "--launcher") == launcher


def test_a_launch_line_of_your_own_stays_as_it_is(scalescope: CommandLine) -> None:
    line = ("LD_PRELOAD=/opt/libmpi.so", "srun", "-n", "{np}", "--export", "ALL,MV2_USE_CUDA=1", "python", "x.py")
    (words,) = commands(
        scalescope.in_this_process("measure", *JOB, "--np", "2,4", "--relative-to", "smallest", "--", *line).stdout
    )
    assert "--launcher" not in words
    assert words[words.index("--") + 1 :] == ["env", *line]


def test_values_of_variables_are_in_no_script(scalescope: CommandLine) -> None:
    shown = scalescope.in_this_process("measure", "mlp", *JOB, "--env", "TOKEN=secret").stdout
    assert "secret" not in shown
    assert "/env.sh  # values of --env\n" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("measure", "mlp", "--submit", "slrum", "--per-node", "1"), r"no scheduler 'slrum' \(did you mean slurm\?\)"),
        (("measure", "mlp", "--submit", "slurm"), "say how many processes a node of the job takes: --per-node 8"),
        (("measure", "mlp", "--nodes", "1,2"), "--nodes needs the number of processes on each: add --per-node"),
        (("measure", "mlp", "--nodes", "1,2", "--np", "2", "--per-node", "1"), "leave --np out"),
        (("measure", "mlp", "--patience", "5m"), "--patience goes with a job: add --submit slurm, or leave it out"),
        (("measure", "mlp", "--per-point"), "--per-point goes with a job"),
        (("tune", "mlp", "--no-wait"), "--no-wait goes with a job"),
        (("tune", "mlp", "--nodes", "1,2", "--per-node", "2"), "--np takes one number of processes"),
        (("measure", "mlp", "--submit", "slurm", "--per-node", "1", "--hosts", "a:1"), "leave --hosts out"),
        (("measure", "mlp", *JOB, "--np", "2,4"), "--np 2,4 has no baseline"),
        (("measure", "mlp", *JOB, "--np", "1,3", "--batch", "32", "--scaling", "strong"), "cannot be shared by 3"),
        (("measure", "mlp", "--site", "nowhere.toml", "--submit", "slurm"), "cannot read nowhere.toml"),
    ],
)
def test_what_does_not_go_together_is_refused_before_it_waits_in_a_queue(
    scalescope: CommandLine, words: tuple[str, ...], says: str
) -> None:
    refused = scalescope.in_this_process(*words, code=2).stderr
    assert re.search(says, refused)
    assert refused.count("\n") == 1
    assert list(scalescope.folder.iterdir()) == []


def test_nodes_count_processes_without_a_job_too(scalescope: CommandLine) -> None:
    shown = scalescope.in_this_process(
        "measure", "mlp", "--nodes", "1,2", "--per-node", "1", "--oversubscribe", "--dry-run"
    ).stdout
    assert "# ddp-np1-b32" in shown
    assert "# ddp-np2-b32" in shown


def test_a_machine_without_slurm_says_where_to_submit(scalescope: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(scalescope.folder))
    words = ("measure", "mlp", "--submit", "slurm", "--per-node", "1", "-o", "out")
    assert (
        "sbatch is not on the PATH: submit from a login node of Slurm"
        in scalescope.in_this_process(*words, code=2).stderr
    )
    assert not (scalescope.folder / "out").exists()
