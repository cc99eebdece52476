"""What every launcher promises: a Job in, commands out, nothing started."""

import argparse
import os
import re
import shlex
import subprocess

import msgspec
import pytest
from torch.distributed import run

from scalescope.errors import UsageError
from scalescope.launchers import LAUNCHERS, Launcher, find_launcher
from scalescope.launchers.base import as_shell
from scalescope.records.job import Host, Job, Knobs

EVERY_LAUNCHER = pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
HOST_LAUNCHERS = ("torchrun", "mpirun", "horovodrun", "srun", "srun-torchrun")
REACHING_HOSTS = pytest.mark.parametrize("launcher", [LAUNCHERS[name] for name in HOST_LAUNCHERS], ids=HOST_LAUNCHERS)
TWO_HOSTS = (Host("a", 2), Host("b", 2))


def job(np: int = 2, **changes) -> Job:
    plain = Job(
        command=("python", "train it.py", "--name", "$HOME; 'x'"),
        np=np,
        knobs=Knobs(engine="ddp"),
        folder="/results/launch 1",
        launch="mark",
        threads_per_rank=3,
        env={"COLOUR": "blue sky"},
        launcher_args=("--extra", "word"),
        cwd="/home/of mine",
    )
    return msgspec.structs.replace(plain, **changes)


def all_words(launcher: Launcher, job: Job) -> list[str]:
    """Every word of every command, those for a remote shell taken apart."""
    words = []
    for command in launcher.commands(job):
        words += [f"{name}={value}" for name, value in command.env.items()]
        words += shlex.split(command.argv[-1]) if command.host else command.argv
    return words


@EVERY_LAUNCHER
def test_the_same_job_gives_the_same_commands(launcher: Launcher) -> None:
    assert launcher.commands(job()) == launcher.commands(job())


@EVERY_LAUNCHER
@pytest.mark.parametrize("np", [1, 2, 16])
def test_threads_and_folder_reach_every_rank_at_every_size(launcher: Launcher, np: int) -> None:
    words = all_words(launcher, job(np))
    for setting in ("OMP_NUM_THREADS=3", "MKL_NUM_THREADS=3", "SCALESCOPE_FOLDER=/results/launch 1", "COLOUR=blue sky"):
        assert setting in words
    assert "SCALESCOPE_LAUNCH=mark" in words


def test_threads_are_left_to_the_launch_line_unless_asked_for() -> None:
    words = all_words(find_launcher("own"), job(threads_per_rank=None))
    assert not [word for word in words if "NUM_THREADS" in word]


@EVERY_LAUNCHER
def test_the_users_command_arrives_word_by_word(launcher: Launcher) -> None:
    words = all_words(launcher, job())
    if launcher.name != "own":  # in one word, for the shell of a rank, which keeps its output
        words = shlex.split(words[-1].partition(">")[0])
    assert words[-4:] == list(job().command)


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Every option of a parser, and every beginning of one."""
    options = [option for action in parser._actions for option in action.option_strings]
    return sorted({option[:end] for option in options for end in range(2, len(option) + 1)})


@REACHING_HOSTS
def test_a_scripts_options_are_no_options_of_the_launcher(launcher: Launcher) -> None:
    """Two launchers read all words with argparse, which refuses beginnings that several of its options share."""
    parser = run.get_args_parser()
    own = options_of(parser)
    assert {"--log", "--np", "--n", "--max", "--node", "--standalone"} < {*own}
    (command,) = launcher.commands(job(command=("python", "x.py", *own, ":", "--"), launcher_args=()))
    assert not {*own, ":", "--"} & set(command.argv[-3:]) - {"-c"}
    assert command.argv[-3:-1] == ("sh", "-c")
    assert shlex.split(command.argv[-1])[-len(own) - 4 : -2] == [*own, ":", "--"]
    if launcher.name in ("torchrun", "srun-torchrun"):
        at = command.argv.index("torch.distributed.run") + 1
        read = parser.parse_args(command.argv[at:])
        assert (read.training_script, read.training_script_args) == ("sh", [*command.argv[-2:]])


@EVERY_LAUNCHER
def test_variables_of_the_user_win(launcher: Launcher) -> None:
    words = all_words(launcher, job(env={"OMP_NUM_THREADS": "7", "MASTER_ADDR": "here"}))
    assert "OMP_NUM_THREADS=7" in words
    assert "OMP_NUM_THREADS=3" not in words
    assert "MASTER_ADDR=127.0.0.1" not in words


@EVERY_LAUNCHER
def test_launcher_arguments_pass_through(launcher: Launcher) -> None:
    words = all_words(launcher, job())
    expected = launcher.name != "own"
    assert ("--extra" in words and words[words.index("--extra") + 1] == "word") == expected


@pytest.mark.launches
@EVERY_LAUNCHER
def test_what_is_printed_is_what_runs(launcher: Launcher) -> None:
    """A shell takes the printed line apart into exactly the words that would be started."""
    for command in launcher.commands(job()):
        line = as_shell(command).replace(shlex.quote(command.argv[0]), "printf '%s\\0'", 1)
        printed = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout
        assert printed.split("\0")[:-1] == list(command.argv[1:])


@EVERY_LAUNCHER
def test_every_launcher_names_how_to_install_it(launcher: Launcher) -> None:
    assert launcher.name == "own" or (launcher.remedy and (launcher.program or launcher.module))


@EVERY_LAUNCHER
def test_every_launcher_states_if_it_reaches_hosts(launcher: Launcher) -> None:
    assert launcher.reaches_hosts == (launcher.name in HOST_LAUNCHERS)


@REACHING_HOSTS
def test_hosts_are_filled_in_order(launcher: Launcher) -> None:
    lines = " ".join(as_shell(command) for command in launcher.commands(job(3, hosts=TWO_HOSTS)))
    assert re.search(r"\ba\b", lines)
    assert re.search(r"\bb\b", lines)
    only_first = " ".join(as_shell(command) for command in launcher.commands(job(2, hosts=TWO_HOSTS)))
    assert not re.search(r"(^| |,)b(:|,| |$)", only_first)


def test_torchrun_starts_once_per_host() -> None:
    commands = find_launcher("torchrun").commands(job(3, hosts=TWO_HOSTS, port=4000))
    assert [command.host for command in commands] == ["a", "b"]
    for index, (command, ranks) in enumerate(zip(commands, (2, 1), strict=True)):
        words = shlex.split(command.argv[-1])
        options = {"--nnodes": "2", "--node-rank": str(index), "--nproc-per-node": str(ranks), "--master-addr": "a"}
        for option, value in options.items():
            assert words[words.index(option) + 1] == value
        assert words[:2] == ["cd", "/home/of mine"]


def test_mpirun_places_by_slots_and_carries_the_environment() -> None:
    (command,) = find_launcher("mpirun").commands(job(3, hosts=TWO_HOSTS, ssh="myssh"))
    assert command.argv[command.argv.index("-H") + 1] == "a:2,b:1"
    assert command.argv[command.argv.index("plm_rsh_agent") + 1] == "myssh"
    carried = {command.argv[at + 1] for at, word in enumerate(command.argv) if word == "-x"}
    assert carried == set(command.env)


@REACHING_HOSTS
def test_a_launcher_that_takes_no_other_program_than_ssh_says_so(launcher: Launcher) -> None:
    commands = launcher.commands(job(4, hosts=TWO_HOSTS, ssh="myssh"))
    takes_it = any("myssh" in command.argv for command in commands)
    assert launcher.only_ssh == (not takes_it and not launcher.scheduler)


def has(words: tuple[str, ...], *sequence: str) -> bool:
    """Whether these words stand one after another."""
    return any(words[at : at + len(sequence)] == sequence for at in range(len(words)))


def test_mpirun_yields_its_cores_only_where_ranks_share_them() -> None:
    (alone,) = find_launcher("mpirun").commands(job())
    (shared,) = find_launcher("mpirun").commands(job(oversubscribe=True))
    yields = ("--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
    assert has(shared.argv, *yields)
    assert set(shared.argv) - set(alone.argv) == {"--oversubscribe", "mpi_yield_when_idle", "1"}


def test_srun_places_as_many_tasks_on_a_node_as_the_fullest_gets() -> None:
    (uneven,) = find_launcher("srun").commands(job(3, hosts=TWO_HOSTS))
    assert has(uneven.argv, "--ntasks", "3")
    assert has(uneven.argv, "--nodes", "2", "--nodelist", "a,b", "--ntasks-per-node", "2", "--distribution=block")
    (fuller,) = find_launcher("srun").commands(job(4, hosts=(Host("a", 1), Host("b", 3))))
    assert has(fuller.argv, "--ntasks-per-node", "3")
    (anywhere,) = find_launcher("srun").commands(job(3))
    assert not {"--nodes", "--nodelist", "--ntasks-per-node", "--distribution=block"} & set(anywhere.argv)


def test_srun_gives_ranks_cores_of_their_own_unless_they_share_them_and_pmix_where_mpi_needs_it() -> None:
    looked_at = {"--cpus-per-task=3", "--overcommit", "--mpi=pmix"}
    (alone,) = find_launcher("srun").commands(job())
    assert looked_at & set(alone.argv) == {"--cpus-per-task=3"}
    through_mpi = Knobs(engine="horovod", values={"controller": "mpi"})
    (shared,) = find_launcher("srun").commands(job(oversubscribe=True, knobs=through_mpi))
    assert looked_at & set(shared.argv) == {"--overcommit", "--mpi=pmix"}


@pytest.mark.launches
def test_srun_starts_one_torchrun_on_every_node_and_the_first_one_is_where_they_meet() -> None:
    three = (Host("a", 2), Host("b", 2), Host("c", 1))
    (command,) = find_launcher("srun-torchrun").commands(
        job(5, hosts=three, port=4000, env={"MASTER_ADDR": "10.0.0.1"})
    )
    assert has(command.argv, "--nodes", "3", "--ntasks", "3", "--ntasks-per-node=1", "--nodelist", "a,b,c")
    assert has(command.argv, "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.0.0.1:4000", "--rdzv-id", "mark")
    shell = command.argv[command.argv.index("sh") + 2].replace('exec "$@"', "env")
    for number, (node, ranks) in enumerate((("a", 2), ("b", 2), ("c", 1))):
        variables = {"SLURMD_NODENAME": node, "SLURM_NODEID": str(number), "PATH": os.environ["PATH"]}
        seen = subprocess.run(["sh", "-c", shell], env=variables, capture_output=True, text=True, check=True).stdout
        assert f"PET_NPROC_PER_NODE={ranks}\n" in seen
        assert f"PET_RDZV_CONF=is_host={int(number == 0)}\n" in seen


@EVERY_LAUNCHER
def test_a_container_stands_before_what_runs_in_it_once(launcher: Launcher) -> None:
    words = all_words(launcher, job(container=("apptainer", "exec", "my image.sif")))
    if launcher.name == "own":  # the user's own line starts its own containers
        assert "apptainer" not in words
        return
    inner = shlex.split(words[-1].partition(">")[0])
    before_python = (
        words[: words.index("python3")] if launcher.name == "srun-torchrun" else inner[: inner.index("python")]
    )
    assert before_python[-3:] == ["apptainer", "exec", "my image.sif"]
    assert [*words[:-1], *inner].count("apptainer") == 1


@pytest.mark.parametrize(
    ("name", "text", "rank", "end"),
    [
        ("torchrun", "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 77)", 1, {"code": "-9"}),
        ("mpirun", "mpirun noticed that process rank 3 with PID 0 on node vm exited on signal 9", 3, {"signal": "9"}),
        ("mpirun", "  Process name: [[4711,1],2]\n  Exit code:    1", 2, {"code": "1"}),
        ("horovodrun", "Process 1 exit with status code 137.", 1, {"code": "137"}),
        ("srun", "srun: error: n2: task 5: Exited with exit code 1", 5, {"code": "1"}),
        ("srun", "srun: error: n2: task 5: Killed", 5, {"death": "Killed"}),
        ("own", "srun: error: n2: task 5: Aborted", 5, {"death": "Aborted"}),
    ],
)
def test_a_launcher_blames_a_rank(name: str, text: str, rank: int, end: dict[str, str]) -> None:
    found = [match for pattern in find_launcher(name).blame for match in pattern.finditer(text)]
    assert [int(match["rank"]) for match in found] == [rank]
    assert {key: value for key, value in found[0].groupdict().items() if key != "rank"} == end


def test_an_unknown_launcher_shows_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean mpirun"):
        find_launcher("mpiruns")
