"""Programs that answer a question in a moment, above all the Python that ranks run in: what it has."""

import importlib.util
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scalescope.engines import Engine


def ask(words: Sequence[str], within_s: float = 300.0, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, output and errors of a short program; 127 with the reason for one that is missing or hangs."""
    try:
        done = subprocess.run(
            words, input=stdin, timeout=within_s, capture_output=True, text=True, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        return 127, "", f"{words[0]} timed out after {within_s:.0f} s"
    except OSError as problem:
        return 127, "", f"{words[0]}: {problem.strerror}"
    return done.returncode, done.stdout, done.stderr


def has_module(python: str, module: str) -> bool:
    """True when an interpreter can find a module; it is not imported."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return ask([python, "-c", code])[0] == 0


def torch_version() -> str:
    """Version of this Python's torch, without importing it; empty when there is none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def torch_has_cuda() -> bool:
    """True when this Python's torch was built for GPUs; it is not imported."""
    found = importlib.util.find_spec("torch")
    return bool(found and found.origin and (Path(found.origin).parent / "lib" / "libtorch_cuda.so").exists())


def why_not_live(python: str, engine: Engine) -> str:
    """Why an engine's knobs cannot change in this interpreter while it trains, as tried there; empty: they can."""
    module = engine.live_check
    found = importlib.util.find_spec(module) if module else None
    if found is None:
        return ""
    code = f"import runpy; print(runpy.run_path({found.origin!r})['why_not_here']())"
    failed, output, _ = ask([python, "-c", code])
    return f"its check failed with exit code {failed}" if failed else (output.strip().splitlines() or [""])[-1]
