"""A machine: what it has for data-parallel training, what is missing and the command that brings it."""

import msgspec

from scalescope.records.machine import Checkup, Machine
from scalescope.show.document import Column, Document, Section, Table
from scalescope.text import plural
from scalescope.units import format_bytes

_NOT_HERE = "not here"


def document(checkup: Checkup) -> Document:
    """Say whether the machine is ready; its parts as a table, and a section for everything that is missing."""
    columns = [Column(lambda row: row[0], "part", words=True), Column(lambda row: row[1], "here", words=True)]
    rows = list(machine_rows(checkup.machine).items())
    return Document(
        answer=checkup.answer,
        sections=(
            Section("machine", "This machine", tables=[Table(columns, rows, "This machine.", noun="part")]),
            *(
                Section(f"missing-{at}", f"Missing: {remedy.missing}", [f"{remedy.reason}."], code=[remedy.command])
                for at, remedy in enumerate(checkup.remedies, start=1)
            ),
        ),
        json=lambda: msgspec.to_builtins(checkup),
    )


def machine_rows(machine: Machine) -> dict[str, str]:
    """Names and values of the table, in reading order."""
    cores, torch, horovod, mpi, slurm = machine.cores, machine.torch, machine.horovod, machine.mpi, machine.slurm
    shared = f" on {plural(cores.usable_physical or 1, 'physical core')}" if cores.shares_cores else ""
    kinds = f"{cores.logical} logical" + (f", {cores.physical} physical" if cores.physical else "")
    memory = format_bytes(machine.memory_bytes)
    if machine.shared_memory_bytes is not None:
        memory += f"; /dev/shm {format_bytes(machine.shared_memory_bytes)}"
    interfaces = [
        f"{each.name} ({' '.join(each.addresses) or 'no address'}"
        f"{f', {each.bits_per_s / 1e9:g} Gbit/s' if each.bits_per_s else ''})"
        for each in machine.interfaces
    ]
    rows = {
        "machine": f"{machine.hostname}, {machine.system}",
        "cores": f"{cores.usable:g} for this process{shared} ({kinds}); load {machine.load_average:.2f}",
        "memory": memory,
        "GPUs": "; ".join(f"{gpu.name}, {format_bytes(gpu.memory_bytes)}" for gpu in machine.gpus) or "none",
        "network": "; ".join(interfaces) or "none",
        "disk": f"{format_bytes(machine.disk_free_bytes)} free in this folder",
        "Python": f"{machine.python_version} ({machine.python})",
        **dict.fromkeys(("torch", "Horovod", "MPI", "Slurm"), _NOT_HERE),
        "ssh": machine.ssh or _NOT_HERE,
    }
    if torch:
        cuda = f"CUDA {torch.cuda}, {plural(torch.gpus, 'GPU')}" if torch.cuda else "no CUDA"
        told = f"backends {', '.join(torch.backends) or 'none'}; {cuda}"
        rows["torch"] = f"{torch.version}, does not import" if torch.problem else f"{torch.version}; {told}"
    if horovod:
        told = f"controllers {', '.join(horovod.controllers)}; operations {', '.join(horovod.operations)}"
        rows["Horovod"] = f"{horovod.version}, does not import" if horovod.problem else f"{horovod.version}; {told}"
    if mpi:
        rows["MPI"] = f"{mpi.name} {mpi.version} ({mpi.mpirun})"
    if slurm:
        place = f"in job {slurm.job_id} of {plural(slurm.nodes, 'node')}" if slurm.job_id else "outside any allocation"
        told = f"{slurm.version}, {place}; --mpi takes {', '.join(slurm.mpi_plugins) or 'nothing'}"
        rows["Slurm"] = "here, does not answer" if slurm.problem else told
    return rows
