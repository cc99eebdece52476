"""horovodrun: Horovod's launcher, on this machine or over named hosts."""

import re

from scalescope.engines.horovod import HOROVOD
from scalescope.launchers.base import rank_environment, rank_words, rendezvous
from scalescope.launchers.mpirun import MPIRUN
from scalescope.records.job import Command, Job


class Horovodrun:
    """Horovod's own rendezvous for the Gloo controller, mpirun underneath for MPI."""

    name = "horovodrun"
    program = ""
    module = "horovod"
    remedy = "build Horovod with scripts/build_horovod (see docs/guides/horovod.md)"
    reaches_hosts = True
    scheduler = ""
    blame: tuple[re.Pattern[str], ...] = (
        re.compile(r"Process (?P<rank>\d+) exit with status code (?P<code>\d+)"),
        *MPIRUN.blame,
    )

    def commands(self, job: Job) -> tuple[Command, ...]:
        """The processes to start for this job."""
        gloo = not HOROVOD.over_mpi(job.knobs.values)
        hosts = ",".join(f"{name}:{count}" for name, count in job.ranks_per_host) or f"localhost:{job.np}"
        interface = job.env.get("GLOO_SOCKET_IFNAME", "") if job.hosts else ""
        words = (
            *(job.python, "-m", "horovod.runner.launch", "-np", str(job.np), "-H", hosts),
            "--gloo" if gloo else "--mpi",
            *(("--network-interfaces", interface) if interface else ()),  # else it looks for one at every start
            *job.launcher_args,
        )
        prefix = "HOROVOD" if gloo else "OMPI_COMM_WORLD"
        ranks = rank_words(
            job,
            RANK=f"{prefix}_RANK",
            WORLD_SIZE=f"{prefix}_SIZE",
            LOCAL_RANK=f"{prefix}_LOCAL_RANK",
            LOCAL_WORLD_SIZE=f"{prefix}_LOCAL_SIZE",
        )
        return (Command(argv=(*words, *ranks), env={**rendezvous(job), **rank_environment(job)}),)


HOROVODRUN = Horovodrun()
