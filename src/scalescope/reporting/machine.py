"""Print what a machine has, what it lacks, and the next command to type."""

from collections.abc import Iterator
from typing import IO

from scalescope.records.machine import Checkup, Horovod, Interface, Machine, Mpi, Slurm, Torch
from scalescope.units import format_bytes, plural

_NOT_HERE = "not here"


def print_checkup(checkup: Checkup, to: IO[str]) -> None:
    """Write the checkup for people; names that the system gave are never read as markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=to, highlight=False, markup=False)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in machine_rows(checkup.machine):
        table.add_row(Text(name), Text(value))
    console.print(table)
    for remedy in checkup.remedies:
        console.print()
        console.print(Text.assemble((f"Missing: {remedy.missing}. ", "bold yellow"), f"{remedy.reason}."))
        console.print(Text(f"  {remedy.command}"), soft_wrap=True)  # a command is copied whole
    console.print()
    console.print(Text(checkup.answer, style="bold"))
    console.print(Text(f"Next: {checkup.next_command}"), soft_wrap=True)


def machine_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    """Names and values of the table, in reading order."""
    cores = machine.cores
    kinds = f"{cores.logical} logical" + (f", {cores.physical} physical" if cores.physical else "")
    yield "machine", f"{machine.hostname}, {machine.system}"
    shared = f" on {plural(cores.usable_physical or 1, 'physical core')}" if cores.shares_cores else ""
    yield "cores", f"{cores.usable:g} for this process{shared} ({kinds}); load {machine.load_average:.2f}"
    yield "memory", format_bytes(machine.memory_bytes) + _shared_memory(machine)
    yield "GPUs", "; ".join(f"{gpu.name}, {format_bytes(gpu.memory_bytes)}" for gpu in machine.gpus) or "none"
    yield "network", "; ".join(map(_interface, machine.interfaces)) or "none"
    yield "disk", f"{format_bytes(machine.disk_free_bytes)} free in this folder"
    yield "Python", f"{machine.python_version} ({machine.python})"
    yield "torch", _torch(machine.torch)
    yield "Horovod", _horovod(machine.horovod)
    yield "MPI", _mpi(machine.mpi)
    yield "Slurm", _slurm(machine.slurm)
    yield "ssh", machine.ssh or _NOT_HERE


def _shared_memory(machine: Machine) -> str:
    known = machine.shared_memory_bytes is not None
    return f"; /dev/shm {format_bytes(machine.shared_memory_bytes or 0)}" if known else ""


def _interface(interface: Interface) -> str:
    speed = f", {interface.bits_per_s / 1e9:g} Gbit/s" if interface.bits_per_s else ""
    addresses = " ".join(interface.addresses) or "no address"
    return f"{interface.name} ({addresses}{speed})"


def _torch(torch: Torch | None) -> str:
    if torch is None:
        return _NOT_HERE
    if torch.problem:
        return f"{torch.version}, does not import"
    cuda = f"CUDA {torch.cuda}, {plural(torch.gpus, 'GPU')}" if torch.cuda else "no CUDA"
    return f"{torch.version}; backends {', '.join(torch.backends) or 'none'}; {cuda}"


def _horovod(horovod: Horovod | None) -> str:
    if horovod is None:
        return _NOT_HERE
    if horovod.problem:
        return f"{horovod.version}, does not import"
    return (
        f"{horovod.version}; controllers {', '.join(horovod.controllers)}; operations {', '.join(horovod.operations)}"
    )


def _mpi(mpi: Mpi | None) -> str:
    return _NOT_HERE if mpi is None else f"{mpi.name} {mpi.version} ({mpi.mpirun})"


def _slurm(slurm: Slurm | None) -> str:
    if slurm is None:
        return _NOT_HERE
    if slurm.problem:
        return "here, does not answer"
    place = f"in job {slurm.job_id} of {plural(slurm.nodes, 'node')}" if slurm.job_id else "outside any allocation"
    return f"{slurm.version}, {place}; --mpi takes {', '.join(slurm.mpi_plugins) or 'nothing'}"
