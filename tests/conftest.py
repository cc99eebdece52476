"""What all tests share: real hosts, real Slurm, and the real command line."""

import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("shared cores", deadline=None)
hypothesis.settings.load_profile("shared cores")

pytest_plugins = ["hosts", "slurm"]

SCRIPTS = Path(__file__).parent / "scripts"


class CommandLine:
    """Runs scalescope as a user does, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def words(self, *words: str) -> list[str]:
        """The command line; measure makes one launch per point unless a test says how many."""
        chosen = {"--launches", "--precision", "--quick", "--resume"} & set(words)
        once = ["--launches", "1"] if words[:1] == ("measure",) and not chosen else []
        return [sys.executable, "-m", "scalescope", *words[:1], *once, *words[1:]]

    def __call__(
        self, *words: str, code: int = 0, timeout: float = 240, **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.words(*words),
            cwd=self.folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == code, f"exit code {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture
def scalescope(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def scripts() -> Path:
    return SCRIPTS
