"""torchrun: PyTorch's launcher, on this machine or once on each named host."""

import re
from pathlib import Path

from scalescope.launchers.base import Launcher, on_host, rank_environment, rank_words
from scalescope.records.job import Command, Job


class Torchrun(Launcher):
    """One agent process per host starts that host's ranks."""

    name = "torchrun"
    module = "torch"
    remedy = "pip install torch"
    instead = "mpirun, or horovodrun"
    blame = (re.compile(r"rank\s+: (?P<rank>\d+) \(local_rank: \d+\)\s+exitcode\s+: (?P<code>-?\d+)"),)

    def commands(self, job: Job) -> tuple[Command, ...]:
        """The processes to start for this job."""
        env = rank_environment(job)
        placed = job.ranks_per_host
        if not placed:
            return (Command(argv=self._words(job, job.np, 1, 0, "127.0.0.1"), env=env),)
        return tuple(
            on_host(job, host, self._words(job, count, len(placed), index, placed[0][0]), env)
            for index, (host, count) in enumerate(placed)
        )

    def _words(self, job: Job, ranks: int, hosts: int, index: int, master: str) -> tuple[str, ...]:
        # torchrun leaves an empty folder in /tmp at every start; here its launch folder takes it.
        logs = () if hosts > 1 or job.hosts else ("--log-dir", str(Path(job.folder, "torchrun")))
        return (
            *(job.python, "-m", "torch.distributed.run"),
            *("--nnodes", str(hosts), "--nproc-per-node", str(ranks), "--node-rank", str(index)),
            *("--master-addr", master, "--master-port", str(job.port)),
            *logs,
            *job.launcher_args,
            *("--no-python", *rank_words(job)),
        )


TORCHRUN = Torchrun()
