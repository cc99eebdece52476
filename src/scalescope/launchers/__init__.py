"""How processes start: one file per launcher, one visible list."""

import difflib

from scalescope.errors import UsageError
from scalescope.launchers.base import Launcher
from scalescope.launchers.horovodrun import HOROVODRUN
from scalescope.launchers.mpirun import MPIRUN
from scalescope.launchers.own import OWN
from scalescope.launchers.srun import SRUN
from scalescope.launchers.torchrun import TORCHRUN

LAUNCHERS: dict[str, Launcher] = {each.name: each for each in (TORCHRUN, MPIRUN, HOROVODRUN, SRUN, OWN)}


def find_launcher(name: str) -> Launcher:
    """The launcher of that name."""
    if name not in LAUNCHERS:
        near = difflib.get_close_matches(name, LAUNCHERS, n=1)
        known = f"did you mean {near[0]}?" if near else "use " + ", ".join(LAUNCHERS)
        raise UsageError(f"no launcher '{name}': {known}")
    return LAUNCHERS[name]


__all__ = ["LAUNCHERS", "Launcher", "find_launcher"]
