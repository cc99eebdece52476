"""What a job may use of a machine: made folders as Linux lays them out, and a real quota."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from scalescope.host import Cores, cores, cpu_quota, gpus, memory_limit_bytes, slots
from scalescope.jobs.hosts import cores_of

INFINITE = float("inf")


def cpus(folder: Path, *siblings: str, name: str = "core_cpus_list") -> Path:
    """Sysfs of a machine; one text per logical core, with all hyperthreads of its core."""
    for number, text in enumerate(siblings):
        topology = folder / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / name).write_text(text + "\n")
    return folder


def groups(folder: Path, lines: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A process's /proc/self/cgroup and the tree of control groups."""
    root = folder / "root"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    proc = folder / "cgroup"
    proc.write_text(lines)
    return proc, root


@pytest.mark.parametrize(
    ("lines", "files", "cores", "memory"),
    [
        ("0::/", {"cpu.max": "150000 100000", "memory.max": "1073741824"}, 1.5, 2**30),
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, INFINITE, INFINITE),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000"}, 2.0, float("inf")),
        ("0::/of/the/host", {"cpu.max": "50000 100000", "memory.max": "4096"}, 0.5, 4096),
        (
            "4:memory:/x\n3:cpu,cpuacct:/x",
            {
                "cpu/x/cpu.cfs_quota_us": "300000",
                "cpu/x/cpu.cfs_period_us": "100000",
                "memory/x/memory.limit_in_bytes": "2048",
            },
            3.0,
            2048,
        ),
        ("2:cpu,cpuacct:/x", {"cpu,cpuacct/cpu.max": "", "cpu,cpuacct/x/cpu.max": "200000 100000"}, 2.0, INFINITE),
        ("0::/../../of/another", {"cpu.max": "100000 100000"}, 1.0, INFINITE),
        ("1:cpu:/\n0::/a", {"unified/a/cpu.max": "250000 100000"}, 2.5, INFINITE),
        ("3:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, INFINITE, INFINITE),
        ("", {}, INFINITE, INFINITE),
    ],
)
def test_control_groups_limit_cores_and_memory(tmp_path, lines, files, cores, memory):
    proc, root = groups(tmp_path, lines, files)
    assert cpu_quota(proc, root) == cores
    assert memory_limit_bytes(proc, root) == memory


TWO_BY_TWO = ("0,2", "1,3", "0,2", "1,3")


@pytest.mark.parametrize(
    ("siblings", "mask", "quota", "expected"),
    [
        (("0", "1"), {0, 1}, "max", Cores(2, 2, 2.0, 2, 2)),
        (("0-1", "0-1"), {0, 1}, "max", Cores(1, 2, 2.0, 1, 2)),
        (TWO_BY_TWO, {0, 1, 2, 3}, "max", Cores(2, 4, 4.0, 2, 4)),
        (TWO_BY_TWO, {0, 2}, "max", Cores(1, 2, 2.0, 2, 4)),
        (TWO_BY_TWO, {0, 1, 2, 3}, "150000", Cores(1, 1, 1.5, 2, 4)),
        (TWO_BY_TWO, {0, 1, 2, 3}, "300000", Cores(2, 3, 3.0, 2, 4)),
        (TWO_BY_TWO, {0, 1, 2, 3}, "50000", Cores(1, 1, 0.5, 2, 4)),
    ],
)
@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_threads_are_counted_on_cores_and_ranks_on_hyperthreads(tmp_path, siblings, mask, quota, expected, name):
    proc, root = groups(tmp_path, "0::/job/step", {"job/cpu.max": f"{quota} 100000", "job/step/cpu.max": "max 100000"})
    sysfs = cpus(tmp_path / "cpu", *siblings, name=name)
    assert cores(frozenset(mask), cpus=sysfs, proc=proc, cgroups=root) == expected


def test_without_a_topology_every_hyperthread_is_a_core(tmp_path):
    found = cores(frozenset({0, 1, 2}), cpus=tmp_path, proc=tmp_path, cgroups=tmp_path)
    assert (found.physical, found.logical, found.machine_physical) == (3, 3, None)


@pytest.mark.launches
def test_host_py_runs_alone_on_another_host():
    file = Path(sys.modules["scalescope.host"].__file__)
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=file.read_text(), capture_output=True, text=True, check=True
    )
    assert Cores(**json.loads(answer.stdout)) == cores()


@pytest.mark.parametrize(
    ("asks", "elsewhere"),
    [
        (
            r"sched_getaffinity|cpu_count\(|cpu\.max|cfs_quota|/sys/devices/system/cpu",
            {"agent/recorder.py", "engines/group_live.py"},
        ),  # inside ranks
        (
            r"\"nvidia-smi\", ?\"-|CUDA_VISIBLE_DEVICES\"|device_count\(",
            {"jobs/machine.py", "jobs/rank_zero.py", "jobs/train_model.py"},
        ),
        (r"gpus(\(\)\))? or (host\.)?(cores\(\)|here)\.logical", {"jobs/plan.py"}),
    ],
    ids=["cores", "GPUs", "slots"],
)
def test_there_is_no_second_way_to_count(asks: str, elsewhere: set[str]):
    """Elsewhere: ranks import nothing of ours but the agent; torch counts what it can use; settle is given both."""
    package = Path(sys.modules["scalescope"].__file__).parent
    asking = {
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if re.search(asks, path.read_text())
    }
    assert asking == {"host.py", *elsewhere}


SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host=$1; shift
case $host in
    whole) exec sh -c "$*" ;;
    small) exec taskset --cpu-list %s sh -c "$*" ;;
    mute) exit 255 ;;
esac
"""


@pytest.mark.launches
def test_hosts_are_asked_where_ranks_run(tmp_path: Path):
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH % min(os.sched_getaffinity(0)))
    ssh.chmod(0o755)
    found, warnings = cores_of(("whole", "small", "mute"), str(ssh), sys.executable)
    assert found["whole"] == found["mute"] == cores()
    assert (found["small"].physical, found["small"].logical) == (1, 1)
    assert [warning[:24] for warning in warnings] == ["host mute did not say how"[:24]]


@pytest.fixture
def one_core() -> Iterator[Path]:
    """A real control group that pays for one core; a process enters it by writing its id there."""
    needs.root()
    version_1, version_2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    base = version_1 if (version_1 / "cgroup.procs").exists() else version_2
    folder = base / f"scalescope-test-{os.getpid()}"
    try:
        folder.mkdir()
        if (folder / "cpu.cfs_quota_us").exists():
            (folder / "cpu.cfs_quota_us").write_text("100000")
            (folder / "cpu.cfs_period_us").write_text("100000")
        else:
            (folder / "cpu.max").write_text("100000 100000")
    except OSError:
        pass
    try:
        is_limited = any((folder / name).exists() for name in ("cpu.cfs_quota_us", "cpu.max"))
        needs.need(is_limited, "a cpu control group that root may divide")
        yield folder / "cgroup.procs"
    finally:
        if folder.exists():
            folder.rmdir()


@pytest.mark.launches
def test_measure_obeys_a_real_quota(one_core: Path, tmp_path: Path):
    def inside(*words: str) -> subprocess.CompletedProcess[str]:
        enter = 'echo $$ > "$0"; exec "$@"'
        line = ["sh", "-c", enter, str(one_core), sys.executable, "-m", "scalescope", *words]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)

    one = inside("measure", "mlp", "--np", "1", "--dry-run")
    assert one.returncode == 0, one.stderr
    assert "OMP_NUM_THREADS=1 " in one.stdout
    two = inside("measure", "mlp", "--np", "1,2", "--dry-run")
    assert two.returncode == 2
    assert "--np 2: there is room for 1" in two.stderr


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,3", 2), (" 0 , GPU-8f, ", 2)])
def test_a_job_may_use_the_gpus_that_it_is_shown(visible: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus() == count
    assert slots("auto") == (count or cores().logical)
    assert slots("cpu") == cores().logical
