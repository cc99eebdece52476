"""The Python that ranks run in: what it has, asked without importing it."""

import importlib.util
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scalescope.engines import Engine


def has_module(python: str, module: str) -> bool:
    """True when an interpreter can find a module; it is not imported."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


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
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, errors="replace", check=False)
    said = answer.stdout.strip().splitlines() or [""]
    return said[-1] if answer.returncode == 0 else f"its check failed with exit code {answer.returncode}"
