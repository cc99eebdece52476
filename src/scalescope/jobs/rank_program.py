"""Runs one of our own programs in ranks, other than a training: a profile, a probe."""

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from scalescope import host
from scalescope.engines import find_engine
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.folders import RANKS, emptied
from scalescope.jobs.hosts import allocated_here, free_port, slurm_allocation
from scalescope.jobs.interpreter import torch_has_cuda
from scalescope.jobs.masking import save_commands
from scalescope.jobs.output import last_lines, outputs, printed
from scalescope.jobs.plan import ALLOCATOR, CARRIED_TO_HOSTS
from scalescope.jobs.train_model import USAGE_MARK
from scalescope.launchers import find_launcher
from scalescope.launchers.runner import run
from scalescope.launchers.srun import SRUN
from scalescope.records.job import Host, Job, Knobs
from scalescope.records.store import complete_lines, writing

# Launcher and rendezvous; how long importing torch and building a model keep a core busy, by torch's build.
_START_S, _IMPORT_S, _IMPORT_CUDA_S = 2.0, 2.0, 5.0


class RankProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program of ours to run in ranks, and where."""

    module: str  # Of ours, called with the path of its task
    task: msgspec.Struct
    np: int
    knobs: Knobs
    folder: Path
    launcher: str = ""
    threads_per_rank: int = 1
    hosts: tuple[Host, ...] = ()
    env: dict[str, str] = {}
    ssh: str = "ssh"
    writes: str  # Pattern of the files in which its ranks write lines: a new one shows that it goes on
    timeout_s: float = 600.0  # Without a line, after which it is given up


class Place(NamedTuple):
    """Hosts on which ranks of ours run, and the way to reach them."""

    hosts: tuple[Host, ...] = ()  # Empty: this machine
    launcher: str = ""  # Empty: the usual one of the engine
    env: dict[str, str] = {}

    @property
    def slots(self) -> int:
        """Sum of all hosts' slots; 0: this machine's count."""
        return sum(each.slots for each in self.hosts)


def place_of(hosts: Sequence[Host], per_node: int | None = None) -> Place:
    """The hosts that were named, or those of the Slurm allocation around us, or this machine.

    Raises:
        UsageError: Hosts take different numbers of ranks: a cluster has equal nodes.
    """
    place = Place(tuple(hosts))
    if not hosts and allocated_here():
        allocation = slurm_allocation(per_node)
        place = Place(allocation.hosts, SRUN.name, {"MASTER_ADDR": allocation.first_address})
    if len({each.slots for each in place.hosts}) > 1:
        whose = "--hosts names hosts" if hosts else "Slurm gave nodes"
        do = "give each the same" if hosts else "say --per-node"
        raise UsageError(f"{whose} with different slots: a cluster has equal nodes; {do}")
    return place


def starting_s(ranks: int) -> float:
    """About what it takes to start ranks on this machine and to end them, without what they do."""
    import_s = _IMPORT_CUDA_S if torch_has_cuda() else _IMPORT_S
    return _START_S + import_s * (1 + ranks / host.cores().logical)


def run_ranks(program: RankProgram) -> None:
    """Run it to its end; a UsageError of a rank is passed on."""
    engine = find_engine(program.knobs.engine)
    launcher = find_launcher(program.launcher or engine.launcher(program.knobs.values))
    folder = emptied(program.folder, RANKS)
    with writing(folder):
        (folder / "task.json").write_bytes(msgspec.json.encode(program.task))
    carried = {name: os.environ[name] for name in CARRIED_TO_HOSTS if name in os.environ} if program.hosts else {}
    of_engine = engine.environment(program.knobs.values, named_hosts=bool(program.hosts))
    job = Job(
        command=(sys.executable, "-m", program.module, str(folder / "task.json")),
        np=program.np,
        knobs=program.knobs,
        folder=str(folder),
        launch=f"{folder.name}-{secrets.token_hex(6)}",
        threads_per_rank=program.threads_per_rank,
        hosts=program.hosts,
        env={**of_engine, **carried, **ALLOCATOR, **program.env},
        port=free_port(),
        ssh=program.ssh,
        python=sys.executable,
        cwd=str(Path.cwd()),
    )
    save_commands(launcher, job, program.env)
    ending = run(launcher.commands(job), job, _Lines(folder, program.writes), timeout_s=program.timeout_s)
    if not ending.problem:
        return
    for line in printed(folder):
        if line.startswith(USAGE_MARK):  # a rank's own clear line goes before what was printed last
            raise UsageError(line.removeprefix(USAGE_MARK).strip())
    *of_ranks, of_launcher = outputs(folder)
    shown = [line for path in of_ranks for line in last_lines(path)] or last_lines(of_launcher)
    raise WorkFailed("\n".join([f"{ending.problem} (see {folder})", *shown]))


class _Lines:
    """Counts lines of the ranks' files."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern

    def tick(self) -> int:
        """Lines so far."""
        return sum(1 for path in self._folder.glob(self._pattern) for _ in complete_lines(path))

    def stalled(self, seconds: float) -> tuple[str, str]:
        """One line, without details."""
        return f"nothing happened for {seconds:.0f} s: raise --timeout if it takes longer here", ""
