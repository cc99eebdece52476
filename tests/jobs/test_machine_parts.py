"""What programs, the kernel and the release of a machine say, put into words of ours; and the edges of advice."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from test_machine import CUDA, H200, HEALTHY, change

from scalescope import host
from scalescope.jobs import machine
from scalescope.jobs.machine import check_up, describe_machine, remedies
from scalescope.records.machine import Cores, Gpu, Horovod, Interface, Mpi, Slurm, Torch

Answer = tuple[int, str, str] | Exception
TORCH: dict[str, Answer] = {sys.executable: (0, '{"version": "1.0"}', "")}


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Answer]], list[float]]:
    """Let only these programs be there, each with its code, output and errors; how long each may take."""

    def install(answers: dict[str, Answer]) -> list[float]:
        patience: list[float] = []

        def run(argv: list[str], timeout: float, **_: Any) -> subprocess.CompletedProcess[str]:
            patience.append(timeout)
            words = " ".join(argv)
            found = next(answer for start, answer in answers.items() if words.startswith(start))
            if isinstance(found, Exception):
                raise found
            return subprocess.CompletedProcess(argv, *found)

        names = {start.split()[0]: start.split()[0] for start in answers}
        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(shutil, "which", names.get)
        return patience

    return install


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ((0, "mpirun (Open MPI) 4.1.4\n\nReport", ""), Mpi(mpirun="mpirun", name="Open MPI", version="4.1.4")),
        ((0, "", "mpirun (Open MPI/PRRTE) 5.0\n"), Mpi(mpirun="mpirun", name="Open MPI", version="5.0")),
        ((0, "HYDRA build details:\n", ""), Mpi(mpirun="mpirun", name="HYDRA build details", version="")),
        ((0, "", ""), Mpi(mpirun="mpirun", name="", version="")),
    ],
)
def test_an_mpirun_says_whose_it_is(programs: Any, answer: Answer, found: Mpi) -> None:
    programs({**TORCH, "mpirun --version": answer})
    assert describe_machine().mpi == found
    programs(TORCH)
    assert describe_machine().mpi is None


def test_slurm_says_its_version_and_plugins(programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    listed = "MPI plugin types are...\n\tpmix\n\tnone\nspecific pmix plugin versions available: pmix_v4"
    answers: dict[str, Answer] = {
        **TORCH,
        "srun --version": (0, "slurm-wlm 22.05.8\n", ""),
        "srun --mpi=list": (0, "", listed),
    }
    patience = programs(answers)
    assert describe_machine().slurm == Slurm(version="22.05.8", mpi_plugins=("none", "pmix"), job_id=None, nodes=1)
    assert patience.count(5.0) == 2
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    found = describe_machine().slurm
    assert found is not None
    assert (found.job_id, found.nodes) == ("7", 3)
    programs({**TORCH, "srun --version": subprocess.TimeoutExpired("srun", 5.0)})
    problem = describe_machine().slurm
    assert problem is not None
    assert problem.version == ""
    assert "timed out" in str(problem.problem)
    programs({**TORCH, "srun --version": (3, "", "")})
    assert describe_machine().slurm == Slurm(version="", problem="the process ended with 3")
    programs(TORCH)
    assert describe_machine().slurm is None


def test_a_package_is_asked_in_a_process_of_its_own(programs: Any) -> None:
    ask = machine._ask_python
    patience = programs({sys.executable: (0, 'noise\n{"version": "2.0", "backends": ["gloo", "mpi"]}\n', "")})
    assert ask("torch", "?", Torch) == Torch(version="2.0", backends=("gloo", "mpi"))
    assert patience == [60.0]
    programs({sys.executable: (1, "", "Traceback\nImportError: x\n")})
    assert ask("msgspec", "?", Torch) == Torch(version=msgspec.__version__, problem="ImportError: x")
    assert ask("json", "?", Torch).version == "of unknown version"
    assert ask("no_such_package_at_all", "?", Torch) is None


@pytest.mark.parametrize(
    ("release", "family"),
    [
        ({"ID": "debian"}, "debian"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "debian"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "fedora"),
        ({"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, "suse"),
        ({"ID": "arch"}, ""),
        ({}, ""),
    ],
)
def test_a_release_belongs_to_a_family(
    programs: Any, monkeypatch: pytest.MonkeyPatch, release: dict[str, str], family: str
) -> None:
    programs(TORCH)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert describe_machine().distribution == family


def test_a_system_without_a_release_is_named_by_its_kernel(programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(TORCH)

    def missing() -> dict[str, str]:
        raise OSError

    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    found = describe_machine()
    assert (found.system, found.distribution) == (f"{platform.system()}, kernel {platform.release()}", "")


def test_interfaces_that_are_up_have_numbers_and_a_speed_if_the_driver_knows(
    programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(TORCH)
    speeds = {"a": 1000, "b": 0, "c": 65535, "d": 65534, "off": 10, "e": 1}
    states = {name: SimpleNamespace(isup=name != "off", speed=speed) for name, speed in speeds.items()}
    texts = ["10.0.0.1", "fe80::1%eth0", "aa:bb:cc:dd:ee:ff"]
    addresses = {name: [SimpleNamespace(address=text) for text in texts] for name in (*speeds, "gone")}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    first, *others = describe_machine().interfaces
    found = {each.name: each.bits_per_s for each in (first, *others)}
    assert found == {"a": 10**9, "b": None, "c": None, "d": 65534 * 10**6, "e": 10**6}
    assert first == Interface(name="a", addresses=("10.0.0.1", "fe80::1"), bits_per_s=10**9)


def test_the_machine_is_described_in_full(programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    programs({**TORCH, "ssh": (0, "", "")})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 7.0, 9.0))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=2**40))
    monkeypatch.setattr(host, "memory_limit_bytes", lambda: float(2**30))
    monkeypatch.setattr(host, "cores", lambda: host.Cores(2, 3, 2.5, 4, 8))
    monkeypatch.setattr(host, "cards", lambda: (SimpleNamespace(name="G", memory_bytes=5),))
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"PRETTY_NAME": "Mint 1", "ID": "debian"})
    found = describe_machine()
    assert (found.hostname, found.python, found.is_root) == (platform.node(), sys.executable, True)
    assert (found.system, found.distribution) == (f"Mint 1, kernel {platform.release()}", "debian")
    assert (found.memory_bytes, found.load_average, found.gpus) == (2**30, 0.5, (Gpu(name="G", memory_bytes=5),))
    assert found.cores == Cores(physical=4, logical=8, usable=2.5, usable_physical=2)
    assert (found.mpi, found.slurm, found.ssh, found.torch) == (None, None, "ssh", Torch(version="1.0"))
    assert found.disk_free_bytes > 0
    assert found.shared_memory_bytes == shutil.disk_usage("/dev/shm").total
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not describe_machine().is_root


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"load_average": 4.0}, []),
        ({"load_average": 4.1}, ["an idle machine"]),
        ({"shared_memory_bytes": 2**30}, []),
        ({"shared_memory_bytes": 2**30 - 1}, ["shared memory"]),
        ({"shared_memory_bytes": None}, []),
        ({"gpus": (H200,), "torch": msgspec.structs.replace(CUDA, gpus=1)}, []),
        ({"mpi": None, "horovod": Horovod(version="1", controllers=("gloo",))}, ["Open MPI"]),
        ({"slurm": Slurm(version="22", job_id="7", nodes=1)}, []),
        ({"torch": None, "horovod": None, "mpi": None}, ["torch", "Horovod", "Open MPI"]),
    ],
)
def test_advice_begins_where_it_is_needed(changes: dict[str, Any], missing: list[str]) -> None:
    assert [remedy.missing for remedy in remedies(change(**changes))] == missing


def test_a_broken_horovod_is_built_anew_and_not_counted_on() -> None:
    broken = change(horovod=Horovod(version="0.28.1", problem="undefined symbol"))
    (remedy,) = remedies(broken)
    assert (remedy.missing, remedy.command) == (
        "a Horovod for this torch",
        "/venv/bin/python scripts/build_horovod --force",
    )
    assert check_up(broken).answer == "box is ready to measure DDP on up to 8 processes."


def test_a_broken_torch_comes_before_everything() -> None:
    checkup = check_up(change(torch=Torch(version="2", problem="x"), mpi=None))
    assert checkup.answer == "Nothing can be measured here before torch works."
    assert checkup.next_command == "/venv/bin/python -m pip install --force-reinstall torch"


@pytest.mark.parametrize(
    ("usable", "counts"), [(0.5, "1"), (2.0, "1,2"), (3.9, "1,2"), (4.0, "1,2,4"), (64.0, "1,2,4,8")]
)
def test_processes_double_up_to_the_cores(usable: float, counts: str) -> None:
    cores = msgspec.structs.replace(HEALTHY.cores, usable=usable)
    assert f"--np {counts} " in check_up(change(cores=cores)).next_command


def test_outside_of_an_allocation_slurm_starts_nothing() -> None:
    checkup = check_up(change(slurm=Slurm(version="22")))
    assert checkup.answer.startswith("box is ready")
    assert "--launcher" not in checkup.next_command
