"""What is refused of a request, each with its own words, and what the edges of it mean."""

import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import UsageError
from scalescope.jobs.command import engine_of_script, interpreter_of, uses_placeholder
from scalescope.jobs.own_ranks import starts_ranks_itself
from scalescope.jobs.request import check_baseline, check_modes
from scalescope.options import parse_environment
from scalescope.records.job import Host, parse_hosts
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import MeasureRequest

MLP = {"workload": WorkloadSpec(model="mlp")}
SCRIPT = {"command": ("python", "x.py")}
BOTH = ("strong", "weak")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({**MLP, "engines": ("none",), "np": (1,)}, "--engine takes ddp, horovod, fsdp2 or several; the run without"),
        ({**SCRIPT, "engines": ("none", "ddp"), "np": (1,)}, "the run without an engine is the baseline anyway"),
        ({**SCRIPT, "engines": ("none",), "np": (1, 2)}, "in one process: use --np 1, or --launcher own"),
        ({**SCRIPT, "engines": ("none",), "np": (1,), "launcher": "srun"}, "as it is: leave --launcher srun out"),
        ({**SCRIPT, "engines": ("ddp", "horovod")}, "a script has one engine: measure each engine's script"),
        ({**MLP, "launcher": "own"}, "--launcher own needs your launch line after --"),
        (
            {"command": ("torchrun", "x.py"), "launcher": "mpirun"},
            "starts its ranks itself: leave --launcher mpirun out",
        ),
        ({**SCRIPT, "trace": True, "pattern": "x"}, "--trace needs ranks that train with torch"),
        ({**SCRIPT, "scaling": BOTH}, "--scaling both needs --batch and {batch} in the command"),
        ({**MLP, "np": ()}, "numbers of processes and batch sizes are 1 or more"),
        ({**MLP, "np": (1, 0)}, "numbers of processes and batch sizes are 1 or more"),
        ({**MLP, "batch": (8, 0)}, "numbers of processes and batch sizes are 1 or more"),
        ({**MLP, "steps": 4}, "--steps 4 is fewer than warm-up needs: give at least 5, better 30"),
        ({**MLP, "steps": 0}, "--steps 0 is fewer than warm-up needs"),
    ],
)
def test_contradicting_options_are_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as told:
        check_modes(MeasureRequest(**fields))
    assert complaint in str(told.value)


@pytest.mark.parametrize(
    "fields",
    [
        {**SCRIPT, "engines": ("none",), "np": (1,)},
        {**SCRIPT, "engines": ("none",), "np": (1,), "launcher": "own"},
        {**MLP, "engines": ("ddp", "horovod")},
        {**SCRIPT, "engines": ("ddp",), "launcher": "own"},
        {"command": ("torchrun", "x.py"), "launcher": "own"},
        {"command": ("torchrun", "x.py")},
        {**SCRIPT, "launcher": "mpirun"},
        {**MLP, "scaling": BOTH},
        {**MLP, "trace": True},
        {**SCRIPT, "pattern": "x"},
        {**SCRIPT, "scaling": BOTH, "batch": (8,)},
        {**SCRIPT, "scaling": ("strong",)},
        {**MLP, "steps": 5, "np": (1,), "batch": (1,)},
    ],
)
def test_compatible_options_are_accepted(fields: dict[str, Any]) -> None:
    check_modes(MeasureRequest(**fields))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"np": (4, 2)}, r"--np 4,2 has no baseline: add 1 \(--np 1,4,2\), or compare with the smallest, 2,"),
    ],
)
def test_speedups_need_a_baseline(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        check_baseline(MeasureRequest(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"np": (2,)},
        {"np": (1,)},
        {"np": (2, 1)},
        {"np": (2, 4), "smallest": True},
    ],
)
def test_a_baseline_or_a_single_size_is_accepted(fields: dict[str, Any]) -> None:
    check_baseline(MeasureRequest(**fields))


@pytest.mark.parametrize(("text", "bad"), [("a:1,,b:1", ""), ("a:2,b", "b"), ("a:1,b:0", "b:0"), ("-a:1", "-a:1")])
def test_a_host_that_cannot_be_read_is_named(text: str, bad: str) -> None:
    with pytest.raises(UsageError, match=rf"--hosts takes name:slots pairs such as a:2,b:2, not '{bad}'"):
        parse_hosts(text)


def test_hosts_may_be_numbers_and_are_named_once() -> None:
    assert parse_hosts("[fe80::1]:1, 10.0.0.1:2") == (Host("[fe80::1]", 1), Host("10.0.0.1", 2))
    with pytest.raises(UsageError, match="--hosts names a host twice: add up its slots"):
        parse_hosts("a:1,b:1,a:2")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("1A=x", "--env: '1A' cannot name a variable"), ("A=***", r"--env A=\*\*\* is how a value is shown")],
)
def test_a_variable_needs_a_name_and_a_value_of_its_own(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_environment(["B=1", text])


def test_a_placeholder_is_used_in_any_word_under_any_name() -> None:
    command = ("x", "--n={np}", "{global_batch}")
    assert uses_placeholder(command, "np")
    assert uses_placeholder(command, "batch", "global_batch")
    assert not uses_placeholder(command, "batch")
    assert not uses_placeholder((), "np")


def test_the_python_of_a_command_is_the_one_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert interpreter_of(("./python3", "x.py"), "/own") == str(tmp_path / "python3")
    assert interpreter_of(("./run.sh",), "/own") == "/own"
    assert interpreter_of((sys.executable, "x.py"), "/own") == sys.executable
    with pytest.raises(UsageError, match=r"there is no program '/none/python3\.99': check the command's first word"):
        interpreter_of(("/none/python3.99",), "/own")


def test_a_shell_line_may_be_longer_than_any_name_of_a_file() -> None:
    line = f"cd {'x' * 300} && python train.py"
    assert engine_of_script(("sh", "-c", line)) == "ddp"
    assert not starts_ranks_itself(("python", line))


def test_only_python_files_of_a_sensible_size_tell_their_engine(tmp_path: Path) -> None:
    text, folder, large = tmp_path / "x.txt", tmp_path / "folder.py", tmp_path / "large.py"
    source = "import horovod.torch\n"
    text.write_text(source)
    folder.mkdir()
    assert engine_of_script(("python", str(text), str(folder), "none.py")) == "ddp"
    large.write_text(source + "#" * (10_000_000 - len(source) - 1))
    assert engine_of_script((str(large),)) == "horovod"
    with open(large, "a") as file:
        file.write("#")
    assert engine_of_script((str(large),)) == "ddp"
