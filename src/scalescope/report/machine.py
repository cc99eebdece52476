"""A machine and a probed cluster on the terminal, and what tracing a launch cost."""

from collections.abc import Iterator
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scalescope.records.cluster import Cluster, Costs, Overlap
from scalescope.records.explanation import TraceFolder
from scalescope.records.machine import Checkup, Horovod, Interface, Machine, Mpi, Slurm, Torch
from scalescope.report.terminal import Answer, answered, open_console, reasons, say, table
from scalescope.text import plural
from scalescope.units import format_bytes, format_seconds, format_share

_NOT_HERE = "not here"


def print_checkup(checkup: Checkup, to: IO[str]) -> None:
    """Write the checkup for people; names that the system gave are never read as markup."""
    console = open_console(file=to, highlight=False, markup=False)
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


_LARGE = 16 << 20


def show(cluster: Cluster, console: Console, *, details: bool = False) -> None:
    """What small and large messages take; with `details` every size, and what compute and messages do to each other."""
    sizes = sorted({size for costs in cluster.costs for size in costs.sizes_bytes})
    if details:
        rows = [[_group_words(costs), *(_at(costs, size) for size in sizes), _cpu(costs)] for costs in cluster.costs]
        if rows:
            say(console, "Time of a collective by size; CPU: part of it that a rank computes, at the largest", "bold")
            table([["group", *map(format_bytes, sizes), "CPU"], *rows], console, ("group",))
        for line in map(_overlap_words, cluster.overlaps):
            say(console, line)
        return
    reasons(console, answer(cluster), "every size, group and operation, and every overlap" if sizes else "")


def answer(cluster: Cluster) -> Answer:
    """How fast a large gradient travels, small and large messages of every backend, and what overlap costs."""
    widest = {costs.backend: costs for costs in sorted(_allreduces(cluster), key=lambda each: (each.nodes, each.ranks))}
    why = [*map(_span_words, widest.values()), *map(_overlap_words, cluster.overlaps[-1:])]
    return answered(sentence(cluster), why, warnings=[cluster.disturbed] if cluster.disturbed else [])


def _span_words(costs: Costs) -> str:
    """`gloo allreduce over 4 ranks: 4 B in 100 us, 64 MiB in 60 ms`."""
    ends = dict.fromkeys((0, len(costs.sizes_bytes) - 1))
    told = [f"{format_bytes(costs.sizes_bytes[at])} in {format_seconds(costs.seconds[at])}" for at in ends]
    return f"{_group_words(costs)}: {', '.join(told)}"


def _group_words(costs: Costs) -> str:
    return f"{costs.backend} {costs.operation} over {_where(costs)}"


def _overlap_words(overlap: Overlap) -> str:
    idle = f"; its own thread slows compute {overlap.idle:.2f}x" if overlap.idle > 1.05 else ""
    return (
        f"{overlap.backend} on {plural(overlap.ranks, 'rank')}: while a message travels compute takes "
        f"{overlap.compute:.2f}x as long and the message {overlap.communication:.2f}x{idle}"
    )


def _allreduces(cluster: Cluster) -> list[Costs]:
    return [costs for costs in cluster.costs if costs.operation == "allreduce"]


def _where(costs: Costs) -> str:
    return plural(costs.ranks, "rank") + (f", {costs.nodes} nodes" if costs.nodes > 1 else "")


def _at(costs: Costs, size: int) -> str:
    return format_seconds(costs.seconds[costs.sizes_bytes.index(size)]) if size in costs.sizes_bytes else ""


def _cpu(costs: Costs) -> str:
    return format_share(costs.cpu_seconds[-1] / costs.seconds[-1]) if costs.seconds and costs.seconds[-1] else ""


def sentence(cluster: Cluster) -> str:
    """One sentence: how fast a large gradient travels among the most ranks that were probed."""
    measured = _allreduces(cluster)
    if not measured:
        return "One rank fills this node: there is no link to probe."
    widest = max(measured, key=lambda costs: (costs.nodes, costs.ranks))
    at = min(range(len(widest.sizes_bytes)), key=lambda index: abs(widest.sizes_bytes[index] - _LARGE))
    size, seconds = widest.sizes_bytes[at], widest.seconds[at]
    return (
        f"{widest.backend} sums {format_bytes(size)} over {_where(widest)} in {format_seconds(seconds)}, "
        f"{format_bytes(size / seconds)}/s, give or take {format_share(widest.error)}."
    )


def sentence_of_trace(trace: TraceFolder, folder: str) -> str:
    """How much was captured where, and what that cost."""
    what = f"{plural(trace.steps, 'step')} of {plural(len(trace.ranks), 'rank')}"
    return f"Traced {trace.point.label}: {what} in {folder}; {sentence_of_overhead(trace)}."


def sentence_of_overhead(trace: TraceFolder) -> str:
    """What tracing added to a step, or that it cannot be told."""
    overhead = trace.overhead
    if not overhead or not trace.untraced_step_s:
        return "what tracing cost is not known: too few steps were made without it"
    step = f"a step of {format_seconds(trace.untraced_step_s)}"
    span = f"{100 * overhead.low:+.0f} % to {100 * overhead.high:+.0f} %"
    if overhead.low <= 0:
        return f"what tracing added to {step} is within the noise ({span})"
    return f"tracing added {format_share(overhead.value)} to {step} ({span})"
