"""The hosts of a launch: nodes that Slurm gave or that a job will get, cores of other hosts, a port of this one."""

import contextlib
import functools
import json
import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from scalescope import host
from scalescope.errors import UsageError
from scalescope.jobs.interpreter import ask
from scalescope.launchers.runner import on_host
from scalescope.launchers.srun import SRUN
from scalescope.records.job import Host

_OVERLAP = (SRUN.program, "--overlap", "--nodes=1", "--ntasks=1")  # Next to a job step that may be running
_PATIENCE_S = 40.0


class Allocation(NamedTuple):
    """The nodes that Slurm has given, with the ranks that each takes."""

    hosts: tuple[Host, ...]
    first_address: str
    cores: Mapping[str, int]  # That the job has on each node


# Of a job that is planned and not submitted yet
_expected: ContextVar[Allocation | None] = ContextVar("expected", default=None)


@contextlib.contextmanager
def expecting(nodes: int, per_node: int) -> Iterator[None]:
    """Plan as inside the allocation of a job that is not submitted yet: its nodes have no names, and are not asked."""
    hosts = tuple(Host(f"NODE{number}", per_node) for number in range(1, nodes + 1))
    token = _expected.set(Allocation(hosts, hosts[0].name, {}))
    try:
        yield
    finally:
        _expected.reset(token)


def slurm_allocation(per_node: int | None = None) -> Allocation:
    """The allocation that this process runs in; `per_node` says how many ranks a node takes, instead of Slurm."""
    if expected := _expected.get():
        return expected
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise UsageError("srun needs a Slurm allocation: run this inside one, for example salloc -N 2 scalescope ...")
    names = _slurm("hostnames", nodes).split()
    described = re.search(r"\bNodeAddr=(\S+)", _slurm("node", names[0]))
    address = described[1] if described else names[0]
    cores = dict(zip(names, _cores_of_allocation(len(names)), strict=True))
    slots = [per_node] * len(names) if per_node else slots_of_allocation(len(names))
    return Allocation(tuple(map(Host, names, slots)), address, cores)


def allocated_here() -> bool:
    """True inside a Slurm allocation of several nodes, or where one is planned."""
    return bool(_expected.get()) or int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) > 1


def slots_of_allocation(nodes: int = 0) -> tuple[int, ...]:
    """Ranks that each node of the Slurm allocation takes, as far as its variables tell; empty outside of one."""
    if expected := _expected.get():
        return tuple(each.slots for each in expected.hosts)
    found = os.environ
    if not found.get("SLURM_JOB_NODELIST"):
        return ()
    cpus = _cores_of_allocation(nodes or int(found.get("SLURM_JOB_NUM_NODES") or 1))
    gpus = sum(map(int, re.findall(r"(\d+)(?:,|$)", found.get("SLURM_GPUS_PER_NODE", ""))))  # 4, or a100:2,v100:2
    tasks = int(found.get("SLURM_NTASKS_PER_NODE") or 0)
    # One task on a node with GPUs is a launcher such as torchrun, which starts a rank for each of them.
    slots = tasks if tasks > 1 else gpus or tasks
    return tuple(slots or max(count // int(found.get("SLURM_CPUS_PER_TASK") or 1), 1) for count in cpus)


def _cores_of_allocation(nodes: int) -> list[int]:
    """CPUs that the job has on each node; Slurm writes [2, 2, 2, 1] as 2(x3),1."""
    given = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    counts = [int(count) for count, times in given for _ in range(int(times or 1))] or [1]
    return counts + [counts[-1]] * (nodes - len(counts))


def _slurm(what: str, of: str) -> str:
    failed, output, errors = ask(["scontrol", "show", what, of], _PATIENCE_S)
    if failed:
        raise UsageError(f"Slurm's scontrol failed ({errors.strip()}): check that `scontrol show nodes` works here")
    return output


def cores_of(hosts: Sequence[str], reach: str, python: str) -> tuple[dict[str, host.Cores], list[str]]:
    """Cores that ranks may use on other hosts, asked there by ssh or srun; a warning for each that did not tell."""
    if _expected.get():
        return dict.fromkeys(hosts, host.cores()), []
    with ThreadPoolExecutor(min(len(hosts), 16)) as pool:
        answers = dict(zip(hosts, pool.map(lambda name: _ask_host(name, reach, python), hosts), strict=True))
    silent = [name for name, found in answers.items() if found is None]
    here = host.cores()
    warnings = [
        f"host {name} did not say how many cores it has, so it was taken to have {here.physical} as this machine: "
        "set --threads-per-rank if that is wrong"
        for name in silent
    ]
    return {name: found or here for name, found in answers.items()}, warnings


@functools.cache
def _ask_host(name: str, reach: str, python: str) -> host.Cores | None:
    """Runs the file host.py on the host, so that affinity and quota are those that ranks get there."""
    answer = run_python(name, reach, (python, "-"), Path(host.__file__).read_text())
    try:
        return host.Cores(**json.loads(answer.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return None


def run_python(name: str, reach: str, words: Sequence[str], program: str) -> str:
    """Run a program of ours on a host and return its output; empty where that failed.

    Args:
        name: The host.
        reach: The program that enters it: srun, or ssh and what stands in for it.
        words: A Python there, `-` and arguments.
        program: Its text, of the standard library.
    """
    if reach != SRUN.program:
        answer = on_host(reach, name, shlex.join(words), program)
        return answer.stdout if answer and answer.returncode == 0 else ""
    failed, output, _ = ask((*_OVERLAP, f"--nodelist={name}", *words), _PATIENCE_S, program)
    return "" if failed else output


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def check_port(port: int) -> None:
    """The port that the user named is free."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            raise UsageError(f"port {port} is taken: choose another with --port, or leave --port out") from None
