"""From a request to points and jobs, without starting anything."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.host import Cores
from scalescope.jobs.command import engine_of_script, fill_placeholders
from scalescope.jobs.own_ranks import places_ranks_elsewhere, starts_ranks_itself
from scalescope.jobs.plan import (
    AGENT_HOOK,
    ALLOCATOR,
    TRACED_ALLOCATOR,
    launcher_of,
    make_job,
    points,
    resolve,
    started_as_it_is,
)
from scalescope.options import parse_environment
from scalescope.records.job import Host, parse_hosts
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import MeasureRequest

MLP = WorkloadSpec(model="mlp")


def cores(physical: int, logical: int = 0) -> Cores:
    logical = logical or physical
    return Cores(physical, logical, float(logical), physical, logical)


def settled(physical: int = 8, logical: int = 0, gpus: int = 0, hosts_have: dict[str, Cores] | None = None, **request):
    here = cores(physical, logical)

    def ask(names: Sequence[str], ssh: str, python: str) -> tuple[dict[str, Cores], list[str]]:
        return {name: (hosts_have or {}).get(name, here) for name in names}, []

    return resolve(MeasureRequest(**request), Path("/out"), here=here, gpus=gpus, ask=ask)


def test_the_baseline_comes_first_and_each_point_once() -> None:
    settings = settled(workload=MLP, np=(1, 2), batch=(4, 8), engines=("ddp", "horovod"), knobs=("controller=gloo",))
    labels = [point.label for point in points(settings)]
    assert labels[:5] == ["none-np1-b4", "ddp-np1-b4", "horovod-np1-b4", "ddp-np2-b4", "horovod-np2-b4"]
    assert len(labels) == len(set(labels)) == 10


def test_strong_and_weak_scaling_share_their_points() -> None:
    settings = settled(workload=MLP, np=(1, 2), batch=(8,), scaling=("strong", "weak"))
    labels = [point.label for point in points(settings)]
    assert labels == ["none-np1-b8", "ddp-np1-b8", "ddp-np2-b4", "ddp-np2-b8"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"np": (2, 4)}, r"no baseline: add 1 \(--np 1,2,4\), or compare with the smallest, 2"),
        ({"np": (1, 3), "batch": (32,), "scaling": ("strong",)}, "take 30 or 33, or leave 3 out"),
        ({"np": (1, 4), "batch": (2,), "scaling": ("strong",)}, "take 4, or leave 4 out"),
        ({"steps": 4}, "fewer than warm-up needs"),
    ],
)
def test_contradictions_are_refused_before_anything_starts(changes: dict, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        points(settled(workload=MLP, **changes))


def test_the_smallest_may_be_the_baseline() -> None:
    assert {point.np for point in points(settled(workload=MLP, np=(2, 4), smallest=True))} == {2, 4}


def test_threads_are_equal_at_every_point() -> None:
    settings = settled(8, workload=MLP, np=(1, 2, 4))
    assert {point.threads_per_rank for point in points(settings)} == {2}
    assert settled(8, workload=MLP, np=(1, 2, 4), threads_per_rank=5).threads_per_rank == 5
    two_hosts = settled(8, workload=MLP, np=(1, 4), hosts=(Host("a", 2), Host("b", 2)))
    assert two_hosts.threads_per_rank == 4


def test_threads_come_from_physical_cores_and_slots_from_hyperthreads() -> None:
    cloud = settled(physical=1, logical=2, workload=MLP, np=(1, 2))
    assert [point.np for point in points(cloud)] == [1, 1, 2]
    assert cloud.threads_per_rank == 1
    assert settled(physical=4, logical=8, workload=MLP, np=(1, 2)).threads_per_rank == 2
    with pytest.raises(UsageError, match="--np 3: there is room for 2"):
        points(settled(physical=1, logical=2, workload=MLP, np=(1, 3)))
    assert points(settled(physical=1, logical=1, gpus=4, workload=MLP, np=(1, 4)))


def test_threads_fit_the_host_with_the_fewest_cores_per_rank() -> None:
    hosts = (Host("a", 2), Host("b", 2), Host("c", 2))
    have = {"a": cores(8), "b": cores(2), "c": cores(1)}
    assert settled(64, hosts_have=have, workload=MLP, np=(1, 4), hosts=hosts).threads_per_rank == 1
    assert settled(64, hosts_have=have, workload=MLP, np=(1, 3), hosts=hosts).threads_per_rank == 2
    assert settled(64, hosts_have=have, workload=MLP, np=(1, 2), hosts=hosts).threads_per_rank == 4


def test_more_processes_than_slots_need_a_word() -> None:
    with pytest.raises(UsageError, match=r"--np 9: there is room for 8.*--oversubscribe"):
        points(settled(workload=MLP, np=(9,)))
    assert points(settled(workload=MLP, np=(9,), oversubscribe=True))


@pytest.mark.parametrize(
    ("engine", "knobs", "launcher"),
    [
        ("ddp", (), "torchrun"),
        ("horovod", ("controller=mpi",), "mpirun"),
        ("horovod", ("controller=gloo",), "horovodrun"),
    ],
)
def test_an_engine_brings_its_launcher(engine: str, knobs: tuple[str, ...], launcher: str) -> None:
    settings = settled(workload=MLP, np=(1, 2), engines=(engine,), knobs=knobs)
    assert {launcher_of(settings, point).name for point in points(settings)} == {launcher}


def test_a_job_carries_the_agent_before_the_users_own_path(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    settings = settled(command=(sys.executable, "x.py"), np=(2,), steps=5)
    (point,) = points(settings)
    job = make_job(settings, point, Path("/out/launches/001"), "mark", 4000)
    assert job.env["PYTHONPATH"] == f"{AGENT_HOOK}:/mine"
    assert job.env["SCALESCOPE_STEPS"] == "5"
    settings = settled(command=(sys.executable, "x.py"), np=(2,), env={"PYTHONPATH": "/theirs"})
    assert make_job(settings, point, Path("/out/x"), "m", 1).env["PYTHONPATH"] == f"{AGENT_HOOK}:/theirs"
    assert job.cwd == str(Path.cwd()), "commands that a dry run shows for other hosts begin here"


def test_ranks_of_a_model_keep_freed_memory_as_in_its_profile_and_a_script_runs_as_it_is() -> None:
    settings = settled(workload=MLP, np=(2,), env={"MALLOC_TOP_PAD_": "1"})
    env = make_job(settings, points(settings)[0], Path("/out/x"), "m", 1).env
    assert {name: env[name] for name in ALLOCATOR} == {**ALLOCATOR, "MALLOC_TOP_PAD_": "1"}
    assert not TRACED_ALLOCATOR.items() <= env.items()
    traced = msgspec.structs.replace(settled(workload=MLP, np=(2,)), trace="5:10:5")
    assert TRACED_ALLOCATOR.items() <= make_job(traced, points(traced)[0], Path("/out/x"), "m", 1).env.items()
    settings = settled(command=(sys.executable, "x.py"), np=(2,))
    assert not ALLOCATOR.keys() & make_job(settings, points(settings)[0], Path("/out/x"), "m", 1).env.keys()


def test_placeholders_are_filled_and_other_braces_stay() -> None:
    values = {"np": 2, "batch": 8, "global_batch": 16, "run_dir": "/r", "launch": "001"}
    command = ("x{np}", "{batch}/{global_batch}", '{"json": {np}}', "{unknown}", "{launch}")
    assert fill_placeholders(command, values) == ("x2", "8/16", '{"json": 2}', "{unknown}", "001")
    with pytest.raises(UsageError, match="--batch"):
        fill_placeholders(("{batch}",), {**values, "batch": None})


def test_hosts_and_environment_as_people_write_them() -> None:
    assert parse_hosts("a:2, b-1.x:16") == (Host("a", 2), Host("b-1.x", 16))
    assert parse_hosts("") == ()
    for text in ("a", "a:0", "a:x", "a:1,a:2", "-oProxyCommand=x:1", "a b:2", "a:1,,b:1"):
        with pytest.raises(UsageError, match="--hosts"):
            parse_hosts(text)
    assert parse_environment(["A=1", "B=", "C=x=y"]) == {"A": "1", "B": "", "C": "x=y"}


@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("srun -n 2 python x.py", True),
        ("/usr/bin/mpirun -np 2 x", True),
        ("torchrun x.py", True),
        ("python -m torch.distributed.run x.py", True),
        ("python3.11 -u -m torch.distributed.launch x.py", True),
        ("env A=1 B=2 accelerate launch x.py", True),
        ("accelerate-launch x.py", True),
        ("python -m accelerate.commands.launch x.py", True),
        ("deepspeed --num_gpus 2 x.py", True),
        ("fabric run --devices 2 x.py", True),
        ("fabric --version", False),
        ("python -m x", False),
        ("python x.py", False),
        ("./run.sh", False),
    ],
)
def test_a_launch_line_is_recognised(line: str, own: bool) -> None:
    assert starts_ranks_itself(tuple(line.split())) == own


@pytest.mark.parametrize(
    ("line", "elsewhere"),
    [
        ("srun -n 2 python x.py", True),
        ("mpirun -np 2 python x.py", True),
        ("deepspeed x.py", True),
        ("torchrun --nproc-per-node 2 x.py", False),
        ("torchrun --nnodes 1 --nproc-per-node=2 x.py", False),
        ("torchrun --nnodes=1:2 --nproc-per-node=2 x.py", True),
        ("python -m torch.distributed.run --nnodes 2 x.py", True),
        ("python x.py", False),
        ("./run.sh", True),
    ],
)
def test_nothing_of_this_machine_holds_for_ranks_that_a_launch_line_places(line: str, elsewhere: bool) -> None:
    command = (*line.replace("python", sys.executable).split(), "{np}")
    assert places_ranks_elsewhere(command, "own") == elsewhere
    settings = settled(physical=1, logical=2, command=command, launcher="own", np=(1, 4), oversubscribe=not elsewhere)
    assert {point.threads_per_rank for point in points(settings)} == {None if elsewhere else 1}
    assert settings.named_hosts == elsewhere
    assert bool(settings.physical_cores) != elsewhere
    job = make_job(settings, points(settings)[-1], Path("/out/x"), "m", 1)
    assert "GLOO_SOCKET_IFNAME" not in job.env
    if not elsewhere:
        with pytest.raises(UsageError, match="--np 4: there is room for 2"):
            points(settled(physical=1, logical=2, command=command, launcher="own", np=(1, 4)))


def test_ranks_that_we_place_on_this_machine_talk_over_loopback() -> None:
    settings = settled(command=(sys.executable, "x.py"), np=(2,))
    (point,) = points(settings)
    assert make_job(settings, point, Path("/out/x"), "m", 1).env["GLOO_SOCKET_IFNAME"] == "lo"
    as_it_is = make_job(started_as_it_is(settings, "because"), point, Path("/out/x"), "m", 1)
    assert "GLOO_SOCKET_IFNAME" not in as_it_is.env


def test_a_command_that_starts_its_ranks_needs_the_np_placeholder() -> None:
    with pytest.raises(UsageError, match=r"put \{np\} where it takes their number"):
        settled(command=("torchrun", "--nproc-per-node=2", "x.py"), np=(1, 2))
    assert points(settled(command=("torchrun", "--nproc-per-node=2", "x.py"), np=(2,)))


SPAWNS = (
    ("import torch.multiprocessing as mp\nmp.spawn(f)", True),
    ("from torch.multiprocessing import spawn\nspawn(f)", True),
    ("import torch\ntorch.multiprocessing.start_processes(f)", True),
    ("from torch import multiprocessing\nmultiprocessing.spawn(f)", True),
    ("import ignite.distributed as idist\nidist.spawn('gloo', f)", True),
    ("import torch.multiprocessing as mp, os\nos.environ['RANK'] = '0'\nmp.spawn(f)", True),
    (
        "import torch.multiprocessing as mp, os\nrank = os.environ['RANK']\nmp.spawn(f)",
        False,
    ),  # takes it if there is one
    ("import torch.multiprocessing as mp\n# mp.spawn(f)", False),
    ("import torch.multiprocessing as mp\nmp.set_start_method('spawn')", False),
    ("import pexpect\npexpect.spawn('sh')", False),
    ("def broken(:", False),
)


@pytest.mark.parametrize(("source", "own"), SPAWNS)
def test_a_script_that_spawns_its_ranks_is_recognised(tmp_path: Path, source: str, own: bool) -> None:
    script = tmp_path / "x.py"
    script.write_text(source)
    assert starts_ranks_itself((sys.executable, "-u", str(script), "--epochs", "2")) == own
    settings = settled(command=(sys.executable, str(script)), np=(2,))
    assert settings.launchers == {"ddp": "own" if own else "torchrun"}
    asked = settled(command=(sys.executable, str(script)), np=(2,), launcher="torchrun")
    assert asked.launchers == {"ddp": "torchrun"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"np": (2,)}, "--np 1"),
        ({"launcher": "mpirun"}, "leave --launcher mpirun out"),
        ({"engines": ("ddp", "none")}, "the baseline anyway"),
    ],
)
def test_without_an_engine_a_command_is_one_plain_process(changes: dict, complaint: str) -> None:
    plain = {"command": (sys.executable, "x.py"), "np": (1,), "engines": ("none",)}
    settings = settled(**plain)
    (point,) = points(settings)
    assert (point.engine, launcher_of(settings, point).name) == ("none", "own")
    with pytest.raises(UsageError, match=complaint):
        settled(**{**plain, **changes})
    with pytest.raises(UsageError, match="the baseline anyway"):
        settled(workload=MLP, np=(1,), engines=("none",))


def test_a_scripts_engine_is_read_from_its_imports(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    for text, engine in (
        ("import horovod.torch as hvd", "horovod"),
        ("import os, horovod.torch as hvd", "horovod"),
        ("  from horovod import torch", "horovod"),
        ("# import horovod\nimport torch", "ddp"),
        ("print('horovod')", "ddp"),
    ):
        script.write_text(text)
        assert engine_of_script(("python", str(script), "--data", str(tmp_path))) == engine
