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
TABLE = README.split("| you come from |")[1].split("\n\n")[0]
COMMANDS = re.findall(r"^\|[^|]+\| `scalescope ([^`]+)` \|", TABLE, re.MULTILINE)
PREDICTED = [command for command in COMMANDS if "--step-time" in command]
MAP = next(command for command in PREDICTED if command.startswith("estimate mlp"))
READ = [command for command in COMMANDS if re.match(r"explain (examples|tests)/", command)]
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


def test_everyone_who_comes_finds_a_command() -> None:
    for word in ("estimator", "scaling table", "Horovod timeline", "horovodrun --autotune", "srun"):
        assert word in TABLE
    assert len(COMMANDS) == TABLE.count("`scalescope ")
    assert len(READ) >= 3
    assert len(LAUNCHED) >= 4


@pytest.mark.parametrize("command", READ)
def test_a_command_that_reads_files_answers(command: str) -> None:
    done = CommandLine(ROOT).in_this_process(*shlex.split(command))
    assert "Next: scalescope" in done.stdout


def test_the_estimate_for_gpus_that_are_not_here_answers(tmp_path: Path) -> None:
    (command,) = (command for command in PREDICTED if "clusters/gpu-" in command)
    assert "--input 3x224x224" in command
    folder = tmp_path / "out"
    said = CommandLine(ROOT).in_this_process(*shlex.split(command), "-o", str(folder), "--formats", "html").stdout
    assert "resnet50 with ddp: " in said
    assert "Next: scalescope measure resnet50" in said


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
    pays = {np: min(cell.batch for cell in prediction.cells if cell.np == np and cell.speedup >= 1) for np in (2, 3)}
    caption = " ".join(README.split("# ")[1].split())
    assert f"below batch {pays[2]} the exchange" in caption
    assert f"what took batch {pays[2]} takes batch {pays[3]}." in caption
    assert max(cell.np for cell in prediction.cells if cell.nodes == 1) == 2  # "from the third process on"
    best = prediction.recommended
    assert best
    assert f"what to use, {best.np} processes with batch {best.batch} each" in caption


def test_the_map_is_drawn_from_its_command(prediction: Prediction, figures: ModuleType) -> None:
    assert f"scalescope {MAP}" == figures.MAP
    checked = figures.with_checks(prediction)
    assert [(check.np, check.batch) for check in checked.checks] == [(2, 16), (2, 64), (2, 128), (2, 256)]
    drawn = str(figures.annotated_map(checked))
    for check in checked.checks[2:]:
        alone = next(cell.step_s for cell in prediction.cells if (cell.np, cell.batch) == (1, check.batch))
        assert f"{2 * alone / check.measured_s:.2f} measured" in drawn
    assert "slower than one process:" in drawn


def test_the_concepts_show_every_figure_that_is_drawn_for_them(figures: ModuleType) -> None:
    page = (ROOT / "docs" / "concepts" / "data-parallel.md").read_text()
    drawn = figures.concepts()
    assert sorted(re.findall(r"images/(concept-[\w-]+)\.png", page)) == sorted(drawn)
    assert all((ROOT / "docs" / "images" / f"{name}.png").is_file() for name in drawn)
