"""What a test needs of the machine: without it the test is skipped, or fails where SCALESCOPE_REQUIRE_ALL=1."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "scripts" / "packages"


def need(is_there: bool, what: str) -> None:
    """Go on when it is there; otherwise skip the test, or fail where everything is required."""
    if is_there:
        return
    if os.environ.get("SCALESCOPE_REQUIRE_ALL") == "1":
        pytest.fail(f"needs {what}, and SCALESCOPE_REQUIRE_ALL=1 allows no skipping", pytrace=False)
    pytest.skip(f"needs {what}")


def packages() -> dict[str, tuple[str, ...]]:
    """Programs that each package of scripts/packages brings."""
    lines = re.findall(r"^([a-z0-9+.-]+):([^(\n]*)\(.+\)$", LIST.read_text(), re.MULTILINE)
    return {package: tuple(names.split()) for package, names in lines}


def package_of(program: str) -> str:
    """Package of scripts/packages that brings a program."""
    for package, names in packages().items():
        if program in names:
            return package
    raise LookupError(f"no package of scripts/packages brings {program}: add it there, so that make setup installs it")


def programs(*names: str) -> None:
    """Need programs on PATH, each of a listed package."""
    brought_by = {name: package_of(name) for name in names}
    missing = [name for name in names if shutil.which(name) is None]
    to_install = " ".join(dict.fromkeys(brought_by[name] for name in missing))
    need(not missing, f"{', '.join(missing)} (apt-get install {to_install})")


def root() -> None:
    """Need to be root, for network namespaces and Slurm's daemons."""
    need(os.geteuid() == 0, "root")


def horovod() -> None:
    """Need Horovod in this environment."""
    need(importlib.util.find_spec("horovod") is not None, "Horovod (.venv/bin/python scripts/build_horovod)")


def installed(*packages: str) -> None:
    """Need Python packages in this environment, such as those of the extra `scripts`."""
    missing = [name for name in packages if not any(importlib.metadata.Distribution.discover(name=name))]
    need(not missing, f"{', '.join(missing)} (make test-scripts)")


def openmpi() -> None:
    """Need Open MPI's mpirun."""
    programs("mpirun")


def namespaces() -> None:
    """Need what makes hosts out of network namespaces."""
    root()
    programs("ip", "tc", "unshare", "hostname")


def slurm() -> None:
    """Need Slurm's and MUNGE's daemons, and root to start them."""
    namespaces()
    programs("slurmctld", "slurmd", "srun", "salloc", "sinfo", "scancel", "munged")
    programs("setpriv", "nsenter", "mount")
