"""What is asked of the surroundings of ranks: other hosts, Slurm, ports, Pythons; and values of --env on disk."""

import json
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scalescope import host
from scalescope.engines import find_engine
from scalescope.engines.horovod import HOROVOD
from scalescope.errors import UsageError
from scalescope.jobs import hosts, interpreter
from scalescope.jobs.hosts import check_port, cores_of, free_port, slurm_allocation
from scalescope.jobs.interpreter import has_module, torch_has_cuda, torch_version, why_not_live
from scalescope.jobs.masking import VALUES, load_plan, save_plan, shown_commands
from scalescope.launchers import find_launcher
from scalescope.records.job import Host, Job, Knobs
from scalescope.records.request import MeasureRequest, Plan

Answers = Callable[[tuple[str, ...], dict[str, Any]], subprocess.CompletedProcess[str]]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], list[tuple[str, ...]]]:
    """Let programs answer like this; the words of those that were run."""

    def install(answers: Answers) -> list[tuple[str, ...]]:
        asked: list[tuple[str, ...]] = []

        def run(words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
            asked.append(tuple(words))
            return answers(tuple(words), options)

        monkeypatch.setattr(subprocess, "run", run)
        return asked

    return install


def said(code: int = 0, out: str = "", err: str = "") -> Answers:
    return lambda words, _: subprocess.CompletedProcess(words, code, out, err)


def silent(words: tuple[str, ...], _: object) -> subprocess.CompletedProcess[str]:
    raise subprocess.TimeoutExpired(words, 30)


def plan(**env: str) -> Plan:
    return Plan(request=MeasureRequest(command=("x",), env=env), cwd="/", since_ns=7)


def test_values_are_kept_next_to_the_plan_for_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / f"{VALUES}.partial").write_text("left by a kill")
    save_plan(plan(TOKEN="hunter2", SCALESCOPE_X="1"), tmp_path)
    assert "hunter2" not in (tmp_path / "plan.json").read_text()
    assert stat.S_IMODE((tmp_path / VALUES).stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [VALUES, "plan.json"]
    assert load_plan(tmp_path, Plan) == plan(TOKEN="hunter2", SCALESCOPE_X="1")


def test_without_values_to_hide_there_is_no_file_of_them(tmp_path: Path) -> None:
    save_plan(plan(SCALESCOPE_X="1"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert load_plan(tmp_path, Plan) == plan(SCALESCOPE_X="1")


@pytest.mark.parametrize("content", [None, b"{", b'{"OTHER": "x"}', b"\xff"])
def test_values_that_are_gone_are_named(tmp_path: Path, content: bytes | None) -> None:
    save_plan(plan(TOKEN="a", KEY="b"), tmp_path)
    (tmp_path / VALUES).unlink()
    if content is not None:
        (tmp_path / VALUES).write_bytes(content)
    with pytest.raises(UsageError, match=r"env\.json does not give the values of --env TOKEN, KEY: put it back"):
        load_plan(tmp_path, Plan)


def test_only_variables_that_a_job_has_are_shown() -> None:
    job = Job(
        command=("x",),
        np=1,
        knobs=Knobs(engine="ddp"),
        folder="/f",
        launch="m",
        threads_per_rank=None,
        env={"A": "1", "B": "2"},
    )
    (line,) = shown_commands(find_launcher("own"), job, {"A": "1", "C": "3"})
    assert "'A=***' B=2" in line
    assert "C=" not in line


CORES = {"physical": 3, "logical": 6, "allowed": 6.0, "machine_physical": 3, "machine_logical": 6}


@pytest.fixture(autouse=True)
def forget() -> None:
    hosts._ask_host.cache_clear()


def test_hosts_tell_their_cores_and_those_that_do_not_are_like_this_one(answer: Any) -> None:
    text = f"Welcome\n{json.dumps(CORES)}\n"
    replies = {"a": said(0, text), "b": said(1, text), "c": said(0, "nonsense"), "d": said(), "e": said(0, '{"x": 1}')}
    asked = answer(lambda words, options: replies[words[5]](words, options))
    found, warnings = cores_of(tuple(replies), "myssh", "/a b/python")
    here = host.cores()
    assert found == {"a": host.Cores(**CORES), **dict.fromkeys("bcde", here)}  # type: ignore[arg-type]
    assert [warning.split(" did not say")[0] for warning in warnings] == [f"host {name}" for name in "bcde"]
    assert f"taken to have {here.physical} as this machine: set --threads-per-rank" in warnings[0]
    assert {words[-1] for words in asked} == {"'/a b/python' -"}


def test_nodes_are_asked_through_srun(answer: Any) -> None:
    inputs: list[str] = []

    def reply(words: tuple[str, ...], options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        inputs.append(options["input"])
        assert options["timeout"] == 40
        return said(0, json.dumps(CORES))(words, options)

    asked = answer(reply)
    assert cores_of(["n1"], "srun", "python") == ({"n1": host.Cores(**CORES)}, [])  # type: ignore[arg-type]
    assert asked == [("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n1", "python", "-")]
    assert inputs == [Path(host.__file__).read_text()]
    answer(silent)
    found, warnings = cores_of(["n2"], "srun", "python")
    assert (found["n2"], len(warnings)) == (host.cores(), 1)


def test_a_module_is_there_when_the_interpreter_says_so(answer: Any) -> None:
    asked = answer(said(0))
    assert has_module("mypython", "horovod")
    assert asked[0][:2] == ("mypython", "-c")
    assert "'horovod'" in asked[0][2]
    answer(said(1))
    assert not has_module("mypython", "horovod")


@pytest.mark.parametrize("code", [0, 1])
def test_built_with_asks_horovod_in_the_interpreter_of_the_ranks(
    answer: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/bin/mpirun")
    asked = answer(said(code))
    assert HOROVOD.built_with("p", "nccl") is (code == 0)
    assert HOROVOD.built_with("p", "mpi") is (code == 0)
    assert ["nccl_built" in asked[0][2], "mpi_built" in asked[1][2]] == [True, True]
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert not HOROVOD.built_with("p", "mpi")
    assert len(asked) == 2


def test_torch_is_known_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_version() == version("torch")
    monkeypatch.setattr(interpreter, "version", lambda _: version("no-such-package"))
    assert torch_version() == ""
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert not torch_has_cuda()
    (tmp_path / "torch" / "lib" / "libtorch_cuda.so").touch()
    assert torch_has_cuda()


def test_an_engine_says_in_an_interpreter_why_its_knobs_cannot_change(answer: Any) -> None:
    horovod = find_engine("horovod")
    asked = answer(said(0, "warning\nits symbols are hidden\n"))
    assert why_not_live("p", horovod) == "its symbols are hidden"
    assert f"{horovod.live_check.rpartition('.')[2]}.py" in asked[0][2]
    answer(said(0, "\n"))
    assert why_not_live("p", horovod) == ""
    answer(said(-11, "x"))
    assert why_not_live("p", horovod) == "its check failed with exit code -11"
    asked = answer(said(1))
    assert (why_not_live("p", find_engine("none")), asked) == ("", [])


def test_a_port_that_somebody_listens_on_is_taken() -> None:
    port = free_port()
    assert 1024 <= port < 65536
    check_port(port)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {taken} is taken: choose another with --port"):
            check_port(taken)
    check_port(taken)
    with pytest.raises(UsageError, match="port 70000 is taken"):
        check_port(70000)


def test_an_allocation_is_read_from_slurm(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "4,2")
    shown = {"hostnames": "n1\nn2\nn3\nn4\n", "node": "NodeName=n1 NodeAddr=10.0.0.1 NodeHostName=n1"}
    asked = answer(lambda words, options: said(0, shown[words[2]])(words, options))
    hosts = (Host("n1", 4), Host("n2", 2), Host("n3", 2), Host("n4", 2))
    assert slurm_allocation() == (hosts, "10.0.0.1", {"n1": 4, "n2": 2, "n3": 2, "n4": 2})
    assert asked == [("scontrol", "show", "hostnames", "n[1-4]"), ("scontrol", "show", "node", "n1")]
    assert slurm_allocation(per_node=1).hosts == tuple(Host(name, 1) for name in ("n1", "n2", "n3", "n4"))
    monkeypatch.setenv("SLURM_GPUS_PER_NODE", "3")
    assert slurm_allocation().hosts[3] == Host("n4", 3)
    monkeypatch.delenv("SLURM_GPUS_PER_NODE")
    shown["node"] = "NodeName=n1"
    monkeypatch.delenv("SLURM_JOB_CPUS_PER_NODE")
    assert slurm_allocation()[:2] == (tuple(Host(name, 1) for name in ("n1", "n2", "n3", "n4")), "n1")


def test_a_missing_or_failing_slurm_is_a_usage_error(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(UsageError, match="srun needs a Slurm allocation: run this inside one"):
        slurm_allocation()
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    answer(silent)
    with pytest.raises(UsageError, match=r"scontrol failed \(scontrol timed out after 40 s\)"):
        slurm_allocation()
    answer(said(1, "", "no such node\n"))
    with pytest.raises(UsageError, match=r"scontrol failed \(no such node\): check"):
        slurm_allocation()


def test_a_plan_is_not_changed_by_being_saved(tmp_path: Path) -> None:
    made = plan(TOKEN="a")
    save_plan(made, tmp_path)
    assert made.request.env == {"TOKEN": "a"}
    assert msgspec.json.decode((tmp_path / "plan.json").read_bytes())["request"]["env"] == {"TOKEN": "***"}
