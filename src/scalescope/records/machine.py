"""Record of what a machine has for data-parallel training, what it lacks, and how to get it."""

from typing import ClassVar

import msgspec

from scalescope.records.store import Record


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """Processor cores."""

    physical: int | None  # None where the system does not say
    logical: int
    usable: float  # What this process may use: its affinity mask and its control group's quota
    usable_physical: int | None = None  # Physical cores among them, on which threads per rank are based

    @property
    def shares_cores(self) -> bool:
        """True if some of the usable ones are hyperthreads of the same core."""
        return self.usable_physical is not None and self.usable_physical < int(self.usable)


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One graphics card, as its driver names it."""

    name: str
    memory_bytes: int


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface that is up."""

    name: str
    addresses: tuple[str, ...]
    bits_per_s: int | None  # None where the driver does not say, as for virtual interfaces


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    """The torch of this Python."""

    version: str
    backends: tuple[str, ...] = ()  # Backends of torch.distributed that are built in: gloo, nccl, mpi, ucc
    cuda: str | None = None  # CUDA version it was built for
    gpus: int = 0  # Cards that it can use
    problem: str | None = None  # Why it does not import


class Horovod(msgspec.Struct, frozen=True, kw_only=True):
    """The Horovod of this Python, for torch."""

    version: str
    controllers: tuple[str, ...] = ()  # How ranks negotiate: mpi, gloo
    operations: tuple[str, ...] = ()  # How tensors are exchanged: nccl, mpi, gloo, ...
    problem: str | None = None  # Why it does not import


class Mpi(msgspec.Struct, frozen=True, kw_only=True):
    """The MPI whose mpirun is on PATH."""

    mpirun: str
    name: str  # `Open MPI`, or how another one calls itself
    version: str


class Slurm(msgspec.Struct, frozen=True, kw_only=True):
    """The Slurm whose srun is on PATH."""

    version: str
    mpi_plugins: tuple[str, ...] = ()  # What `srun --mpi=` takes
    job_id: str | None = None  # The allocation this process is in
    nodes: int = 1  # Nodes of that allocation
    problem: str | None = None  # Why srun does not answer


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of this machine, as this process sees them."""

    hostname: str
    system: str
    distribution: str  # The family that names its package manager: debian, fedora, suse; empty when unknown
    is_root: bool
    python: str
    python_version: str
    cores: Cores
    memory_bytes: int  # What this process may use: the machine's memory or its control group's limit
    shared_memory_bytes: int | None  # Size of /dev/shm
    disk_free_bytes: int  # In the current folder
    load_average: float  # Processes that wanted to run over the last minute
    gpus: tuple[Gpu, ...]
    interfaces: tuple[Interface, ...]
    torch: Torch | None
    horovod: Horovod | None
    mpi: Mpi | None
    slurm: Slurm | None
    ssh: str | None


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is missing, why one wants it, and the command that brings it."""

    missing: str
    reason: str
    command: str


class Checkup(Record, frozen=True, kw_only=True, tag="checkup"):
    """A machine with its remedies, one sentence of answer and the next command to type."""

    current_version: ClassVar[int] = 1

    machine: Machine
    remedies: tuple[Remedy, ...]
    answer: str
    next_command: str
