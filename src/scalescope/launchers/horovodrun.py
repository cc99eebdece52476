"""horovodrun: Horovod's launcher, on this machine or over named hosts."""

import re

from scalescope.engines.horovod import HOROVOD
from scalescope.launchers.base import Launcher, host_list, named_after, rank_environment, rank_words, rendezvous
from scalescope.launchers.mpirun import MPIRUN
from scalescope.records.job import Command, Job


class Horovodrun(Launcher):
    """Horovod's own rendezvous for the Gloo controller, mpirun underneath for MPI."""

    name = "horovodrun"
    module = "horovod"
    remedy = "build Horovod with scripts/build_horovod (see docs/guides/horovod.md)"
    only_ssh = True
    controllers = ("gloo", "mpi")
    blame = (
        re.compile(r"Process (?P<rank>\d+) exit with status code (?P<code>\d+)"),
        *MPIRUN.blame,
    )

    def commands(self, job: Job) -> tuple[Command, ...]:
        """The processes to start for this job."""
        gloo = not HOROVOD.over_mpi(job.knobs.values)
        interface = job.env.get("GLOO_SOCKET_IFNAME", "") if job.hosts else ""
        words = (
            *(job.python, "-m", "horovod.runner.launch", "-np", str(job.np), "-H", host_list(job)),
            "--gloo" if gloo else "--mpi",
            *(("--network-interfaces", interface) if interface else ()),  # else it looks for one at every start
            *job.launcher_args,
        )
        ranks = rank_words(job, **named_after("HOROVOD" if gloo else "OMPI_COMM_WORLD"))
        return (Command(argv=(*words, *ranks), env={**rendezvous(job), **rank_environment(job)}),)


HOROVODRUN = Horovodrun()
