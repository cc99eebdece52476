"""The words of each launcher, where ranks find each other, and the names that they get from it."""

import shlex

import pytest

from scalescope.launchers import find_launcher
from scalescope.launchers.base import as_shell, on_host, rank_environment, rank_words, rendezvous
from scalescope.records.job import Command, Host, Job, Knobs

KEPT = 'exec python train.py >"$SCALESCOPE_FOLDER/rank$RANK.out" 2>&1'


def job(**changes: object) -> Job:
    fields = {
        "command": ("python", "train.py"),
        "np": 2,
        "knobs": Knobs(engine="ddp"),
        "folder": "/out/launch 1",
        "launch": "mark",
        "threads_per_rank": 3,
        "port": 4000,
        "python": "/venv/bin/python",
        "cwd": "/my home",
    }
    return Job(**{**fields, **changes})  # type: ignore[arg-type]


def test_ranks_meet_on_the_first_host_or_here() -> None:
    assert rendezvous(job()) == {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4000"}
    assert rendezvous(job(hosts=(Host("a", 1), Host("b", 1))))["MASTER_ADDR"] == "a"


def test_every_rank_finds_threads_folder_and_launch() -> None:
    threads = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3"}
    ours = {"PYTHONUNBUFFERED": "1", "SCALESCOPE_FOLDER": "/out/launch 1", "SCALESCOPE_LAUNCH": "mark"}
    assert rank_environment(job()) == {**threads, **ours}
    assert rank_environment(job(threads_per_rank=None, env={"A": "1"})) == {**ours, "A": "1"}


def test_a_rank_keeps_its_output_under_the_name_that_torch_knows() -> None:
    assert rank_words(job()) == ("sh", "-c", KEPT)
    named = rank_words(job(), RANK="SLURM_PROCID", WORLD_SIZE="SLURM_NTASKS")
    assert named[2] == f"export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS; {KEPT}"


def test_a_command_for_another_host_carries_its_environment_in_its_words() -> None:
    command = on_host(job(ssh="myssh"), "b", ("run", "a b"), {"X": "1 2"})
    line = "cd '/my home' && exec env 'X=1 2' run 'a b'"
    assert command == Command(argv=("myssh", "-o", "BatchMode=yes", "b", line), env={}, host="b")


def test_a_command_is_shown_with_its_settings_if_it_has_any() -> None:
    assert as_shell(Command(argv=("run", "a b"), env={"X": "1 2"})) == "env 'X=1 2' run 'a b'"
    assert as_shell(Command(argv=("run",), env={})) == "run"


@pytest.mark.parametrize(
    ("values", "option", "prefix"),
    [
        ({"controller": "gloo"}, "--gloo", "HOROVOD"),
        ({"controller": "mpi"}, "--mpi", "OMPI_COMM_WORLD"),
        ({}, "--mpi", "OMPI_COMM_WORLD"),
    ],
)
def test_horovodrun_starts_through_the_controller_that_horovod_uses(
    values: dict[str, str], option: str, prefix: str
) -> None:
    knobs = Knobs(engine="horovod", values={**values})
    (command,) = find_launcher("horovodrun").commands(job(knobs=knobs, np=3, launcher_args=("--verbose",)))
    start = ("/venv/bin/python", "-m", "horovod.runner.launch", "-np", "3", "-H", "localhost:3", option, "--verbose")
    assert command.argv[: len(start)] == start
    names = f"RANK=${prefix}_RANK WORLD_SIZE=${prefix}_SIZE LOCAL_RANK=${prefix}_LOCAL_RANK"
    assert command.argv[len(start) + 2] == f"export {names} LOCAL_WORLD_SIZE=${prefix}_LOCAL_SIZE; {KEPT}"
    assert command.env == {**rendezvous(job()), **rank_environment(job())}


def test_horovodrun_names_hosts_and_the_interface_between_them() -> None:
    knobs = Knobs(engine="horovod", values={"controller": "gloo"})
    hosts, env = (Host("a", 2), Host("b", 2)), {"GLOO_SOCKET_IFNAME": "eth0"}
    (command,) = find_launcher("horovodrun").commands(job(knobs=knobs, np=3, hosts=hosts, env=env))
    assert command.argv[5:11] == ("-H", "a:2,b:1", "--gloo", "--network-interfaces", "eth0", "sh")
    for changes in ({"hosts": hosts}, {"env": env}):
        (command,) = find_launcher("horovodrun").commands(job(knobs=knobs, **changes))
        assert "--network-interfaces" not in command.argv


def test_torchrun_on_this_machine_is_one_node_that_keeps_its_folder_with_the_launch() -> None:
    (command,) = find_launcher("torchrun").commands(job())
    assert command.argv == (
        *("/venv/bin/python", "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", "2", "--node-rank", "0"),
        *("--master-addr", "127.0.0.1", "--master-port", "4000"),
        *("--log-dir", "/out/launch 1/torchrun"),
        *("--no-python", "sh", "-c", KEPT),
    )
    assert (command.env, command.host) == (rank_environment(job()), "")


@pytest.mark.parametrize("hosts", [(Host("a", 2),), (Host("a", 1), Host("b", 1))])
def test_torchrun_on_hosts_keeps_no_folder_there(hosts: tuple[Host, ...]) -> None:
    for number, command in enumerate(find_launcher("torchrun").commands(job(hosts=hosts))):
        words = shlex.split(command.argv[-1])
        assert "--log-dir" not in words
        assert words[words.index("--node-rank") + 1] == str(number)
        assert words[words.index("--master-addr") + 1] == "a"


def test_mpirun_takes_this_machine_where_no_host_is_named() -> None:
    (command,) = find_launcher("mpirun").commands(job(np=3))
    assert command.argv[:5] == ("mpirun", "-np", "3", "-H", "localhost:3")
    assert command.env["MASTER_PORT"] == "4000"


def test_the_users_own_line_is_left_as_it_is() -> None:
    (command,) = find_launcher("own").commands(job(launcher_args=("--extra",)))
    assert command == Command(argv=("python", "train.py"), env=rank_environment(job()))
