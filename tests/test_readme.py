"""README: every command of its table runs, and its map is the one that its command predicts."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import needs
from command_line import CommandLine
from scalescope.records.prediction import Prediction

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TABLE = README.split("| you have, or ask |")[1].split("\n\n")[0]
COMMANDS = re.findall(r"^\|[^|]+\| `scalescope ([^`]+)` \|", TABLE, re.MULTILINE)
PREDICTED = [command for command in COMMANDS if "--step-time" in command]
(MAP,) = PREDICTED
READ = [command for command in COMMANDS if re.match(r"(explain|report) (examples|tests)/", command)]
LAUNCHED = [command for command in COMMANDS if command not in (*PREDICTED, *READ)]


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """docs/figures.py, which no package holds."""
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def prediction(tmp_path_factory: pytest.TempPathFactory) -> Prediction:
    """What the command of README's map predicts."""
    folder = tmp_path_factory.mktemp("map")
    CommandLine(ROOT).in_this_process(*shlex.split(MAP), "-o", str(folder), "--formats", "html")
    return msgspec.json.decode((folder / "estimate.json").read_bytes(), type=Prediction)


def test_readme_has_a_command_for_every_kind_of_input() -> None:
    for word in (
        "script",
        "profiler traces",
        "timeline",
        "logs",
        "table",
        "horovodrun",
        "srun",
        "second node",
        "--proposal",
    ):
        assert word in TABLE
    assert len(COMMANDS) == TABLE.count("`scalescope ")
    assert len(READ) >= 3
    assert len(LAUNCHED) >= 4


@pytest.mark.parametrize("command", READ)
def test_a_command_that_reads_files_answers(command: str, tmp_path: Path) -> None:
    written = ["-o", str(tmp_path / "report.html")] if command.startswith("report") else []
    words = [str(tmp_path / word) if word.endswith(".pdf") else word for word in shlex.split(command)]
    done = CommandLine(ROOT).in_this_process(*words, *written)
    assert "Next: scalescope" in done.stdout


@pytest.mark.parametrize("command", [command for command in LAUNCHED if "--autotune" not in command])
def test_a_command_that_launches_says_what_it_would_start(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "srun" in command:
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    would_start(command)


@pytest.mark.launches  # Horovod is asked what it was built with
def test_a_line_of_horovodrun_says_what_it_would_start() -> None:
    needs.horovod()
    would_start(next(command for command in LAUNCHED if "--autotune" in command))


def would_start(command: str) -> None:
    """A dry run; a bare Debian has no program called python."""
    verb, *words = (sys.executable if word == "python" else word for word in shlex.split(command))
    said = CommandLine(ROOT).in_this_process(verb, "--dry-run", *words).stdout
    script = next((word for word in words if word.endswith(".py")), "")
    assert script in said if script else "map: ddp" in said


def test_the_caption_says_what_the_map_shows(prediction: Prediction) -> None:
    """When a number changes, `make figures` draws the map anew."""
    cells = {(cell.np, cell.batch): cell for cell in prediction.cells}
    slower = [batch for np, batch in cells if np == 9 and cells[9, batch].speedup_high < cells[8, batch].speedup_low]
    caption = " ".join(README.split("## Start from what you have")[0].split())
    assert f"Up to batch {max(slower)} a ninth GPU" in caption
    assert max(cell.np for cell in prediction.cells if cell.nodes == 1) == 8
    best = prediction.recommended
    assert best
    assert f"the recommended setting, {best.np} processes with batch {best.batch} each" in caption


def test_the_map_is_drawn_from_its_command(prediction: Prediction, figures: ModuleType) -> None:
    assert f"scalescope {MAP}" == figures.MAP
    best = prediction.recommended
    assert best
    assert f"recommended: {best.np} x {best.batch}" in str(figures.annotated_map(prediction))


def test_the_caption_of_the_page_says_what_the_page_shows(figures: ModuleType, tmp_path: Path) -> None:
    """When a number changes, `make figures` draws the page anew."""
    assert figures.PAGE in README
    words = shlex.split(figures.PAGE)[1:]
    shown = CommandLine(ROOT).in_this_process(*words, "-o", str(tmp_path / "page.html")).stdout
    late, cost = re.findall(r"rank 1 comes ([\d.]+ ms) late to every step, which costs ([\d.]+ ms)", README)[0]
    assert f"Rank 1 comes {late} late to every step" in shown
    assert f"fix saves {cost} per step" in shown


def test_the_concepts_show_every_figure_that_is_drawn_for_them(figures: ModuleType) -> None:
    page = (ROOT / "docs" / "concepts" / "data-parallel.md").read_text()
    drawn = figures.concepts()
    assert sorted(re.findall(r"images/(concept-[\w-]+)\.png", page)) == sorted(drawn)
    assert all((ROOT / "docs" / "images" / f"{name}.png").is_file() for name in drawn)
