"""What a test needs of the machine: without it the test is skipped, or fails where SCALESCOPE_REQUIRE_ALL=1."""

import importlib.util
import os
import shutil

import pytest


def need(is_there: bool, what: str) -> None:
    """Go on when it is there; otherwise skip the test, or fail where everything is required."""
    if is_there:
        return
    if os.environ.get("SCALESCOPE_REQUIRE_ALL") == "1":
        pytest.fail(f"needs {what}, and SCALESCOPE_REQUIRE_ALL=1 allows no skipping", pytrace=False)
    pytest.skip(f"needs {what}")


def programs(*names: str, package: str) -> None:
    """Need programs on PATH; `package` is the Debian package to install."""
    missing = [name for name in names if shutil.which(name) is None]
    need(not missing, f"{', '.join(missing)} (apt-get install {package})")


def root() -> None:
    """Need to be root, for network namespaces and Slurm's daemons."""
    need(os.geteuid() == 0, "root")


def horovod() -> None:
    """Need Horovod in this environment."""
    need(importlib.util.find_spec("horovod") is not None, "Horovod (.venv/bin/python scripts/build_horovod)")


def openmpi() -> None:
    """Need Open MPI's mpirun."""
    programs("mpirun", package="openmpi-bin")


def namespaces() -> None:
    """Need what makes hosts out of network namespaces."""
    root()
    programs("ip", "tc", package="iproute2")
    programs("unshare", "hostname", package="util-linux hostname")


def slurm() -> None:
    """Need Slurm's and MUNGE's daemons, and root to start them."""
    root()
    programs("slurmctld", "slurmd", "srun", "salloc", "sinfo", "scancel", package="slurm-wlm")
    programs("munged", package="munge")
    programs("unshare", "setpriv", "mount", "hostname", package="util-linux mount hostname")
