"""Environments of Python that borrow torch and the other dependencies from ours, but not scalescope."""

import subprocess
import sys
from pathlib import Path

import torch


def empty_environment(folder: Path) -> Path:
    """Make one and return its Python; it does not read the .pth file by which ours finds the sources of scalescope."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True)
    Path(site.strip(), "borrowed.pth").write_text(str(Path(torch.__path__[0]).parent) + "\n")
    absent = subprocess.run([python, "-c", "import scalescope"], cwd=folder, env={}, capture_output=True, check=False)
    assert absent.returncode == 1
    return python
