"""Reads what the agent wrote in a process that ran as rank 0 of N, and makes a RankZero of it."""

import contextlib
import math
import types
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

import msgspec

from scalescope.engines import COLLECTIVES, KNOWN, PLAIN
from scalescope.errors import UsageError
from scalescope.jobs.rank_log import RankLog, Step
from scalescope.jobs.step_clock import memory_limit
from scalescope.records.rank_zero import Message, Phase, RankZero
from scalescope.text import plain, plural
from scalescope.units import format_bytes

_FEWEST_TIMED, _FEW_TIMED = 3, 20
_AS_USUAL = 0.98  # Samples of a step on average, over those of most, from which none of them is taken for short


class _Line(msgspec.Struct):
    """A line that the agent writes of a run as rank 0 of N; the kind says which fields count."""

    kind: str
    text: str = ""
    first: int = 0  # A block of steps that were timed: its first, how many, CPU seconds and seconds of all
    steps: int = 0
    cpu: float = 0.0
    seconds: float = 0.0
    samples: int = 0  # A recorded step: its times, groups of the script, collectives
    finite: bool = True
    step_s: float = 0.0
    fill_s: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    groups: list[tuple[str, int, int]] = []
    messages: list[tuple[str, int, str, int, Phase, str, bool, float, float | None, float]] = []
    batch: int = 0  # A loader: samples of a batch, and batches of an epoch
    batches: int = 0
    why: str = ""  # The end
    backend: str = ""
    torch: str = ""
    threads: int = 0
    memory: int = 0
    build: int = 0
    gpu: str = ""
    limit: int = 0


class Role(NamedTuple):
    """A command, and the rank 0 that it ran as."""

    what: str
    np: int
    ranks_per_node: int


class Seen(NamedTuple):
    """Everything that one process wrote."""

    log: RankLog
    lines: list[_Line]
    end: _Line

    def of(self, kind: str) -> list[_Line]:
        """Lines of one kind."""
        return [line for line in self.lines if line.kind == f"rank_zero_{kind}"]


def read_process(path: Path) -> Seen | None:
    """Read what the process of this file did; None: it has not come to its end, or was a launcher."""
    log, decode = RankLog(path), msgspec.json.Decoder(_Line).decode
    log.poll()
    lines = []
    for data in path.read_bytes().splitlines():
        if b'"rank_zero_' in data:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # a torn line of a full disk
                lines.append(decode(data))
    end = next((line for line in lines if line.kind == "rank_zero_end"), None)
    return Seen(log, lines, end) if end else None


def memory_limit_here() -> int:
    """Bytes that a process of this host may take."""
    return memory_limit(types.SimpleNamespace(type="cpu"))


def texts_of(seen: Iterable[Seen], kind: str) -> tuple[str, ...]:
    """Sentences of one kind, each once."""
    return tuple(dict.fromkeys(plain(line.text, 300) for each in seen for line in each.of(kind)))


def peers_missed(seen: Iterable[Seen]) -> str:
    """Reason for which the script needs real ranks, if it went on without what another one would have told it."""
    told = texts_of(seen, "peer")
    return f"it needs real ranks ({told[0]}): scalescope measure starts them" if told else ""


def record_of(role: Role, seen: Seen, together: Sequence[Seen]) -> RankZero:
    """The record of one process; of several that ran next to each other only steps count in which all of them did."""
    np, end = role.np, seen.end
    _check_batches(np, seen)
    if not end.steps:
        why = peers_missed([seen]) or "it has to train with torch.optim"
        raise UsageError(f"as rank 0 of {np} the script made no optimizer step: {why}")
    steps, recorded = _timed(seen, together), seen.of("step")
    if len(steps) < _FEWEST_TIMED or not recorded:
        raise UsageError(
            f"as rank 0 of {np} the script ended after {plural(end.steps, 'step')}, which are too few to be timed: "
            "give it more data or more epochs"
        )
    if np > 1 and not recorded[0].groups:
        raise UsageError(
            f"as rank 0 of {np} the script started no process group and trained alone: start it as on many ranks, "
            "with torch.distributed.init_process_group"
        )
    typical, differ = _typical(recorded)
    engine = engine_of(seen, typical.messages)
    known = KNOWN.get(engine)
    if known and known.package:
        raise UsageError(f"as rank 0 of {np}: {known.title} starts its own ranks, which nothing stands in for")
    times = [step.seconds for step in steps]
    step_s = fmean(times)
    warnings = [
        *texts_of([seen], "warning"),
        *texts_of([seen], "peer"),
        *([known.not_recorded] if known and known.not_recorded else []),
    ]
    shards = any(row[0] == "reduce_scatter" and row[5] for row in typical.messages)
    if shards and known and "reducescatter" not in known.operations:
        warnings.append(
            f"a part of the model is sharded by FSDP2: the map is named after {known.title}, both are in it"
        )
    if differ:
        warnings.append(f"collectives differ from step to step: those of the most common of {differ} kinds are given")
    if end.why != "enough" and len(times) < _FEW_TIMED:
        warnings.append(
            f"the script ended by itself after {plural(end.steps, 'step')}, of which {len(times)} could be timed"
        )
    if end.build > 1.05 * end.memory:
        warnings.append(f"before its first step it took {format_bytes(end.build)}, in steps {format_bytes(end.memory)}")
    blocks = seen.of("timed")
    fill_s = median(line.fill_s for line in recorded)
    return RankZero(
        **role._asdict(),
        batch=_usual(step.samples for step in [*steps, *seen.log.steps()]),
        engine=engine,
        backend=end.backend,
        device="gpu" if end.gpu else "cpu",
        gpu=end.gpu,
        torch=end.torch,
        threads=max(end.threads, 1),
        step_s=step_s,
        steps_s=tuple(times),
        error=_error(times),
        fill_s=min(fill_s, step_s),
        forward_s=median(line.forward for line in recorded),
        backward_s=median(line.backward for line in recorded),
        optimizer_s=median(line.optimizer for line in recorded),
        recorded_step_s=typical.step_s - typical.fill_s,
        messages=tuple(_message(typical, row) for row in typical.messages),
        issues_s=tuple(
            (*(row[7] for row in line.messages), line.step_s - line.fill_s)
            for line in recorded
            if _kind(line) == _kind(typical)
        ),
        cores_used=sum(line.cpu for line in blocks) / max(sum(line.seconds for line in blocks), 1e-9),
        memory_bytes=end.memory,
        memory_limit_bytes=end.limit or memory_limit_here(),
        finite=end.finite and all(line.finite for line in recorded),
        saves=texts_of([seen], "save"),
        warnings=tuple(warnings),
    )


def _timed(seen: Seen, together: Sequence[Seen]) -> list[Step]:
    """Steps of the blocks that were timed, while all of `together` were timed."""
    steps = seen.log.steps()
    numbers = [number for block in seen.of("timed") for number in range(block.first, block.first + block.steps)]
    timed = [steps[number] for number in numbers if number < len(steps)]
    spans = [span for each in together if (span := _timed(each, ()))]
    if len(spans) > 1:
        first, last = max(span[0].start for span in spans), min(span[-1].end for span in spans)
        timed = [step for step in timed if step.start >= first and step.end <= last] or timed
    usual, samples = _usual(step.samples for step in steps), [step.samples for step in timed if step.samples]
    if samples and fmean(samples) > _AS_USUAL * usual:  # a loop that fetches ahead may count a batch one step later
        return timed
    return [step for step in timed if not 0 < step.samples < usual]


def _usual(samples: Iterable[int]) -> int:
    """The samples of most steps; steps that nobody looked at do not count."""
    counted = Counter(each for each in samples if each)
    return counted.most_common(1)[0][0] if counted else 0


def _check_batches(np: int, seen: Seen) -> None:
    """Refuse epochs that N ranks shrink to no batch, or to a short one."""
    loaders = seen.of("loader")
    empty = [line for line in loaders if not line.batches]
    if not seen.log.steps() and empty:
        raise UsageError(
            f"as rank 0 of {np} an epoch has no batch: {np} ranks with {empty[0].batch} samples each are more than the "
            "data set has; give it more data or a smaller batch"
        )
    usual, sizes = (
        _usual(step.samples for step in seen.log.steps()),
        {line.batch for line in loaders if line.batches == 1},
    )
    if usual and sizes and usual < min(sizes) and not any(line.batches > 1 for line in loaders):
        raise UsageError(
            f"as rank 0 of {np} an epoch is one short batch ({usual} of {min(sizes)} samples), which says nothing of a "
            "whole one: give it more data or a smaller batch"
        )


def _typical(recorded: Sequence[_Line]) -> tuple[_Line, int]:
    """Median step by time among those with the most common collectives, and the number of kinds; 0: all alike."""
    kinds = Counter(_kind(line) for line in recorded)
    most = kinds.most_common(1)[0][0]
    alike = sorted((line for line in recorded if _kind(line) == most), key=lambda line: line.step_s)
    return alike[len(alike) // 2], len(kinds) if len(kinds) > 1 else 0


def _kind(line: _Line) -> tuple[tuple[object, ...], ...]:
    return tuple((row[0], row[1], row[3]) for row in line.messages)


def _message(line: _Line, row: tuple[str, int, str, int, Phase, str, bool, float, float | None, float]) -> Message:
    operation, size, dtype, group, phase, module, prefetched, issued_s, needed_s, fill_s = row
    name, ranks, stride = line.groups[group]
    return Message(
        operation=operation,  # type: ignore[arg-type]
        bytes=size,
        dtype=dtype,
        ranks=ranks,
        stride=stride,
        group=plain(name, 100),
        phase=phase,
        module=plain(module, 200),
        prefetched=prefetched,
        issued_s=max(issued_s, 0.0),
        needed_s=None if needed_s is None else max(needed_s, 0.0),
        fill_s=max(fill_s, 0.0),
    )


def engine_of(seen: Seen, messages: Sequence[object]) -> str:
    """The engine, by its wrappers or models; a script without any that calls collectives exchanges by itself."""
    name = seen.log.engine
    if name and name != PLAIN.name:
        return name
    return COLLECTIVES.name if messages else ""


def _error(times: Sequence[float]) -> float:
    """Relative standard error of the mean step, by the means of up to ten blocks: neighbours resemble each other."""
    count = min(10, len(times) // 3) if len(times) >= 2 * 3 else len(times)
    edges = [len(times) * at // count for at in range(count + 1)]
    means = [fmean(times[begin:end]) for begin, end in pairwise(edges)]
    return stdev(means) / math.sqrt(count) / fmean(means) if count > 1 else 0.0
