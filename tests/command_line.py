"""Runs scalescope as a user does."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

from scalescope.cli import run

WITHOUT_PICTURES = "import sys; sys.modules['altair'] = None; from scalescope.cli import main; main()"
"""Drawing is most of what a short command does, so where nobody looks at the pictures there is no altair."""


class CommandLine:
    """The real command line in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def words(self, *words: str, pictures: bool = False) -> list[str]:
        """The command line; measure makes one launch per point unless a test says how many."""
        chosen = {"--launches", "--precision", "--resume"} & set(words)
        once = ["--launches", "1"] if words[:1] == ("measure",) and not chosen else []
        program = ["-m", "scalescope"] if pictures else ["-c", WITHOUT_PICTURES]
        return [sys.executable, *program, *words[:1], *once, *words[1:]]

    def __call__(
        self, *words: str, code: int = 0, timeout: float = 240, pictures: bool = False, **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.words(*words, pictures=pictures),
            cwd=self.folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == code, f"exit code {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
        return done

    def in_this_process(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """The same for what starts no ranks; a process of its own would be most of the time it takes."""
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(io.StringIO()) as stdout,
            contextlib.redirect_stderr(io.StringIO()) as stderr,
        ):
            try:
                returned = run(list(words))
            except SystemExit as ending:
                returned = ending.code
        assert returned == code, f"exit code {returned}, not {code}\n{stdout.getvalue()}\n{stderr.getvalue()}"
        return subprocess.CompletedProcess(words, code, stdout.getvalue(), stderr.getvalue())

    def processes(self) -> list[int]:
        """Processes anywhere on this machine that work for a measurement in this folder."""
        mark, found = f"SCALESCOPE_FOLDER={self.folder}/".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found
