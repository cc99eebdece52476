"""What all tests share: real hosts, real Slurm, and the real command line."""

import gc
import os
import runpy
from pathlib import Path

import hypothesis
import pytest

from command_line import CommandLine
from scalescope.jobs.machine import describe_machine
from scalescope.records.machine import Machine

# On shared cores nothing may hang on how fast an example is made, and every run sees what the one before it saw.
hypothesis.settings.register_profile(
    "shared cores", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("shared cores")

# Here, and in all Pythons that tests start.
STARTUP = Path(__file__).parent / "startup"
runpy.run_path(str(STARTUP / "sitecustomize.py"))
if str(STARTUP) not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(STARTUP)]))

# Tests share the cores: where threads spin while they wait for each other, a step took 20 times the CPU time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

pytest_plugins = ["guard", "hosts", "slurm"]

SCRIPTS = Path(__file__).parent / "scripts"


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture
def scalescope(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture(scope="session")
def scripts() -> Path:
    return SCRIPTS


@pytest.fixture(scope="session")
def this_machine() -> Machine:
    """Described once: it takes seconds."""
    return describe_machine()
