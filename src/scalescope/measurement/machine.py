"""Look at this machine: what data-parallel training can use here."""

import importlib.metadata
import importlib.util
import ipaddress
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from scalescope import host
from scalescope.records.machine import Cores, Gpu, Horovod, Interface, Machine, Mpi, Slurm, Torch

_PATIENCE_S = 60.0
_SLURM_PATIENCE_S = 5.0  # srun tries for a minute to find a configuration that is not there
_ASK_TORCH = """
import json, torch, torch.distributed as distributed
def has(name):
    return distributed.is_available() and getattr(distributed, f"is_{name}_available", bool)()
backends = [name for name in ("gloo", "nccl", "mpi", "ucc") if has(name)]
gpus = torch.cuda.device_count()
print(json.dumps({"version": torch.__version__, "backends": backends, "cuda": torch.version.cuda, "gpus": gpus}))
"""
_ASK_HOROVOD = """
import json, horovod, horovod.torch as hvd
built = {"nccl": hvd.nccl_built(), "ddl": hvd.ddl_built(), "ccl": hvd.ccl_built(), "mpi": hvd.mpi_built(),
         "gloo": hvd.gloo_built()}
operations = [name for name, is_built in built.items() if is_built]
controllers = [name for name in ("mpi", "gloo") if built[name]]
print(json.dumps({"version": horovod.__version__, "controllers": controllers, "operations": operations}))
"""


def describe_machine() -> Machine:
    """Everything there is to know before a measurement; takes as long as importing torch once."""
    with ThreadPoolExecutor(2) as pool:
        torch = pool.submit(_ask_python, "torch", _ASK_TORCH, Torch)
        horovod = pool.submit(_ask_python, "horovod", _ASK_HOROVOD, Horovod)
        return Machine(
            hostname=platform.node(),
            system=f"{_os_release().get('PRETTY_NAME', platform.system())}, kernel {platform.release()}",
            distribution=_distribution(_os_release()),
            is_root=os.geteuid() == 0,
            python=sys.executable,
            python_version=platform.python_version(),
            cores=_cores(),
            memory_bytes=int(min(psutil.virtual_memory().total, host.memory_limit_bytes())),
            shared_memory_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
            disk_free_bytes=shutil.disk_usage(Path.cwd()).free,
            load_average=os.getloadavg()[0],
            gpus=_gpus(),
            interfaces=tuple(_interfaces()),
            mpi=_mpi(),
            slurm=_slurm(),
            ssh=shutil.which("ssh"),
            torch=torch.result(),
            horovod=horovod.result(),
        )


def _ask_python(package: str, question: str, answer: type[Any]) -> Any:
    """Ask in a child process, so that neither a crash nor the import's memory reaches this one."""
    if importlib.util.find_spec(package) is None:
        return None
    code, output, errors = _run([sys.executable, "-c", question])
    if code == 0:
        fields = json.loads(output.splitlines()[-1])
        return answer(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return answer(version=version, problem=_last_line(errors, code))


def _run(argv: list[str], patience_s: float = _PATIENCE_S) -> tuple[int, str, str]:
    """Exit code, output and errors of a program that may be missing or hang."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(argv, timeout=patience_s, **streams)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return 127, "", str(problem)
    return done.returncode, done.stdout, done.stderr


def _last_line(errors: str, code: int) -> str:
    return errors.strip().splitlines()[-1] if errors.strip() else f"the process ended with {code}"


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _distribution(release: dict[str, str]) -> str:
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    families = {"debian": "debian", "ubuntu": "debian", "fedora": "fedora", "rhel": "fedora", "suse": "suse"}
    return next((families[name] for name in names if name in families), "")


def _cores() -> Cores:
    found = host.cores()
    return Cores(
        physical=found.machine_physical,
        logical=found.machine_logical,
        usable=found.allowed,
        usable_physical=found.physical,
    )


def _gpus() -> tuple[Gpu, ...]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    code, output, _ = _run(query)
    if code != 0:
        return ()
    rows = [line.rsplit(",", 1) for line in output.splitlines() if "," in line]
    # Cards that share their memory with the processor say "[N/A]".
    return tuple(
        Gpu(name=name.strip(), memory_bytes=int(memory) * 2**20 if memory.strip().isdigit() else 0)
        for name, memory in rows
    )


def _interfaces() -> Iterator[Interface]:
    states = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if name in states and states[name].isup:
            speed = states[name].speed
            is_known = 0 < speed < 65535  # drivers say 0 or 65535 when they do not know
            numbers = tuple(address.address.split("%")[0] for address in addresses if _is_ip(address.address))
            yield Interface(name=name, addresses=numbers, bits_per_s=speed * 1_000_000 if is_known else None)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return False
    return True


def _mpi() -> Mpi | None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return None
    _, output, errors = _run([mpirun, "--version"])
    first = next(iter((output or errors).splitlines()), "").strip()
    found = re.match(r"mpirun \((Open MPI|Open MPI/PRRTE)\) (\S+)", first)
    return Mpi(mpirun=mpirun, name="Open MPI" if found else first.rstrip(":"), version=found[2] if found else "")


def _slurm() -> Slurm | None:
    if shutil.which("srun") is None:
        return None
    code, version, errors = _run(["srun", "--version"], _SLURM_PATIENCE_S)
    if code != 0:
        return Slurm(version="", problem=_last_line(errors, code))
    _, listed, also = _run(["srun", "--mpi=list"], _SLURM_PATIENCE_S)
    plugins = sorted(re.findall(r"^\s+(\w+)$", listed + also, re.MULTILINE))
    return Slurm(
        version=version.split()[-1],
        mpi_plugins=tuple(plugins),
        job_id=os.environ.get("SLURM_JOB_ID"),
        nodes=int(os.environ.get("SLURM_JOB_NUM_NODES", "1")),
    )
