"""Places of an estimate: numbers of processes, their threads, this machine's links where none are described."""

from collections.abc import Sequence
from pathlib import Path

from scalescope import host
from scalescope.errors import UsageError
from scalescope.estimation.probe import groups, probe_cluster
from scalescope.jobs.rank_program import Place, place_of
from scalescope.progress import Progress
from scalescope.records.cluster import Cluster, Device
from scalescope.records.request import EstimateRequest, ProbeRequest
from scalescope.units import doublings

_MOST_ROWS = 64  # Without --np, more slots than this are shown by their doublings
_GROUP_S, _PROBE_S = 8.0, 12.0  # For a group of ranks, and for all groups together


def place_here(request: EstimateRequest) -> Place:
    """The hosts on which links are probed and cells are verified."""
    return place_of(request.hosts, request.per_node)


def slots_here(request: EstimateRequest) -> int:
    """Ranks that all hosts take which can be launched on."""
    return place_here(request).slots or request.per_node or host.slots(request.device)


def slots_of_a_host(request: EstimateRequest) -> int:
    """Ranks that one of them takes."""
    hosts = place_here(request).hosts
    return hosts[0].slots if hosts else slots_here(request)


def processes_of(request: EstimateRequest, described: Cluster | None) -> tuple[int, ...]:
    """The numbers of processes of the map; UsageError where there are fewer slots."""
    slots = described.slots if described else slots_here(request)
    if max(request.np, default=0) > slots:
        here = ",".join(each.name for each in place_here(request).hosts) or "this machine"
        raise UsageError(
            f"--np {max(request.np)} is more than the {slots} slots of {request.cluster or here}: lower it, name more "
            "with --hosts, or describe a cluster with --cluster"
        )
    return request.np or (tuple(range(1, slots + 1)) if slots <= _MOST_ROWS else doublings(slots))


def threads_of(request: EstimateRequest, described: Cluster | None, processes: Sequence[int]) -> int:
    """Threads of each rank."""
    if request.threads_per_rank:
        return request.threads_per_rank
    if described and described.device == "cpu":
        return host.threads_per_rank(described.cores_per_node, described.slots_per_node)
    return host.threads_per_rank(host.cores().physical, min(max(processes), slots_of_a_host(request)))


def this_machine(
    request: EstimateRequest,
    backend: str,
    operations: Sequence[str],
    *,
    device: Device,
    processes: Sequence[int],
    threads: int,
    folder: Path,
    progress: Progress,
) -> Cluster:
    """This one, or the hosts that were named, probed as far as the question needs it, with records in `folder`."""
    slots = min(max(processes), slots_of_a_host(request))
    hosts = place_here(request).hosts[: -(-max(processes) // slots)]
    asked = ProbeRequest(
        backends=(backend,) if max(processes) > 1 else (),
        slots=slots,
        threads_per_rank=threads,
        device="cpu" if device == "cpu" else "cuda",
        seconds=min(request.seconds / 2, _GROUP_S, _PROBE_S / max(len(groups(backend, slots, hosts)), 1)),
        hosts=request.hosts[: len(hosts)],
        ssh=request.ssh,
        env=request.env,
        timeout_s=request.timeout_s,
        folder=str(folder),
    )
    return probe_cluster(asked, progress, operations)
