"""Probes links and cores: launches ranks that time collectives, and makes a cluster of what they found."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec

from scalescope.engines import find_engine
from scalescope.errors import WorkFailed
from scalescope.measurement.link_probe import SIZES
from scalescope.measurement.probe_ranks import Around, Beside, Line, ProbeTask, Timed, file_of
from scalescope.measurement.rank_program import RankProgram, run_ranks
from scalescope.records.cluster import Costs, Operation, Overlap
from scalescope.records.job import Host
from scalescope.records.knobs import Knobs
from scalescope.records.store import complete_lines
from scalescope.stats import relative_deviation


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks among which one backend is probed."""

    backend: str
    ranks: int
    nodes: int
    hosts: tuple[Host, ...] = ()


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What one group showed."""

    costs: tuple[Costs, ...]
    overlap: Overlap | None
    copy_s_per_byte: float


def knobs_of(backend: str) -> Knobs:
    """The engine and the knobs that use a backend."""
    if backend.startswith("horovod-"):
        moved_by = backend.removeprefix("horovod-")
        return Knobs(engine="horovod", values={"controller": "mpi" if moved_by == "nccl" else moved_by})
    return Knobs(engine="ddp", values={"backend": backend})


def probe_group(
    group: Group,
    *,
    folder: Path,
    threads_per_rank: int,
    seconds: float,
    rounds: int,
    tell: Callable[[int], None],
    device: str = "cpu",
    ssh: str = "ssh",
    env: dict[str, str] | None = None,
    sizes: Sequence[int] = SIZES,
) -> Findings:
    """Launch the ranks of one group and read what they timed."""
    knobs = knobs_of(group.backend)
    task = ProbeTask(
        engine=knobs.engine,
        knobs=dict(knobs.values),
        device=device,
        rounds=rounds,
        seconds=seconds,
        sizes=tuple(sizes),
    )
    run_ranks(
        RankProgram(
            module="scalescope.measurement.probe_ranks",
            task=task,
            np=group.ranks,
            knobs=knobs,
            launcher=find_engine(knobs.engine).launcher(knobs.values),
            folder=folder,
            threads_per_rank=threads_per_rank,
            hosts=group.hosts,
            env=env or {},
            ssh=ssh,
            writes="probe-rank*.jsonl",
        ),
        tell,
    )
    return findings(group, read_lines(folder, group.ranks))


def read_lines(folder: Path, ranks: int) -> list[list[Line]]:
    """What every rank wrote."""
    decode = msgspec.json.Decoder(Line).decode
    lines = [[decode(line) for line in complete_lines(folder / file_of(rank))] for rank in range(ranks)]
    if not all(lines):
        raise WorkFailed(f"a rank of the probe wrote nothing (see {folder}): try it again")
    return lines


def findings(group: Group, lines: Sequence[Sequence[Line]]) -> Findings:
    """Means over repetitions of the slowest rank, and how much rounds differ.

    Means, because a message that finds its core taken waits for a turn: times come in two kinds, and a step pays the
    mean of them.
    """
    timed = [[line for line in of_rank if isinstance(line, Timed)] for of_rank in lines]
    rounds: dict[tuple[str, int], list[float]] = {}
    used: dict[tuple[str, int], list[float]] = {}
    for together in zip(*timed, strict=False):
        key = together[0].operation, together[0].bytes
        slowest = list(map(max, zip(*(line.seconds for line in together), strict=True)))
        rounds.setdefault(key, []).append(_trimmed(slowest))
        used.setdefault(key, []).extend(value for line in together for value in line.cpu_seconds)
    operations: tuple[Operation, ...] = ("allreduce", "broadcast")
    costs = []
    for operation in operations:
        sizes = sorted(size for name, size in rounds if name == operation)
        if sizes:
            costs.append(
                Costs(
                    backend=group.backend,
                    operation=operation,
                    ranks=group.ranks,
                    nodes=group.nodes,
                    sizes_bytes=tuple(sizes),
                    seconds=tuple(median(rounds[operation, size]) for size in sizes),
                    cpu_seconds=tuple(fmean(used[operation, size]) for size in sizes),
                    error=median(_error(rounds[operation, size]) for size in sizes),
                )
            )
    return Findings(costs=tuple(costs), overlap=_overlap(group, lines), copy_s_per_byte=_copy(lines))


def _trimmed(values: Sequence[float]) -> float:
    """The mean without the largest tenth, in which the machine did something else."""
    kept = sorted(values)[: max(len(values) - len(values) // 10, 1)]
    return fmean(kept)


def _error(values: Sequence[float]) -> float:
    """Relative standard error of the median of some rounds."""
    if len(values) < 2:
        return 0.05
    return relative_deviation(values) / math.sqrt(len(values))


def _overlap(group: Group, lines: Sequence[Sequence[Line]]) -> Overlap | None:
    beside = [line for of_rank in lines for line in of_rank if isinstance(line, Beside)]
    around = [line for of_rank in lines for line in of_rank if isinstance(line, Around)]
    if not beside:
        return None
    return Overlap(
        backend=group.backend,
        ranks=group.ranks,
        nodes=group.nodes,
        compute=max(median(line.layer_beside_s / line.layer_s for line in beside), 1.0),
        communication=max(median(line.message_beside_s / line.message_s for line in beside), 1.0),
        idle=max(median(line.layer_s / line.layer_without_s for line in around), 1.0) if around else 1.0,
    )


def _copy(lines: Sequence[Sequence[Line]]) -> float:
    return median([line.copy_s_per_byte for of_rank in lines for line in of_rank if isinstance(line, Around)] or [0.0])
