"""srun: Slurm starts the ranks inside an allocation."""

import re

from scalescope.engines import find_engine
from scalescope.launchers.base import Launcher, rank_environment, rank_words, rendezvous
from scalescope.records.job import Command, Job


class Srun(Launcher):
    """One srun starts all ranks as a job step."""

    name = "srun"
    program = "srun"
    remedy = "run inside a Slurm allocation (salloc -N 2) on a machine with Slurm's client programs"
    controllers = ("mpi",)
    instead = "horovodrun"
    scheduler = "slurm"
    blame = (
        re.compile(r"srun: error: \S+: task (?P<rank>\d+): Exited with exit code (?P<code>\d+)"),
        re.compile(r"srun: error: \S+: task (?P<rank>\d+): (?P<death>(?!Exited)\w[\w ]*)"),
        re.compile(r"srun: error: Task launch for \S+ failed on node (?P<node>\S+): (?P<reason>.+)"),
    )

    def commands(self, job: Job) -> tuple[Command, ...]:
        """The processes to start for this job."""
        env = {**rendezvous(job), **rank_environment(job)}
        placed = job.ranks_per_host
        words = ["srun", "--ntasks", str(job.np), "--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL"]
        if placed:
            most = max(count for _, count in placed)
            words += ["--nodes", str(len(placed)), "--nodelist", ",".join(name for name, _ in placed)]
            words += ["--ntasks-per-node", str(most), "--distribution=block"]
        if find_engine(job.knobs.engine).over_mpi(job.knobs.values):
            words.append("--mpi=pmix")
        words.append("--overcommit" if job.oversubscribe else f"--cpus-per-task={job.threads_per_rank}")
        ranks = rank_words(job, RANK="SLURM_PROCID", WORLD_SIZE="SLURM_NTASKS", LOCAL_RANK="SLURM_LOCALID")
        return (Command(argv=(*words, *job.launcher_args, *ranks), env=env),)


SRUN = Srun()
