"""The user's own launch line, as it is."""

import re

from scalescope.launchers.base import rank_environment
from scalescope.launchers.horovodrun import HOROVODRUN
from scalescope.launchers.srun import SRUN
from scalescope.launchers.torchrun import TORCHRUN
from scalescope.records.job import Command, Job


class Own:
    """Nothing is added but the environment."""

    name = "own"
    program = ""
    module = ""
    remedy = ""
    reaches_hosts = False
    blame: tuple[re.Pattern[str], ...] = (*TORCHRUN.blame, *HOROVODRUN.blame, *SRUN.blame)

    def commands(self, job: Job) -> tuple[Command, ...]:
        """The line itself."""
        return (Command(argv=job.command, env=rank_environment(job)),)


OWN = Own()
