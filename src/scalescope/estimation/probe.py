"""Probes links and cores: ranks time collectives, group by group, and what they found makes a cluster."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any, get_args

import msgspec

from scalescope import host
from scalescope.engines import check_backend, knobs_of
from scalescope.errors import UsageError, WorkFailed
from scalescope.estimation.link_probe import SIZES, USUAL_OPERATIONS
from scalescope.estimation.probe_ranks import (
    Around,
    Idle,
    Line,
    Overlapped,
    ProbeTask,
    Round,
    Timed,
    disagreement,
    file_of,
)
from scalescope.jobs.folders import result_folder
from scalescope.jobs.rank_program import Place, RankProgram, place_of, run_ranks, starting_s
from scalescope.jobs.request import in_nodes
from scalescope.options import read
from scalescope.progress import Progress
from scalescope.records.cluster import Cluster, Costs, Operation, Overlap, gpu_model
from scalescope.records.cluster_file import write_cluster
from scalescope.records.files import CLUSTER
from scalescope.records.job import Host
from scalescope.records.request import ProbeRequest
from scalescope.records.run import QUIET
from scalescope.records.store import complete_lines, in_folder
from scalescope.stats import standard_error
from scalescope.units import format_share

_ERROR_OF_ONE = 0.10  # Relative standard error of what was timed in one round only
_MOST_PER_CORE = 8  # Ranks that a probe starts: more of them only wait for each other
_TOO_DIFFERENT = 0.30  # Relative standard deviation of rounds from which on they say nothing

_Together = Sequence[Sequence[Line]]  # The lines of one round, by rank
_Timings = dict[tuple[str, int], Sequence[Timed]]  # Of one round, by operation and size: what every rank timed


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks among which one backend is probed."""

    backend: str
    ranks: int
    nodes: int
    hosts: tuple[Host, ...] = ()


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Costs and overlap that were measured in one group."""

    costs: tuple[Costs, ...]
    overlap: Overlap | None
    copy_s_per_byte: float
    disturbed: str = ""  # Why it is not to be trusted, in one line; empty: it is
    remark: str = ""  # Rounds that do not count, in one line; empty: all do


def probe_request(**given: Any) -> ProbeRequest:
    """Make the request of probe, from texts or Python values; without a backend the one that DDP uses here.

    Raises:
        UsageError: Something cannot be read, or is more than this machine can run.
    """
    asked = read(ProbeRequest, given)
    if asked.get("slots") and (asked.get("nodes") or asked.get("submit")):
        asked = {"per_node": asked["slots"], **asked}
    asked = in_nodes(ProbeRequest, asked)
    if asked.get("per_node"):
        asked = {"slots": asked["per_node"], **asked}
    cores, slots = host.cores().logical, asked.get("slots", 0)
    if not (asked.get("hosts") or asked.get("per_node")) and slots > _MOST_PER_CORE * cores:
        raise UsageError(
            f"--slots {slots} is too many for the {cores} cores of this machine, with {_MOST_PER_CORE} ranks for each: "
            f"take at most {_MOST_PER_CORE * cores}, or name --hosts"
        )
    usual = "gloo" if asked.get("device") == "cpu" or not host.gpus() else "nccl"
    return ProbeRequest(**{"backends": () if asked.get("submit") else (usual,), **asked})  # a login node has no GPUs


def probe(request: ProbeRequest, progress: Progress) -> Cluster:
    """Probe into a result folder, which the cluster names."""
    with result_folder("probe", request.folder) as folder:
        if (folder / CLUSTER).exists():  # people edit it to describe a larger cluster
            raise UsageError(f"{folder} already holds a probe: choose another folder with -o")
        cluster = probe_cluster(msgspec.structs.replace(request, folder=str(folder)), progress)
        write_cluster(cluster, folder / CLUSTER)
    return in_folder(cluster, folder)


def probe_cluster(request: ProbeRequest, progress: Progress, operations: Sequence[str] = USUAL_OPERATIONS) -> Cluster:
    """Probe every group of ranks with every backend that is asked for, by these operations."""
    device = ("cuda" if host.gpus() else "cpu") if request.device == "auto" else request.device
    place = place_of(request.hosts, request.slots)
    hosts = place.hosts
    slots = request.slots or max((each.slots for each in hosts), default=0) or host.slots(device)
    found: list[Findings] = []
    for backend in request.backends:
        check_backend(backend, device)
        for group in groups(backend, slots, hosts):
            words = f"{backend} among {group.ranks} ranks" + (f" on {group.nodes} nodes" if group.nodes > 1 else "")
            progress.stage(words, request.seconds + starting_s(group.ranks))
            found.append(probe_group(group, request, device, place, operations))
            if found[-1].remark:
                progress.note(f"{words[0].upper()}{words[1:]}: {found[-1].remark}.")
    # On a GPU the host's wait for each copy would count; what DDP costs there is known by the GPU's model.
    copies = [finding.copy_s_per_byte for finding in found if device == "cpu"]
    return Cluster(
        name="this machine" if not hosts else ",".join(each.name for each in hosts),
        nodes=max(len(hosts), 1),
        slots_per_node=slots,
        cores_per_node=host.cores().physical,
        device="gpu" if device == "cuda" else "cpu",
        gpu=gpu_model(next((card.name for card in host.cards()), "")) if device == "cuda" else None,
        copy_s_per_byte=sorted(copies)[len(copies) // 2] if copies else 0.0,
        costs=tuple(cost for finding in found for cost in finding.costs),
        overlaps=tuple(finding.overlap for finding in found if finding.overlap),
        threads_per_rank=request.threads_per_rank,
        disturbed="; ".join(dict.fromkeys(finding.disturbed for finding in found if finding.disturbed)),
    )


def groups(backend: str, slots: int, hosts: tuple[Host, ...]) -> list[Group]:
    """List the groups of ranks to probe: 2, 4 and all of a node, then one of each node, and all."""
    counts = sorted({count for count in (2, 4, slots) if 1 < count <= slots})
    first = (Host(hosts[0].name, slots),) if hosts else ()
    found = [Group(backend=backend, ranks=count, nodes=1, hosts=first) for count in counts]
    for count in sorted({2, len(hosts)}) if len(hosts) > 1 else ():
        several = hosts[:count]
        ones = tuple(Host(host.name, 1) for host in several)
        found.append(Group(backend=backend, ranks=count, nodes=count, hosts=ones))
        if slots > 1:
            found.append(Group(backend=backend, ranks=count * slots, nodes=count, hosts=several))
    return found


def probe_group(
    group: Group,
    request: ProbeRequest,
    device: str,
    place: Place,
    operations: Sequence[str] = USUAL_OPERATIONS,
    sizes: Sequence[int] = SIZES,
) -> Findings:
    """Launch the ranks of one group, below the folder of the request, and read what they timed."""
    knobs = knobs_of(group.backend)
    folder = Path(request.folder) / f"{group.backend}-{group.ranks}-{group.nodes}"
    task = ProbeTask(
        engine=knobs.engine,
        knobs=dict(knobs.values),
        device=device,
        rounds=request.rounds,
        seconds=request.seconds,
        sizes=tuple(sizes),
        operations=tuple(operations),
    )
    run_ranks(
        RankProgram(
            module="scalescope.estimation.probe_ranks",
            task=task,
            np=group.ranks,
            knobs=knobs,
            launcher=place.launcher,
            folder=folder,
            threads_per_rank=request.threads_per_rank,
            hosts=group.hosts,
            env={**place.env, **request.env},
            ssh=request.ssh,
            writes="probe-rank*.jsonl",
            timeout_s=request.timeout_s,
        )
    )
    return findings(group, read_lines(folder, group.ranks))


def read_lines(folder: Path, ranks: int) -> list[list[Line]]:
    """Read the lines of every rank."""
    decode = msgspec.json.Decoder(Line).decode
    lines = [[decode(line) for line in complete_lines(folder / file_of(rank))] for rank in range(ranks)]
    if not all(lines):
        raise WorkFailed(f"a rank of the probe wrote nothing (see {folder}): try it again")
    return lines


def findings(group: Group, lines: Sequence[Sequence[Line]]) -> Findings:
    """Sum up the undisturbed rounds, or all of them when there is none.

    A cost is the mean over repetitions of the slowest rank: a message that finds its core taken waits, so times come in
    two kinds, and a step pays the mean of them.
    """
    by_rank: list[list[list[Line]]] = []
    for of_rank in lines:
        rounds_of_rank: list[list[Line]] = [[]]
        for line in of_rank:
            # What is timed after a round's end and is no collective belongs to it.
            if isinstance(line, Timed) and any(isinstance(each, Round) for each in rounds_of_rank[-1]):
                rounds_of_rank.append([])
            rounds_of_rank[-1].append(line)
        by_rank.append(rounds_of_rank)
    made: list[_Together] = list(zip(*by_rank, strict=False))  # that every rank has begun
    foreign_cores = [_foreign_cores(group, together) for together in made]
    quiet = [together for together, cores in zip(made, foreign_cores, strict=True) if cores <= QUIET]
    used = quiet or made
    rounds: list[_Timings] = []
    for together in used:
        timed = [[line for line in of_rank if isinstance(line, Timed)] for of_rank in together]
        rounds.append({(each[0].operation, each[0].bytes): each for each in zip(*timed, strict=False)})
    differ = disagreement([sum(map(_slowest_s, timings.values())) for timings in rounds])
    disturbed = f"rounds of the probe differ by {format_share(differ)} (one sigma)" if differ > _TOO_DIFFERENT else ""
    if not quiet:
        disturbed = f"other programs kept {min(foreign_cores):.1f} cores or more busy in every round of the probe"
    repeated = len(made) - len(quiet) if quiet else 0
    copies = [line.copy_s_per_byte for of_rank in lines for line in of_rank if isinstance(line, Around)]
    return Findings(
        costs=tuple(
            costs for operation in get_args(Operation) if (costs := _costs(group, operation, rounds)) is not None
        ),
        overlap=_overlap(group, used),
        copy_s_per_byte=median(copies or [0.0]),
        disturbed=disturbed,
        remark=f"{repeated} of {len(made)} rounds were repeated: other programs were busy" if repeated else "",
    )


def _foreign_cores(group: Group, together: _Together) -> float:
    """Cores that other programs used during a round, on the host where they used most."""
    found = [[line.foreign_cores for line in of_rank if isinstance(line, Round)] for of_rank in together]
    local = max(group.ranks // group.nodes, 1)
    hosts = [[cores for of_rank in found[at : at + local] for cores in of_rank] for at in range(0, len(found), local)]
    return max((fmean(of_host) for of_host in hosts if of_host), default=0.0)


def _slowest_s(together: Sequence[Timed]) -> float:
    """The mean of the slowest rank without the largest tenth, in which the machine did something else."""
    values = sorted(map(max, zip(*(line.seconds for line in together), strict=True)))
    return fmean(values[: max(len(values) - len(values) // 10, 1)])


def _costs(group: Group, operation: Operation, rounds: Sequence[_Timings]) -> Costs | None:
    sizes = sorted({size for timed in rounds for name, size in timed if name == operation})
    if not sizes:
        return None
    found = {size: [timed[operation, size] for timed in rounds if (operation, size) in timed] for size in sizes}
    seconds = {size: [_slowest_s(together) for together in made] for size, made in found.items()}
    return Costs(
        backend=group.backend,
        operation=operation,
        ranks=group.ranks,
        nodes=group.nodes,
        sizes_bytes=tuple(sizes),
        seconds=tuple(median(seconds[size]) for size in sizes),
        cpu_seconds=tuple(
            fmean(value for together in found[size] for line in together for value in line.cpu_seconds)
            for size in sizes
        ),
        error=median(map(_error_of, seconds.values())),
    )


def _overlap(group: Group, rounds: Sequence[_Together]) -> Overlap | None:
    """Slowdowns of compute, of messages, and of compute next to the idle engine: over all ranks, by round.

    They are not cut off at 1: among many probes that would make noise into a slowdown.
    """
    compute, communication, idle = [], [], []
    for together in rounds:
        lines = [line for of_rank in together for line in of_rank]
        if overlapped := [line for line in lines if isinstance(line, Overlapped)]:
            compute.append(geometric_mean(line.layer_overlapped_s / line.layer_s for line in overlapped))
            communication.append(geometric_mean(line.message_overlapped_s / line.message_s for line in overlapped))
        if found := [line for line in lines if isinstance(line, Idle)]:
            idle.append(sum(line.layer_s for line in found) / sum(line.layer_without_s for line in found))
    if not compute:
        return None
    return Overlap(
        backend=group.backend,
        ranks=group.ranks,
        nodes=group.nodes,
        compute=median(compute),
        communication=median(communication),
        idle=geometric_mean(idle) if idle else 1.0,
        idle_error=_error_of(idle) if idle else 0.0,
        compute_error=_error_of(compute),
        communication_error=_error_of(communication),
    )


def _error_of(rounds: Sequence[float]) -> float:
    return standard_error(rounds) if len(rounds) > 1 else _ERROR_OF_ONE
