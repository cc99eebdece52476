"""Ways to start processes: one file per launcher, one visible list."""

from scalescope.errors import UsageError
from scalescope.launchers.base import Launcher
from scalescope.launchers.horovodrun import HOROVODRUN
from scalescope.launchers.mpirun import MPIRUN
from scalescope.launchers.own import OWN
from scalescope.launchers.srun import SRUN
from scalescope.launchers.srun_torchrun import SRUN_TORCHRUN
from scalescope.launchers.torchrun import TORCHRUN
from scalescope.text import did_you_mean

LAUNCHERS: dict[str, Launcher] = {each.name: each for each in (TORCHRUN, MPIRUN, HOROVODRUN, SRUN, SRUN_TORCHRUN, OWN)}


def find_launcher(name: str) -> Launcher:
    """The launcher of that name."""
    if name not in LAUNCHERS:
        raise UsageError(f"no launcher '{name}'{did_you_mean(name, LAUNCHERS)}: use {', '.join(LAUNCHERS)}")
    return LAUNCHERS[name]


__all__ = ["LAUNCHERS", "Launcher", "find_launcher"]
