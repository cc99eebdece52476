"""The user's own command, as it is: a launch line, a script that starts its ranks itself, or one plain process."""

from scalescope.launchers.base import Launcher, rank_environment
from scalescope.launchers.horovodrun import HOROVODRUN
from scalescope.launchers.srun import SRUN
from scalescope.launchers.torchrun import TORCHRUN
from scalescope.records.job import Command, Job


class Own(Launcher):
    """The command as it is, with what the agent needs, and the knobs and threads that were asked for."""

    name = "own"
    reaches_hosts = False
    controllers = None
    blame = (*TORCHRUN.blame, *HOROVODRUN.blame, *SRUN.blame)

    def commands(self, job: Job) -> tuple[Command, ...]:
        """The line itself."""
        return (Command(argv=job.command, env=rank_environment(job)),)


OWN = Own()
