"""Runs scalescope as a user does."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def scalescope_words(*words: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "scalescope", *words]


def scalescope(*words: str, cwd: Path | None = None) -> tuple[dict[str, Any], float]:
    """What --json prints, and the seconds it took."""
    started = time.monotonic()
    done = subprocess.run(
        scalescope_words(*words[:1], "--json", *words[1:]),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"scalescope {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout), time.monotonic() - started
