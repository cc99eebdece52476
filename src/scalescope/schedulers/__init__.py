"""Ways in which a job waits its turn: one file per scheduler, one visible list."""

from scalescope.errors import UsageError
from scalescope.schedulers.base import Scheduler
from scalescope.schedulers.slurm import SLURM
from scalescope.text import did_you_mean

SCHEDULERS: dict[str, Scheduler] = {each.name: each for each in (SLURM,)}


def find_scheduler(name: str) -> Scheduler:
    """The scheduler of that name."""
    if name not in SCHEDULERS:
        raise UsageError(f"no scheduler '{name}'{did_you_mean(name, SCHEDULERS)}: use {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name]


__all__ = ["SCHEDULERS", "Scheduler", "find_scheduler"]
