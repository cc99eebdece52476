"""The environment of ranks: variables of --env, cores, Python modules, free ports, a Slurm allocation.

Values of --env are shown nowhere and kept in a file that only its owner reads.
"""

import contextlib
import functools
import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scalescope import host
from scalescope.engines import Engine
from scalescope.errors import UsageError
from scalescope.launchers import Launcher
from scalescope.launchers.base import as_shell
from scalescope.launchers.runner import on_host
from scalescope.records.job import Host, Job
from scalescope.records.store import AnyRecord, load, save, writing
from scalescope.text import MASK

VALUES = "env.json"
_PLAN = "plan.json"
_OURS = ("SCALESCOPE_", "MALLOC_")  # Variables of ours in the same place; they need no mask


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The same variables without the user's values."""
    return {name: value if name.startswith(_OURS) else MASK for name, value in env.items()}


def shown_commands(launcher: Launcher, job: Job, env: Mapping[str, str]) -> list[str]:
    """Commands that a launcher starts for a job, as a person would type them, without the values of `env`."""
    hidden = {name: value for name, value in masked(env).items() if value == MASK and name in job.env}
    safe = msgspec.structs.replace(job, env={**job.env, **hidden})
    return [as_shell(command) for command in launcher.commands(safe)]


def save_commands(launcher: Launcher, job: Job, env: Mapping[str, str]) -> None:
    """Write the commands of a job into its folder, as they are shown."""
    path = Path(job.folder, "command.txt")
    with writing(path):
        path.write_text("\n".join([*shown_commands(launcher, job, env), ""]))


def save_plan(plan: Any, folder: Path) -> None:
    """Write a plan without the values of its request's variables, and the values next to it, for --resume."""
    env: dict[str, str] = plan.request.env
    if MASK in masked(env).values():  # whole or not at all, and never readable for others
        path = folder / VALUES
        partial = path.with_name(path.name + ".partial")
        with writing(path):
            partial.unlink(missing_ok=True)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(env))
            partial.replace(path)
    request = msgspec.structs.replace(plan.request, env=masked(env))
    save(msgspec.structs.replace(plan, request=request), folder / _PLAN)


def load_plan(folder: Path, plan_type: type[AnyRecord]) -> AnyRecord:
    """A plan with the values of its request's variables."""
    plan: Any = load(folder / _PLAN, plan_type)
    env: dict[str, str] = plan.request.env
    hidden = [name for name, value in env.items() if value == MASK]
    if not hidden:
        return plan  # type: ignore[no-any-return]
    try:
        values = msgspec.json.decode((folder / VALUES).read_bytes(), type=dict[str, str])
        env = {**env, **{name: values[name] for name in hidden}}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError):
        raise UsageError(
            f"{folder / VALUES} does not give the values of --env {', '.join(hidden)}: put it back, or start a new run"
        ) from None
    return msgspec.structs.replace(plan, request=msgspec.structs.replace(plan.request, env=env))  # type: ignore[no-any-return]


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
    program = Path(host.__file__).read_text()
    answer: subprocess.CompletedProcess[str] | None = None  # Of a host that does not answer in time
    if reach == "srun":
        words = ("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={name}", python, "-")
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            answer = subprocess.run(words, input=program, capture_output=True, text=True, timeout=30, check=False)
    else:
        answer = on_host(reach, name, f"{shlex.quote(python)} -", program)
    if answer is None or answer.returncode:
        return None
    try:
        return host.Cores(**json.loads(answer.stdout.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return None


def has_module(python: str, module: str) -> bool:
    """True when an interpreter can find a module; it is not imported."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def torch_version() -> str:
    """Version of this Python's torch, without importing it; empty when there is none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def torch_has_cuda() -> bool:
    """True when this Python's torch was built for GPUs; it is not imported."""
    found = importlib.util.find_spec("torch")
    return bool(found and found.origin and (Path(found.origin).parent / "lib" / "libtorch_cuda.so").exists())


def why_not_live(python: str, engine: Engine) -> str:
    """Why an engine's knobs cannot change in this interpreter while it trains, as tried there; empty: they can."""
    module = engine.live_check
    found = importlib.util.find_spec(module) if module else None
    if found is None:
        return ""
    code = f"import runpy; print(runpy.run_path({found.origin!r})['why_not_here']())"
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    said = answer.stdout.strip().splitlines() or [""]
    return said[-1] if answer.returncode == 0 else f"its check failed with exit code {answer.returncode}"


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
    try:
        answer = subprocess.run(["scontrol", "show", what, of], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        raise UsageError("Slurm's scontrol does not answer: check that `scontrol show nodes` works here") from None
    if answer.returncode:
        raise UsageError(f"Slurm's scontrol failed ({answer.stderr.strip()}): check `scontrol show nodes`")
    return answer.stdout
