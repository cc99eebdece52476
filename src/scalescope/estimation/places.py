"""Where an estimate is of: numbers of processes, their threads, this machine's links where none are described."""

from collections.abc import Sequence
from pathlib import Path

from scalescope import host
from scalescope.errors import UsageError
from scalescope.estimation.probe import groups, probe_cluster
from scalescope.progress import Progress
from scalescope.records.cluster import Cluster, Device
from scalescope.records.request import EstimateRequest, ProbeRequest
from scalescope.units import doublings

_MOST_ROWS = 64  # Without --np, more slots than this are shown by their doublings
_GROUP_S, _PROBE_S = 8.0, 12.0  # For a group of ranks, and for all groups together


def slots_here(request: EstimateRequest) -> int:
    """Ranks that this machine takes."""
    return host.slots(request.device)


def processes_of(request: EstimateRequest, described: Cluster | None) -> tuple[int, ...]:
    """The numbers of processes of the map; UsageError where there are fewer slots."""
    slots = described.slots if described else slots_here(request)
    if request.np:
        if max(request.np) > slots:
            whose = f"{request.cluster} has: lower it, or describe more nodes"
            if not described:
                whose = "this machine has: lower it, or describe a cluster with --cluster"
            raise UsageError(f"--np {max(request.np)} is more than the {slots} slots that {whose}")
        return request.np
    if slots <= _MOST_ROWS:
        return tuple(range(1, slots + 1))
    return doublings(slots)


def threads_of(request: EstimateRequest, described: Cluster | None, processes: Sequence[int]) -> int:
    """Threads of each rank."""
    if request.threads_per_rank:
        return request.threads_per_rank
    if described and described.device == "cpu":
        return host.threads_per_rank(described.cores_per_node, described.slots_per_node)
    return host.threads_per_rank(host.cores().physical, min(max(processes), slots_here(request)))


def this_machine(
    request: EstimateRequest,
    backend: str,
    operations: Sequence[str],
    device: Device,
    processes: Sequence[int],
    threads: int,
    folder: Path,
    progress: Progress,
) -> Cluster:
    """One node: this one, probed as far as the question needs it; what the ranks wrote stays in `folder`."""
    slots = min(max(processes), slots_here(request))
    asked = ProbeRequest(
        backends=(backend,) if slots > 1 else (),
        slots=slots,
        threads_per_rank=threads,
        device="cpu" if device == "cpu" else "cuda",
        seconds=min(request.seconds / 2, _GROUP_S, _PROBE_S / max(len(groups(backend, slots, ())), 1)),
        timeout_s=request.timeout_s,
        folder=str(folder),
    )
    return probe_cluster(asked, progress, operations)
