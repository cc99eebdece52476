"""The wheel that users install, in an environment and a folder that know nothing of this repository."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from environments import empty_environment

REPOSITORY = Path(__file__).parents[2]


class Installed:
    """scalescope from its wheel, run in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
        subprocess.run([*build, str(REPOSITORY)], check=True, timeout=120)
        (wheel,) = folder.glob("scalescope-*.whl")
        self.python = empty_environment(folder / "env")
        self.folder = folder / "elsewhere"
        self.folder.mkdir()
        install = [*pip, "--python", str(self.python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
        subprocess.run(install, check=True, timeout=120)

    def __call__(self, program: str, *words: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PATH"] = f"{self.python.parent}:{environment['PATH']}"
        command = [str(self.python.parent / program), *words]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_is_what_runs(installed: Installed) -> None:
    home = Path(installed("python", "-c", "import scalescope; print(scalescope.__file__)").strip())
    assert home.is_relative_to(installed.python.parents[1])
    assert (home.parent / "agent" / "hook" / "sitecustomize.py").exists()


def test_doctor_finds_the_machine_ready(installed: Installed) -> None:
    assert "is ready to measure" in installed("scalescope", "doctor")


def test_a_model_is_measured_by_the_agent(installed: Installed) -> None:
    shown = installed("scalescope", "measure", "mlp", "--np", "2", "--launches", "1", "--steps", "8", "--json")
    assert [(point["np"], point["steps"]) for point in json.loads(shown)["points"]] == [(2, 8)]
