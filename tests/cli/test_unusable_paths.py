"""Paths that the file system refuses: one line, exit code 2, wherever a path can be named."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scalescope as api
from command_line import CommandLine
from privileges import without_override
from scalescope.errors import UsageError
from scalescope.named_paths import named_paths

PYTHON = sys.executable  # a bare Debian has no python
DATA = Path(__file__).parents[1] / "data"
TRACE = str(DATA / "traces" / "kineto" / "gloo_small" / "rank0.json.gz")
TABLE = str(Path(__file__).parents[2] / "examples" / "data" / "lab11.csv")

ANY = [
    "explain {}",
    f"explain {TABLE} -o {{}}",
    f"explain {TRACE} --estimate {{}}",
    f"explain {TRACE} --export {{}}",
    "explain {}.py:make",
    "explain mlp -o {}",
    f"explain -- {PYTHON} {{}}.py",
    "report {}",
    f"report {TABLE} -o {{}}",
    f"report {TABLE} {{}}",
    f"compare {TABLE} {{}}",
    f"compare {{}} {TABLE}",
    "estimate {}.py:make",
    "estimate mlp -o {}",
    "estimate mlp --cluster {}",
    "estimate mlp --profile {}",
    "probe -o {}",
    "measure {}.py:make",
    "measure mlp -o {}",
    "tune mlp --log-file={}",
    "measure mlp --loss {}.py:loss",
    "measure --resume {}",
    f"measure -- {PYTHON} {{}}.py",
    "tune {}.py:make",
    "tune mlp -o {}",
    "tune mlp --start-from {}",
    "tune mlp --config-file {}",
    "tune mlp --log-file {}",
    "tune --resume {}",
    f"tune -- {PYTHON} {{}}.py",
    "study {}",
    "study {}.py:make",
    "study mlp -o {}",
    "study --resume {}",
    f"study -- {PYTHON} {{}}.py",
]
FOLDERS = [line for line in ANY if not line.endswith((".py", ":make", ":loss")) and " -o " not in line]
WRITTEN = [f"report {TABLE} --{option} {{}}" for option in ("figures", "tables", "proposal")]


@pytest.fixture
def locked(scalescope: CommandLine) -> Iterator[Path]:
    """A folder that may be neither listed nor searched, even by root."""
    folder = scalescope.folder / "locked"
    folder.mkdir()
    (folder / "inside.py").write_text("")
    folder.chmod(0)
    with without_override():
        yield folder
    folder.chmod(0o700)


def refused(scalescope: CommandLine, line: str, path: str) -> str:
    before = set(scalescope.folder.iterdir())
    said = scalescope.in_this_process(*line.format(path).split(), code=2)
    assert said.stdout == ""
    assert said.stderr.startswith("scalescope: ")
    assert said.stderr.count("\n") == 1, said.stderr
    assert set(scalescope.folder.iterdir()) == before or "--proposal" in line  # there the page is written first
    return said.stderr


@pytest.mark.parametrize("line", [*ANY, *WRITTEN])
def test_name_that_is_too_long_is_one_line(scalescope: CommandLine, line: str) -> None:
    told = refused(scalescope, line, "x" * 300)
    assert "xxx" in told
    assert "too long" in told.lower() or " -- " in line  # a script that cannot be found may just be called missing


@pytest.mark.parametrize("line", [*ANY, *WRITTEN])
def test_path_in_a_folder_without_search_permission_is_one_line(
    scalescope: CommandLine, locked: Path, line: str
) -> None:
    told = refused(scalescope, line, "locked/inside")
    assert "locked" in told
    assert "permission" in told.lower() or " -- " in line


@pytest.mark.parametrize("line", [*FOLDERS, f"explain {TABLE} -o {{}}", "probe -o {}", "study mlp -o {}"])
def test_folder_that_cannot_be_read_is_one_line(scalescope: CommandLine, locked: Path, line: str) -> None:
    told = refused(scalescope, line, "locked")
    assert "locked" in told


@pytest.mark.parametrize("line", FOLDERS)
def test_file_whose_reading_fails_is_one_line(scalescope: CommandLine, line: str) -> None:
    (scalescope.folder / "broken").symlink_to("/proc/self/mem")  # is opened, and fails at the first byte
    assert "broken" in refused(scalescope, line, "broken")


@pytest.mark.launches  # measure asks an interpreter for torch before it looks at the folder
def test_api_refuses_unusable_paths_as_the_command_line_does(tmp_path: Path) -> None:
    for call in (
        lambda path: api.explain(path),
        lambda path: api.explain([TRACE], estimate=path),
        lambda path: api.compare(TABLE, path),
        lambda path: api.write_report([path], tmp_path / "report.html"),
        lambda path: api.measure("mlp", folder=path),
        lambda path: api.resume(path),
        lambda path: api.estimate("mlp", cluster=path),
        lambda path: api.tune("mlp", start_from=path),
        lambda path: api.study("mlp", folder=path),
        lambda path: api.probe(folder=path),
    ):
        with pytest.raises(UsageError, match=r"File name too long"):
            call(str(tmp_path / ("x" * 300)))


def test_script_option_of_any_length_is_no_path(scalescope: CommandLine) -> None:
    (scalescope.folder / "train.py").write_text("")
    scalescope.in_this_process("measure", "--dry-run", "--np", "2", "--", PYTHON, "train.py", "--config", "x" * 9000)


def test_error_of_our_own_work_is_not_laid_on_the_user(tmp_path: Path) -> None:
    for problem in (
        FileNotFoundError(2, "No such file or directory", str(tmp_path / "out" / "runs.jsonl")),
        OSError(5, "Input/output error", str(tmp_path / "out" / "launches" / "agent-1.jsonl")),
        PermissionError(13, "Permission denied", "/elsewhere"),
        ChildProcessError(10, "No child processes"),
    ):
        with pytest.raises(type(problem)), named_paths(["measure", "-o", str(tmp_path / "out")]):
            raise problem
