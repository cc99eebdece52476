"""What is settled for all points, and what one launch of a point gets: jobs and tasks."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.host import Cores
from scalescope.jobs import plan
from scalescope.jobs.hosts import Allocation, expecting
from scalescope.jobs.plan import CARRIED_TO_HOSTS, Settings, launcher_of, make_job, make_task, nodes_of, points, resolve
from scalescope.records.job import Host, Knobs, fewest_nodes
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Point

MLP = WorkloadSpec(model="mlp")
HERE = Cores(4, 8, 8.0, 4, 8)
FAR = Cores(6, 12, 12.0, 6, 12)
HOSTS = (Host("a", 2), Host("b", 3))
HOROVODRUN: dict[str, Any] = {"launcher": "horovodrun", "engines": ("horovod",), "knobs": ("controller=gloo",)}
asked: list[tuple[tuple[str, ...], str, str]] = []


def ask(names: Sequence[str], reach: str, python: str) -> tuple[dict[str, Cores], list[str]]:
    asked.append((tuple(names), reach, python))
    return dict.fromkeys(names, FAR), ["b was silent"]


def settled(gpus: int = 0, **fields: Any) -> Settings:
    asked.clear()
    model: dict[str, Any] = {} if "command" in fields else {"workload": MLP}
    request = MeasureRequest(**model, **fields)
    return resolve(request, Path("/out"), here=HERE, gpus=gpus, ask=ask)


def job(settings: Settings, **changes: Any) -> Any:
    return make_job(msgspec.structs.replace(settings, **changes), points(settings)[-1], Path("/out/f"), "mark", 4000)


def test_no_host_is_asked_for_cores_on_one_machine() -> None:
    found = settled(np=(1, 2))
    assert (found.slots, found.physical_cores, found.threads_per_rank) == (8, {"": 4}, 2)
    assert (found.named_hosts, found.hosts, found.env, found.warnings, asked) == (False, (), {}, (), [])
    assert (found.engines, found.launchers, found.folder) == (("ddp",), {"ddp": "torchrun"}, "/out")
    assert found.python == sys.executable


def test_with_gpus_there_is_a_slot_for_each_and_cores_do_not_matter() -> None:
    found = settled(gpus=3, np=(1, 2))
    assert (found.slots, found.physical_cores, found.threads_per_rank) == (3, {}, 2)


def test_more_ranks_than_cores_have_one_thread_each() -> None:
    assert settled(np=(1, 8)).threads_per_rank == 1
    assert settled(np=(1, 4)).threads_per_rank == 1
    assert settled(np=(1, 3)).threads_per_rank == 1
    assert settled(np=(1,)).threads_per_rank == 4


def test_hosts_are_asked_for_their_cores_and_get_paths_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CARRIED_TO_HOSTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    found = settled(np=(1, 3), hosts=HOSTS, ssh="myssh")
    assert asked == [(("a", "b"), "myssh", sys.executable)]
    assert (found.slots, found.named_hosts, found.env) == (5, True, {"CONDA_PREFIX": "/conda"})
    assert (found.physical_cores, found.threads_per_rank) == ({"a": 6, "b": 6}, 3)
    assert found.warnings == ("b was silent",)
    assert settled(np=(2,), hosts=HOSTS).physical_cores == {"a": 6}
    crowded = settled(np=(7,), hosts=HOSTS, oversubscribe=True)
    assert crowded.threads_per_rank == 1


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({**HOROVODRUN, "ssh": "/bin/myssh"}, "horovodrun reaches hosts with ssh alone: leave --ssh out"),
        ({"command": ("torchrun", "x.py", "{np}")}, "places its ranks itself: name hosts there and leave --hosts out"),
    ],
)
def test_hosts_need_a_launcher_that_reaches_them(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        settled(np=(1, 2), hosts=HOSTS, **fields)


def test_horovodrun_reaches_hosts_with_ssh_and_starts_here_with_any() -> None:
    for ssh in ("ssh", "/usr/bin/ssh"):
        assert settled(np=(1, 2), hosts=HOSTS, ssh=ssh, **HOROVODRUN).launchers == {"horovod": "horovodrun"}
    assert settled(np=(1, 2), ssh="myssh", **HOROVODRUN).hosts == ()
    assert settled(np=(1, 2), hosts=HOSTS, ssh="myssh").hosts == HOSTS


def slurm_gave(address: str) -> Any:
    """Two nodes of 4 and 9 CPUs."""
    cores = {"n1": 4, "n2": 9}

    def allocation(per_node: int | None = None) -> Allocation:
        return Allocation(tuple(Host(name, per_node or count) for name, count in cores.items()), address, cores)

    return allocation


def in_slurm(monkeypatch: pytest.MonkeyPatch, address: str = "10.0.0.1") -> None:
    monkeypatch.setattr(plan, "slurm_allocation", slurm_gave(address))


def test_slurm_gives_hosts_an_address_and_not_more_cores_than_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    in_slurm(monkeypatch)
    found = settled(np=(1, 6), launcher="srun")
    assert (found.hosts, found.slots) == ((Host("n1", 4), Host("n2", 9)), 13)
    assert found.env["MASTER_ADDR"] == "10.0.0.1"
    assert (found.physical_cores, found.threads_per_rank) == ({"n1": 4, "n2": 6}, 1)
    assert asked == [(("n1", "n2"), "srun", sys.executable)]
    named = settled(np=(1, 2), launcher="srun", hosts=HOSTS)
    assert (named.hosts, named.physical_cores) == (HOSTS, {"a": 2})


def test_ranks_on_a_node_are_as_many_as_asked_and_threads_are_equal_in_every_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_slurm(monkeypatch)
    found = settled(np=(2, 4), launcher="srun-torchrun", per_node=2, smallest=True)
    assert (found.hosts, found.threads_per_rank) == ((Host("n1", 2), Host("n2", 2)), 2)
    assert nodes_of(found, 4) == (2, 2)
    assert settled(np=(1,), launcher="srun", per_node=2).threads_per_rank == 2
    assert settled(np=(1,), launcher="srun").threads_per_rank == 4


def test_a_job_that_is_not_submitted_yet_is_planned_without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with expecting(3, 2):
        found = settled(np=(1, 6), launcher="srun", per_node=2)
        assert (len(found.hosts), found.slots) == (3, 6)
        line = job(settled(command=SRUN_LINE, np=(5,), per_node=2)).command
        assert line[:5] == ("srun", "-N", "3", "-n", "5")
    with pytest.raises(UsageError, match="needs a Slurm allocation"):
        settled(np=(1,), launcher="srun")


def test_a_slurm_on_this_machine_is_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    in_slurm(monkeypatch, "127.0.0.1")
    found = settled(np=(1, 2), launcher="srun")
    assert (found.named_hosts, asked, found.env) == (False, [], {"MASTER_ADDR": "127.0.0.1"})
    assert found.physical_cores == {"n1": 4}


def test_knobs_of_several_engines_go_to_the_one_that_has_them() -> None:
    engines = ("ddp", "horovod")
    found = settled(np=(1, 2), engines=engines, knobs=("controller=gloo", "bucket_cap_mb=7"))
    assert found.knobs["ddp"].values == {"bucket_cap_mb": 7}
    assert found.knobs["horovod"].values == {"controller": "gloo"}
    assert found.launchers == {"ddp": "torchrun", "horovod": "horovodrun"}
    with pytest.raises(UsageError, match="controller"):
        settled(np=(1, 2), engines=("ddp",), knobs=("controller=gloo",))


def test_a_baseline_is_started_like_the_first_engines_ranks() -> None:
    found = settled(np=(1, 2), engines=("horovod", "ddp"), knobs=("controller=gloo",))
    alone = Point(engine="none", np=1, batch=32, threads_per_rank=1)
    assert launcher_of(found, alone).name == "horovodrun"
    made = make_job(found, alone, Path("/out/f"), "m", 1)
    assert made.knobs == found.knobs["horovod"]


def test_a_batch_that_the_command_uses_must_be_given() -> None:
    with pytest.raises(UsageError, match=r"the command uses \{batch\} or \{global_batch\}: add --batch"):
        points(settled(command=(sys.executable, "x.py", "{global_batch}")))
    (alone, both) = points(settled(command=(sys.executable, "x.py", "{batch}"), batch=(8,)))
    assert [alone.label, both.label] == ["np1-b8", "np2-b8"]
    assert [each.batch for each in points(settled(command=(sys.executable, "x.py")))] == [None, None]
    assert {each.batch for each in points(settled())} == {32}


def test_a_batch_that_cannot_be_shared_names_the_next_ones_that_can() -> None:
    found = points(settled(np=(1, 4), batch=(8,), scaling=("strong",)))
    assert [(each.engine, each.batch) for each in found] == [("none", 8), ("ddp", 8), ("ddp", 2)]
    script = settled(command=(sys.executable, "x.py"), scaling=("strong",))
    assert [each.batch for each in points(script)] == [None, None]
    with pytest.raises(UsageError, match=r"--batch 10 cannot be shared by 4 processes: .* take 8 or 12, or leave 4"):
        points(settled(np=(1, 4), batch=(10,), scaling=("strong",)))


def test_as_many_processes_as_slots_are_allowed() -> None:
    assert points(settled(np=(1, 8)))[-1].np == 8
    with pytest.raises(UsageError, match="--np 9: there is room for 8"):
        points(settled(np=(1, 9)))


def test_a_script_gets_the_environment_of_the_agent() -> None:
    found = settled(
        command=(sys.executable, "x.py", "{np}", "{run_dir}", "{launch}"), np=(2,), knobs=("bucket_cap_mb=7",)
    )
    made = job(found, since_ns=17, trace="5-9", cwd="/there")
    assert made.command == (sys.executable, "x.py", "2", "/out/f", "f")
    assert made.env["SCALESCOPE_SINCE_NS"] == "17"
    assert made.env["SCALESCOPE_STEPS"] == ""
    assert json.loads(made.env["SCALESCOPE_KNOBS"]) == {"bucket_cap_mb": 7}
    assert (made.env["SCALESCOPE_TRACE"], made.cwd, made.port, made.launch) == ("5-9", "/there", 4000, "mark")
    plain = job(settled(command=(sys.executable, "x.py"), np=(2,)))
    assert not {"SCALESCOPE_KNOBS", "SCALESCOPE_TRACE"} & set(plain.env)


def test_a_model_gets_its_task_and_the_users_variables_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    made = job(settled(np=(2,), env={"GLOO_SOCKET_IFNAME": "eth0"}, ssh="s", launcher_args=("-v",), oversubscribe=True))
    assert made.command == (sys.executable, "-m", "scalescope.jobs.train_model", "/out/f/task.json")
    assert (made.env["GLOO_SOCKET_IFNAME"], made.ssh, made.launcher_args) == ("eth0", "s", ("-v",))
    assert (made.env["PYTHONPATH"], made.oversubscribe, made.cwd) == (str(plan.AGENT_HOOK), True, os.getcwd())  # noqa: PTH109
    assert not [name for name in made.env if name.startswith("SCALESCOPE_")]


def test_a_launch_line_gets_its_knobs_and_nothing_else() -> None:
    found = settled(command=("horovodrun", "x.py"), np=(2,), engines=("horovod",), knobs=("cycle_time_ms=3",))
    made = job(found)
    assert {name: value for name, value in made.env.items() if name.startswith("HOROVOD_")} == {
        "HOROVOD_CYCLE_TIME": "3"
    }


def test_a_task_holds_model_engine_knobs_and_steps() -> None:
    found = settled(np=(1, 2), batch=(8,), knobs=("bucket_cap_mb=7",), device="cpu")
    alone, _, both = points(found)
    task = make_task(found, both, 30)
    assert (task.workload, task.engine, task.knobs, task.batch) == (MLP, "ddp", {"bucket_cap_mb": 7}, 8)
    assert (task.steps, task.device, task.interleaved) == (30, "cpu", None)
    assert (make_task(found, alone, 5).engine, make_task(found, alone, 5).knobs) == ("none", {})


def test_interleaved_launches_share_the_budget() -> None:
    found = settled(np=(4,), batch=(8, 16), quick=True, launches=3)
    turns = make_task(found, points(found)[-1], 5).interleaved
    assert turns is not None
    assert (turns.precision, turns.seconds) == (0.05, None)
    limited = settled(np=(4,), batch=(8, 16), quick=True, launches=3, budget_s=60.0)
    turns = make_task(limited, points(limited)[-1], 5).interleaved
    assert turns is not None
    assert turns.seconds == 10.0


def test_knobs_without_an_engine_are_none() -> None:
    found = settled(np=(1, 2))
    assert found.knobs == {"ddp": Knobs(engine="ddp")}
    assert job(found).knobs == Knobs(engine="ddp")


@pytest.fixture
def allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four nodes of two CPUs, of which Slurm says no more."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in {"NODELIST": "n[1-4]", "NUM_NODES": "4", "CPUS_PER_NODE": "2(x4)"}.items():
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)


SRUN_LINE = ("srun", "-N", "{nodes}", "-n", "{np}", "--ntasks-per-node", "{per_node}", "x")


@pytest.mark.usefixtures("allocation")
@pytest.mark.parametrize(
    ("np", "nodes", "per_node"), [(1, 1, 1), (2, 1, 2), (3, 2, 2), (5, 3, 2), (8, 4, 2), (10, 4, 3)]
)
def test_a_launch_line_gets_the_fewest_nodes_of_its_allocation(np: int, nodes: int, per_node: int) -> None:
    line = job(settled(command=SRUN_LINE, np=(np,))).command
    assert (line[2], line[4], line[6]) == (str(nodes), str(np), str(per_node))


@pytest.mark.parametrize(
    ("np", "slots", "expected"),
    [(5, (4, 4), (2, 3)), (6, (4, 2), (2, 4)), (6, (2, 4), (2, 4)), (3, (1, 1, 4), (1, 3)), (9, (4, 4), (2, 5))],
)
def test_ranks_are_spread_evenly_over_the_fewest_nodes_as_far_as_small_nodes_allow(
    np: int, slots: tuple[int, ...], expected: tuple[int, int]
) -> None:
    assert fewest_nodes(np, slots) == expected


def test_nodes_of_hosts_and_of_this_machine() -> None:
    script = (sys.executable, "x.py", "{nodes}", "{per_node}")
    assert job(settled(command=script, np=(2,))).command[2:] == ("1", "2")
    assert job(settled(command=(*script, "{np}"), np=(3,), hosts=HOSTS)).command[2:] == ("2", "2", "3")


@pytest.mark.usefixtures("allocation")
def test_nodes_and_ranks_of_each_say_how_many_ranks_there_are_unless_that_is_uneven() -> None:
    line = ("srun", "-N", "{nodes}", "torchrun", "--nproc-per-node", "{per_node}", "x.py")
    assert len(points(settled(command=line, np=(1, 2, 4)))) == 3
    with pytest.raises(UsageError, match=r"--np 3 does not fill 2 nodes evenly, .* alone says 4: tell .* {np}"):
        points(settled(command=line, np=(1, 3)))


def test_nodes_outside_an_allocation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(UsageError, match=r"{nodes} and {per_node} come from a Slurm allocation: run this inside one"):
        settled(command=SRUN_LINE, np=(2,))
