"""Reads what the agent wrote in a process that ran as rank 0 of N, and makes a RankZero of it."""

import contextlib
import math
import types
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple, TypeVar

import msgspec

from scalescope.engines import COLLECTIVES, ENGINES, KNOWN, PLAIN
from scalescope.errors import UsageError
from scalescope.jobs.rank_log import RankLog, Step
from scalescope.jobs.step_clock import memory_limit
from scalescope.records.rank_zero import Collective, Message, Phase, RankZero
from scalescope.text import plain, plural
from scalescope.units import format_bytes

_FEWEST_TIMED, _FEW_TIMED = 3, 20  # Steps
_MOST_BLOCKS, _FEWEST_OF_BLOCK = 10, 3  # Of timed steps, for their error
_LARGER_BUILD = 1.05  # Memory of building the model over that of steps, from which it is worth a line
_LONGEST_SENTENCE, _LONGEST_MODULE, _LONGEST_NAME = 300, 200, 100  # Characters
_AS_USUAL = 0.98  # Samples of a step on average, over those of most, from which none of them is taken for short


class _Group(msgspec.Struct, array_like=True):
    """A process group of the script."""

    name: str
    ranks: int
    stride: int


class _Call(msgspec.Struct, array_like=True):
    """A collective of a recorded step."""

    operation: Collective
    bytes: int
    dtype: str
    group: int  # Index in the groups of its step
    phase: Phase
    module: str
    prefetched: bool
    issued_s: float
    needed_s: float | None
    fill_s: float


class _Sentence(msgspec.Struct):
    text: str


class Warned(_Sentence, tag_field="kind", tag="rank_zero_warning"):
    """A warning of the agent."""


class Missed(_Sentence, tag_field="kind", tag="rank_zero_peer"):
    """A warning of what only another rank could have told."""


class Saved(_Sentence, tag_field="kind", tag="rank_zero_save"):
    """A file or call by which the script would have saved."""


class Timed(msgspec.Struct, tag_field="kind", tag="rank_zero_timed", rename={"cpu_s": "cpu", "wall_s": "seconds"}):
    """A block of steps that were timed."""

    first: int
    steps: int
    cpu_s: float
    wall_s: float


class Recorded(
    msgspec.Struct,
    tag_field="kind",
    tag="rank_zero_step",
    rename={"forward_s": "forward", "backward_s": "backward", "optimizer_s": "optimizer", "calls": "messages"},
):
    """A step whose collectives were recorded."""

    finite: bool
    step_s: float
    fill_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    groups: list[_Group]
    calls: list[_Call]


class Loader(msgspec.Struct, tag_field="kind", tag="rank_zero_loader"):
    """A data loader of the script."""

    batch: int  # Samples
    batches: int  # Of an epoch


class End(
    msgspec.Struct,
    tag_field="kind",
    tag="rank_zero_end",
    rename={"memory_bytes": "memory", "build_bytes": "build", "limit_bytes": "limit"},
):
    """The end of the process; a script that did not train says less."""

    why: str
    steps: int = 0
    backend: str = ""
    torch: str = ""
    threads: int = 0
    finite: bool = True
    memory_bytes: int = 0
    build_bytes: int = 0  # Before the first step
    gpu: str = ""
    limit_bytes: int = 0  # Of the GPU


_LINES = Warned | Missed | Saved | Timed | Recorded | Loader | End
Line = TypeVar("Line", Warned, Missed, Saved, Timed, Recorded, Loader, End)


class Role(NamedTuple):
    """A command, and the rank 0 that it ran as."""

    what: str
    np: int
    ranks_per_node: int


class Seen(NamedTuple):
    """Lines that one process wrote."""

    log: RankLog
    lines: list[object]
    end: End

    def of(self, kind: type[Line]) -> list[Line]:
        """Lines of one kind."""
        return [line for line in self.lines if isinstance(line, kind)]


def read_process(path: Path) -> Seen | None:
    """Read what the process of this file did; None: it has not come to its end, or was a launcher."""
    log, decode = RankLog(path), msgspec.json.Decoder(_LINES).decode
    log.poll()
    lines = list[object]()
    for data in path.read_bytes().splitlines():
        if b'"rank_zero_' in data:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # a torn line of a full disk
                lines.append(decode(data))
    end = next((line for line in lines if isinstance(line, End)), None)
    return Seen(log, lines, end) if end else None


def memory_limit_here() -> int:
    """Bytes that a process of this host may take."""
    return memory_limit(types.SimpleNamespace(type="cpu"))


def texts_of(seen: Iterable[Seen], kind: type[Warned] | type[Missed] | type[Saved]) -> tuple[str, ...]:
    """Sentences of one kind, each once."""
    lines = (line for each in seen for line in each.lines if isinstance(line, kind))
    return tuple(dict.fromkeys(plain(line.text, _LONGEST_SENTENCE) for line in lines))


def peers_missed(seen: Iterable[Seen]) -> str:
    """Reason for which the script needs real ranks, if it went on without what another one would have told it."""
    told = texts_of(seen, Missed)
    return f"it needs real ranks ({told[0]}): scalescope measure starts them" if told else ""


def record_of(role: Role, seen: Seen, together: Sequence[Seen]) -> RankZero:
    """The record of one process; of several that ran next to each other only steps count in which all of them did."""
    np, end, recorded = role.np, seen.end, seen.of(Recorded)
    _check_batches(np, seen)
    if not end.steps:
        why = peers_missed([seen]) or "it has to train with torch.optim"
        raise UsageError(f"as rank 0 of {np} the script made no optimizer step: {why}")
    steps = _timed_steps(seen, together)
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

    typical, kinds = _typical(recorded)
    engine = engine_of(seen, typical.calls)
    known = KNOWN.get(engine)
    warnings = [*texts_of([seen], Warned), *texts_of([seen], Missed)]
    if known:
        if known.package:
            raise UsageError(f"as rank 0 of {np}: {known.title} starts its own ranks, which nothing stands in for")
        if known.not_recorded:
            warnings.append(known.not_recorded)
        for_modules = {call.operation for call in typical.calls if call.module}
        for other in ENGINES.values():
            if other.recorded_by in for_modules and not set(other.operations) <= set(known.operations):
                warnings.append(
                    f"a part of the model is sharded by {other.title}: the map is named after {known.title}, both are "
                    "in it"
                )
    if kinds > 1:
        warnings.append(f"collectives differ from step to step: those of the most common of {kinds} kinds are given")
    if end.why != "enough" and len(steps) < _FEW_TIMED:
        warnings.append(
            f"the script ended by itself after {plural(end.steps, 'step')}, of which {len(steps)} could be timed"
        )
    if end.build_bytes > _LARGER_BUILD * end.memory_bytes:
        build, memory = format_bytes(end.build_bytes), format_bytes(end.memory_bytes)
        warnings.append(f"before its first step it took {build}, in steps {memory}")

    times_s, blocks = [step.seconds for step in steps], seen.of(Timed)
    step_s = fmean(times_s)
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
        steps_s=tuple(times_s),
        error=_error(times_s),
        fill_s=min(median(line.fill_s for line in recorded), step_s),
        forward_s=median(line.forward_s for line in recorded),
        backward_s=median(line.backward_s for line in recorded),
        optimizer_s=median(line.optimizer_s for line in recorded),
        recorded_step_s=typical.step_s - typical.fill_s,
        messages=tuple(_message(call, typical.groups[call.group]) for call in typical.calls),
        issues_s=tuple(
            (*(call.issued_s for call in line.calls), line.step_s - line.fill_s)
            for line in recorded
            if _kind(line) == _kind(typical)
        ),
        cores_used=sum(block.cpu_s for block in blocks) / max(sum(block.wall_s for block in blocks), 1e-9),
        memory_bytes=end.memory_bytes,
        memory_limit_bytes=end.limit_bytes or memory_limit_here(),
        finite=end.finite and all(line.finite for line in recorded),
        saves=texts_of([seen], Saved),
        warnings=tuple(warnings),
    )


def _timed_steps(seen: Seen, together: Sequence[Seen]) -> list[Step]:
    """Steps of the blocks that were timed, while all of `together` were timed."""
    steps = seen.log.steps()
    numbers = [number for block in seen.of(Timed) for number in range(block.first, block.first + block.steps)]
    timed = [steps[number] for number in numbers if number < len(steps)]
    spans = [span for each in together if (span := _timed_steps(each, ()))]
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
    loaders = seen.of(Loader)
    empty = [line for line in loaders if not line.batches]
    if not seen.log.steps() and empty:
        raise UsageError(
            f"as rank 0 of {np} an epoch has no batch: {np} ranks with {empty[0].batch} samples each are more than the "
            "data set has; give it more data or a smaller batch"
        )
    usual = _usual(step.samples for step in seen.log.steps())
    sizes = {line.batch for line in loaders if line.batches == 1}
    if usual and sizes and usual < min(sizes) and not any(line.batches > 1 for line in loaders):
        raise UsageError(
            f"as rank 0 of {np} an epoch is one short batch ({usual} of {min(sizes)} samples), which says nothing of a "
            "whole one: give it more data or a smaller batch"
        )


def _typical(recorded: Sequence[Recorded]) -> tuple[Recorded, int]:
    """Median step by time among those with the most common collectives, and the number of kinds of steps."""
    kinds = Counter(_kind(line) for line in recorded)
    ((most, _),) = kinds.most_common(1)
    alike = sorted((line for line in recorded if _kind(line) == most), key=lambda line: line.step_s)
    return alike[len(alike) // 2], len(kinds)


def _kind(line: Recorded) -> tuple[tuple[object, ...], ...]:
    return tuple((call.operation, call.bytes, call.group) for call in line.calls)


def _message(call: _Call, group: _Group) -> Message:
    return Message(
        operation=call.operation,
        bytes=call.bytes,
        dtype=call.dtype,
        ranks=group.ranks,
        stride=group.stride,
        group=plain(group.name, _LONGEST_NAME),
        phase=call.phase,
        module=plain(call.module, _LONGEST_MODULE),
        prefetched=call.prefetched,
        issued_s=max(call.issued_s, 0.0),
        needed_s=None if call.needed_s is None else max(call.needed_s, 0.0),
        fill_s=max(call.fill_s, 0.0),
    )


def engine_of(seen: Seen, messages: Sequence[object]) -> str:
    """The engine, by its wrappers or models; a script without any that calls collectives exchanges by itself."""
    name = seen.log.engine
    if name and name != PLAIN.name:
        return name
    return COLLECTIVES.name if messages else ""


def _error(times_s: Sequence[float]) -> float:
    """Relative standard error of the mean step, by the means of blocks: neighbours resemble each other."""
    count = len(times_s)
    if count >= 2 * _FEWEST_OF_BLOCK:
        count = min(_MOST_BLOCKS, count // _FEWEST_OF_BLOCK)
    edges = [len(times_s) * at // count for at in range(count + 1)]
    means = [fmean(times_s[begin:end]) for begin, end in pairwise(edges)]
    return stdev(means) / math.sqrt(count) / fmean(means) if count > 1 else 0.0
