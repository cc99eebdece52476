"""srun and torchrun together: Slurm starts one torchrun on every node, which starts that node's ranks."""

import shlex
from pathlib import Path

import msgspec

from scalescope.launchers.base import Launcher, rank_environment, rank_words, rendezvous
from scalescope.launchers.srun import SRUN
from scalescope.launchers.torchrun import TORCHRUN
from scalescope.records.job import Command, Job


class SrunTorchrun(Launcher):
    """One srun starts a torchrun on each node; they meet at the first node over c10d."""

    name = "srun-torchrun"
    program = SRUN.program
    module = TORCHRUN.module
    remedy = SRUN.remedy
    instead = SRUN.name
    scheduler = SRUN.scheduler
    blame = (*TORCHRUN.blame, *SRUN.blame)

    def commands(self, job: Job) -> tuple[Command, ...]:
        """The processes to start for this job."""
        env = {**rendezvous(job), **rank_environment(job)}
        placed = job.ranks_per_host or (("", job.np),)
        words = ["srun", "--nodes", str(len(placed)), "--ntasks", str(len(placed)), "--ntasks-per-node=1"]
        if job.hosts:
            words += ["--nodelist", ",".join(name for name, _ in placed)]
        # A torchrun uses all cores that the job has on its node, and a node that fails ends the others.
        words += ["--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL"]
        torchrun = (
            *(*job.container, job.python, "-m", "torch.distributed.run", "--nnodes", str(len(placed))),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{env['MASTER_ADDR']}:{job.port}"),
            *("--rdzv-id", job.launch, "--log-dir", str(Path(job.folder, "torchrun"))),
        )
        words += ["sh", "-c", f'{_of_this_node(placed)}exec "$@"', "sh", *torchrun, *job.launcher_args]
        inside = rank_words(msgspec.structs.replace(job, container=()))
        return (Command(argv=(*words, "--no-python", *inside), env=env),)


def _of_this_node(placed: tuple[tuple[str, int], ...]) -> str:
    """Shell commands that give torchrun what differs between nodes, in its variables PET_*.

    The first node is named as the host of the meeting, because torchrun does not know it by every name and address.
    """
    counts = [count for _, count in placed]
    usual = max(counts, key=counts.count)
    others = "".join(f"{shlex.quote(name)}) n={count};; " for name, count in placed if count != usual)
    ranks = f'n={usual}; case "$SLURMD_NODENAME" in {others}esac; ' if others else f"n={usual}; "
    return f"{ranks}export PET_NPROC_PER_NODE=$n PET_RDZV_CONF=is_host=$((SLURM_NODEID == 0)); "


SRUN_TORCHRUN = SrunTorchrun()
