"""Runs a user's command as rank 0 of N, in one process without any other rank; what was seen becomes a RankZero."""

import math
import os
import re
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

import msgspec

from scalescope.agent.rank_zero import EXIT_CODE, REFUSED
from scalescope.engines import COLLECTIVES, KNOWN, PLAIN
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.environment import torch_version
from scalescope.jobs.load import LoadMeter
from scalescope.jobs.output import last_lines
from scalescope.jobs.own_ranks import is_launch_line
from scalescope.jobs.plan import AGENT_HOOK
from scalescope.jobs.rank_log import RankLog, Step
from scalescope.jobs.step_clock import memory_limit
from scalescope.jobs.watch import LaunchWatch
from scalescope.launchers.base import rank_environment
from scalescope.launchers.own import OWN
from scalescope.launchers.processes import end_marked, of_launch
from scalescope.launchers.runner import LAUNCHER_OUTPUT, check_system, run
from scalescope.progress import Progress
from scalescope.records.job import NO_ENGINE, Command, Ending, Job, Knobs
from scalescope.records.rank_zero import Message, Phase, RankZero
from scalescope.records.store import writing
from scalescope.records.training_name import LAUNCH_PROGRAMS
from scalescope.text import plain, plural
from scalescope.units import format_bytes

_FEWEST_TIMED, _FEW_TIMED = 3, 20
_AS_USUAL = 0.98  # Samples of a step on average, over those of most, from which none of them is taken for short
_OF_ANY_PROGRAM = LAUNCH_PROGRAMS - {"torchrun", "accelerate", "accelerate-launch"}
_MOST_OF_ONE_LINE = 2  # Ranks that a launch line starts: those after the first end at once
_OUT_OF_MEMORY = re.compile(
    r"(CUDA out of memory\. Tried to allocate [^.]*\.\d* \w+|can't allocate memory: you tried to allocate \d+ bytes|"
    r"\bMemoryError\b.*|Unable to allocate [\d.]+ \w+)"
)
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Refused)(?::.*)?)$")
_WAITS_FOR_KEY = re.compile(r"(?i)\bwait timeout\b(?: after \d+ ?ms, keys: (\S+))?")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_OPTION = re.compile(r"(--[\w-]+)(?:=(.*))?")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python")


class _Line(msgspec.Struct):
    """What the agent writes of a run as rank 0 of N; the kind says which fields count."""

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


class _Seen(NamedTuple):
    """What one process wrote."""

    log: RankLog
    lines: list[_Line]

    def of(self, kind: str) -> list[_Line]:
        return [line for line in self.lines if line.kind == f"rank_zero_{kind}"]

    @property
    def end(self) -> _Line | None:
        return next(iter(self.of("end")), None)


def run_as_rank_zero(
    command: Sequence[str],
    *,
    np: int,
    what: str = "",
    ranks_per_node: int = 8,
    copies: int = 1,
    threads: int | None = None,
    device: str = "auto",
    folder: Path | None = None,
    cwd: str = "",
    env: dict[str, str] | None = None,
    seconds: float = 20.0,
    timeout_s: float = 600.0,
    allow_writes: bool = False,
    progress: Progress | None = None,
) -> RankZero:
    """Start the command once, told that it is rank 0 of `np`, until enough of its steps were seen.

    Args:
        command: As people type it: python train.py, torchrun ... train.py.
        np: Ranks that it is told of; no other is started.
        what: Its name for people; empty: its words.
        ranks_per_node: And how many of them share a host.
        copies: Processes of it that step at the same time, so that they share the cores as ranks of a host do.
        threads: Of each process; None: as the environment says.
        device: cpu keeps it from GPUs.
        folder: Where it leaves its records and output; None: a temporary one.
        cwd: Where it starts; empty: here.
        env: Variables in addition to those of this process.
        seconds: After this time of steps no more are made.
        timeout_s: Without any sign of progress, after which it is given up.
        allow_writes: Let it save and write where it wants to.
        progress: Hears of steps and output.

    Raises:
        UsageError: It cannot run like this.
        WorkFailed: It failed, or nothing came of it.
    """
    check_system()
    words = _one_process(tuple(command))
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scalescope-rank0-")))
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        job = Job(
            command=words,
            np=1,
            knobs=Knobs(engine=NO_ENGINE),
            folder=str(folder),
            launch=f"{folder.name}-{secrets.token_hex(6)}",
            threads_per_rank=threads,
            env={
                **(env or {}),
                **_told(np, min(ranks_per_node, np), seconds, allow_writes=allow_writes),
                **({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}),
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(AGENT_HOOK), {**os.environ, **(env or {})}.get("PYTHONPATH", "")])
                ),
            },
            cwd=cwd or str(Path.cwd()),
        )
        watch = _Watch(job, copies, progress or Progress())
        meter = LoadMeter()
        ending = run((Command(argv=words, env=rank_environment(job)),) * copies, job, watch, timeout_s=timeout_s)
        foreign = meter.read().foreign_cores
        for written in folder.glob("writes-*"):  # by the script, where it could not be the user's
            shutil.rmtree(written, ignore_errors=True)
        record = _record(what or " ".join(command), np, min(ranks_per_node, np), watch, ending, folder)
        return msgspec.structs.replace(record, copies=copies, foreign_cores=foreign)


def _told(np: int, ranks_per_node: int, seconds: float, *, allow_writes: bool) -> dict[str, str]:
    """The request that the agent reads; ranks of a launch that this process may be in are forgotten."""
    asked = f"{np}:{ranks_per_node}:{seconds:g}" + (":writes" if allow_writes else "")
    outside = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
    return {"SCALESCOPE_RANK_ZERO": asked, **dict.fromkeys(filter(os.environ.__contains__, outside), "0")}


def _one_process(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command on this machine alone; of the ranks that a launch line starts all but the first end at once."""
    starts_any = next((Path(word).name for word in command if Path(word).name in _OF_ANY_PROGRAM), "")
    if starts_any and is_launch_line(command):
        raise UsageError(f"rank 0 of N is one process, which is started here: leave {starts_any} out of the command")
    words: list[str] = []
    before, skip = True, False
    for at, word in enumerate(command):
        if skip:
            skip = False
            continue
        found = _OPTION.fullmatch(word)
        name, value = found.groups() if found else ("", None)
        option = name.removeprefix("--").replace("_", "-")
        following = "".join(command[at + 1 : at + 2]) if value is None else value
        before = before and not word.endswith(".py")
        if before and option in ("nnodes", "num-machines"):
            words.append(f"{name}=1")
        elif before and option in ("nproc-per-node", "num-processes") and following.isdigit():
            words.append(f"{name}={min(int(following), _MOST_OF_ONE_LINE)}")
        elif before and option in (
            "node-rank",
            "machine-rank",
            "rdzv-backend",
            "rdzv-endpoint",
            "rdzv-id",
            "rdzv-conf",
        ):
            pass
        else:
            words.append(word)
            continue
        skip = value is None
    return tuple(words)


class _Watch:
    """The runner's watch on processes that end by themselves once they have seen enough."""

    def __init__(self, job: Job, copies: int, progress: Progress) -> None:
        self._job, self._copies = job, copies
        self._folder = Path(job.folder)
        self._watch = LaunchWatch(job, progress, None)
        self.over = False

    def tick(self) -> int:
        """Take in what is new; whatever is left of a launch that has seen enough is ended without being asked."""
        seen = self._watch.tick()
        if not self.over and sum(_has_enough(path) for path in self._paths()) >= self._copies:
            self.over = True
            end_marked(of_launch(self._job.launch))
        return seen

    def stalled(self, seconds: float) -> tuple[str, str]:
        """Sentence on where the process waits, mostly for ranks that are not there, and details."""
        _, details = self._watch.stalled(seconds)
        frames = _FRAME.findall(details)
        own = next((frame for frame in frames if not any(each in frame[0] for each in _LIBRARIES)), None)
        if not frames:
            return f"it did nothing for {seconds:.0f} s: raise --timeout if it takes longer", details or "no output"
        where = f" ({Path(own[0]).name}, line {own[1]})" if own else ""
        return (
            f"it did nothing for {seconds:.0f} s and hangs in {frames[0][2]}{where}, maybe for ranks that "
            "are not there: raise --timeout if it takes longer",
            details,
        )

    def died(self, code: int) -> str:
        """Describe how the command ended, in one line."""
        return self._watch.died(OWN, code)[0]

    def seen(self) -> list[_Seen]:
        """Records of the processes that trained; first those that saw enough."""
        found = [_read(path) for path in self._paths()]
        return sorted(
            (each for each in found if each.end), key=lambda each: bool(each.end and each.end.why != "enough")
        )

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("agent-*.jsonl"))


def _has_enough(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - 4096, 0))
        return b'"why": "enough"' in file.read()


def _read(path: Path) -> _Seen:
    log, lines, decode = RankLog(path), [], msgspec.json.Decoder(_Line).decode
    log.poll()
    for data in path.read_bytes().splitlines():
        if b'"rank_zero_' in data:
            lines.append(decode(data))
    return _Seen(log, lines)


def _record(what: str, np: int, ranks_per_node: int, watch: _Watch, ending: Ending, folder: Path) -> RankZero:
    """The record, or the error that says why there is none."""
    output = last_lines(folder / LAUNCHER_OUTPUT, 400)
    for line in output:
        if REFUSED in line:
            raise UsageError(f"as rank 0 of {np}: {line.partition(REFUSED)[2]}")
    seen = watch.seen()
    enough = bool(seen) and all(each.end and each.end.why == "enough" for each in seen)
    ended_well = watch.over or enough or not ending.problem
    memory = next((found[1] for line in reversed(output) if (found := _OUT_OF_MEMORY.search(line))), "")
    if not (seen and ended_well) and (memory or (ending.code in (-9, 137) and not watch.over)):
        return _without_memory(
            what, np, ranks_per_node, seen, memory or "the process was killed, perhaps out of memory"
        )
    if not ended_well and ending.code != EXIT_CODE:
        needs = _peers(seen) or _waits_for(output)
        why = f"{_why(watch, ending, output)}{f': {needs}' * bool(needs)} (see {folder / LAUNCHER_OUTPUT})"
        raise (UsageError if needs else WorkFailed)(f"as rank 0 of {np} {why}")
    if not seen:
        raise UsageError(f"as rank 0 of {np} the command made no optimizer step: name a script that trains with torch")
    records = [_of_process(what, np, ranks_per_node, each, seen) for each in seen]
    middle = sorted(records, key=lambda each: each.step_s)[len(records) // 2]
    return msgspec.structs.replace(
        middle,
        memory_bytes=max(each.memory_bytes for each in records),
        finite=all(each.finite for each in records),
        saves=tuple(dict.fromkeys(line for each in records for line in each.saves)),
        warnings=tuple(dict.fromkeys(line for each in records for line in each.warnings)),
    )


def _why(watch: _Watch, ending: Ending, output: Sequence[str]) -> str:
    """Reason for a failure, in one line; the script's last error where it printed one."""
    if ending.details:  # given up
        return ending.problem
    errors = [found[1] for line in output if (found := _ERROR.match(line.strip())) and "ChildFailedError" not in line]
    return f"the script failed: {plain(errors[-1], 200)}" if errors else f"{watch.died(ending.code)}"


def _peers(seen: Iterable[_Seen]) -> str:
    """Reason for which the script needs real ranks, if it went on without what another one would have told it."""
    told = _texts(seen, "peer")
    return f"it needs real ranks ({told[0]}): scalescope measure starts them" if told else ""


def _waits_for(output: Sequence[str]) -> str:
    """Reason for which the script needs real ranks, if it waited for what another one would have put into a store."""
    found = next((found for line in reversed(output) if (found := _WAITS_FOR_KEY.search(line))), None)
    key = f" ({plain(found[1], 60)})" if found and found[1] else ""
    return f"it needs real ranks (it waits for what another rank puts into the store{key})" if found else ""


def _without_memory(what: str, np: int, ranks_per_node: int, seen: Sequence[_Seen], text: str) -> RankZero:
    """Memory ran out: that is an answer."""
    end = seen[0].end if seen else None
    gpu = end.gpu if end else ""
    is_gpu = bool(gpu) or "CUDA" in text
    return RankZero(
        what=what,
        np=np,
        ranks_per_node=ranks_per_node,
        engine=_engine(seen[0], ()) if seen else "",
        device="gpu" if is_gpu else "cpu",
        gpu=gpu,
        torch=end.torch if end else torch_version(),
        step_s=0.0,
        memory_limit_bytes=(end.limit if end else 0) if is_gpu else _limit_here(),
        out_of_memory=plain(text, 300),
        saves=_texts(seen, "save"),
        warnings=_texts(seen, "warning"),
    )


def _limit_here() -> int:
    import types

    return memory_limit(types.SimpleNamespace(type="cpu"))


def _texts(seen: Iterable[_Seen], kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(plain(line.text, 300) for each in seen for line in each.of(kind)))


def _of_process(what: str, np: int, ranks_per_node: int, seen: _Seen, together: Sequence[_Seen]) -> RankZero:
    """The record of one process; of several that ran next to each other only steps count in which all of them did."""
    end = seen.end
    assert end
    _check_batches(np, seen)
    if not end.steps:
        why = _peers([seen]) or "it has to train with torch.optim"
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
    engine = _engine(seen, typical.messages)
    known = KNOWN.get(engine)
    if known and known.package:
        raise UsageError(f"as rank 0 of {np}: {known.title} starts its own ranks, which nothing stands in for")
    times = [step.seconds for step in steps]
    step_s = fmean(times)
    warnings = [
        *_texts([seen], "warning"),
        *_texts([seen], "peer"),
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
        what=what,
        np=np,
        ranks_per_node=ranks_per_node,
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
        cores_used=sum(line.cpu for line in blocks) / max(sum(line.seconds for line in blocks), 1e-9),
        memory_bytes=end.memory,
        memory_limit_bytes=end.limit or _limit_here(),
        finite=end.finite and all(line.finite for line in recorded),
        saves=_texts([seen], "save"),
        warnings=tuple(warnings),
    )


def _timed(seen: _Seen, together: Sequence[_Seen]) -> list[Step]:
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


def _check_batches(np: int, seen: _Seen) -> None:
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


def _engine(seen: _Seen, messages: Sequence[object]) -> str:
    """As its wrappers or models show it; a script without any that calls collectives exchanges by itself."""
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
