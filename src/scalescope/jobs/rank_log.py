"""Reads what the agent wrote in one rank, whole or while it grows."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from scalescope.agent.recorder import clock_name
from scalescope.errors import UsageError
from scalescope.records.job import Ending
from scalescope.records.run import RankHost

_READS_UP_TO = 1


class _Line(msgspec.Struct):
    """Line of an agent's file, of any kind; the kind says which fields count."""

    kind: str
    version: int = 0
    host: str = ""
    pid: int = 0
    rank: int | None = None
    wall_ns: int = 0
    clock: str = ""
    stack_signal: int = 0
    cpu: str = ""
    cores: int = 0
    gpus: tuple[str, ...] = ()
    batch_job: str = ""
    world_size: int = 0
    backend: str = ""
    name: str = ""
    path: str = ""
    ns: int = 0
    marks: list[tuple[str, int, int]] = []
    s: int = 0
    f: int = 0
    o: int = 0
    t: int = 0
    w: int = 0
    n: int = 0
    i: int = 0
    ends: list[int] = []


class Step(NamedTuple):
    """One step of one rank; nanoseconds of the rank's clock."""

    start: int
    end: int
    forward: int  # When the model was called; 0 in steps that were not looked at closely
    optimizer: int  # When the optimizer began; 0 in steps that were not looked at closely
    input_wait: int
    samples: int  # 0 in steps that were not looked at closely
    gpu_ns: int | None = None  # What the step took on the GPU, if there is one

    @property
    def seconds(self) -> float:
        """Time of the step, on the GPU if there is one."""
        return (self.end - self.start if self.gpu_ns is None else self.gpu_ns) * 1e-9


class RankLog:
    """One rank's record; `poll` takes in what has been added since the last time."""

    def __init__(self, path: Path, *, keeps_steps: bool = True) -> None:
        """`keeps_steps`: otherwise they are counted, and nothing that grows with a training is kept."""
        self._path = path
        self._keeps_steps = keeps_steps
        self._offset = 0
        self._decode = msgspec.json.Decoder(_Line).decode
        self.rank: int | None = None
        self.host = ""
        self.pid = 0
        self.stack_signal = 0
        self.machine = RankHost(name="")
        self.batch_job = ""
        self.world_size = 0
        self.backend = ""
        self.engine = ""
        self.collectives: int | None = None  # Of all process groups of torch; None: the rank could not tell
        self.import_ns = 0
        self.in_init = False
        self.inits: list[tuple[int, int]] = []
        self.evaluations: list[tuple[int, int]] = []
        self.saves: list[tuple[int, int]] = []
        self.changed_files_read: list[str] = []
        self.began = 0
        self.ended = 0
        self._wall_ns = 0
        self._clock = ""
        self.events = 0  # How many optimizer steps have been seen
        self._last_end = 0
        self._events: list[Step] = []
        self._optimizers: list[int] = []  # Per event, which optimizer stepped
        self._gpu_marks: list[tuple[str, int, int]] = []

    @property
    def stack_path(self) -> Path:
        """File to which the rank writes its Python stack when it is asked to."""
        return self._path.with_name(f"stack-{self._path.stem.removeprefix('agent-')}.txt")

    def at(self, clock: int, launch: Ending) -> int:
        """A time of the rank's clock on the launch's clock: the same one, unless the rank is on another host."""
        if self._clock and self._clock == clock_name():
            return clock
        return launch.started_ns + self._wall_ns - launch.started_wall_ns + clock - self.began

    @property
    def last_sign(self) -> int:
        """The last time at which the rank was known to live, on its clock."""
        spans = [*self.inits[-1:], *self.evaluations[-1:], *self.saves[-1:]]
        return max([self.began, self.ended, self._last_end, *(end for _, end in spans)])

    def poll(self) -> int:
        """Take in the complete lines that are new; how many."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = complete.splitlines()
        for line in lines:
            try:
                self._take(self._decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # a torn line of a full disk; the steps around it still count
        return len(lines)

    def _take(self, line: _Line) -> None:
        match line.kind:
            case "step":
                self._take_steps(line.i, [Step(line.s, line.t, line.f, line.o, line.w, line.n)])
            case "steps":
                starts = pairwise([line.s, *line.ends])
                self._take_steps(line.i, [Step(start, end, 0, 0, 0, 0) for start, end in starts])
            case "hello":
                if line.version > _READS_UP_TO:
                    raise UsageError(f"{self._path} was written by a newer scalescope: upgrade this one")
                self.rank, self.host, self.pid, self.stack_signal = line.rank, line.host, line.pid, line.stack_signal
                self._wall_ns, self.began, self._clock = line.wall_ns, line.t, line.clock
                self.batch_job = line.batch_job
                self.machine = RankHost(name=line.host, cpu=line.cpu, cores=line.cores, gpus=line.gpus)
            case "rank":
                self.rank, self.world_size, self.backend = line.rank, line.world_size, line.backend
            case "init_begin":
                self.in_init = True
            case "init":
                self.in_init = False
                self.inits.append((line.s, line.t))
            case "import":
                self.import_ns = line.ns
            case "engine":
                self.engine = line.name
            case "collectives":
                self.collectives = max(self.collectives or 0, line.n)
            case "evaluation":
                self._add(self.evaluations, (line.s, line.t))
            case "save":
                self._add(self.saves, (line.s, line.t))
            case "read_changed_file":
                self.changed_files_read.append(line.path)
            case "gpu" if self._keeps_steps:
                self._gpu_marks += line.marks
            case "end":
                self.ended = line.t

    def _take_steps(self, optimizer: int, steps: list[Step]) -> None:
        self.events += len(steps)
        self._last_end = steps[-1].end if steps else self._last_end
        if self._keeps_steps:
            self._events += steps
            self._optimizers += [optimizer] * len(steps)

    def _add(self, spans: list[tuple[int, int]], span: tuple[int, int]) -> None:
        if not self._keeps_steps:
            spans.clear()  # the last one tells when the rank was last known to live
        spans.append(span)

    def steps(self) -> list[Step]:
        """The steps; several optimizers that step in turn make one step together."""
        on_gpu: list[int] = []  # Per optimizer step; those that share a mark share its time
        previous = 0
        for what, count, at in self._gpu_marks:
            added = count - len(on_gpu)
            if what == "end" and added > 0:
                on_gpu += [(at - previous) // added] * added
            previous = at
        steps: list[Step] = []
        in_step: set[int] = set()
        for index, (event, optimizer) in enumerate(zip(self._events, self._optimizers, strict=True)):
            step = event._replace(gpu_ns=on_gpu[index]) if index < len(on_gpu) else event
            if steps and optimizer not in in_step and event.start == steps[-1].end:
                first = steps.pop()
                has_gpu = first.gpu_ns is not None and step.gpu_ns is not None
                step = Step(
                    first.start,
                    step.end,
                    first.forward or step.forward,
                    step.optimizer,
                    first.input_wait + step.input_wait,
                    max(first.samples, step.samples),
                    (first.gpu_ns or 0) + (step.gpu_ns or 0) if has_gpu else None,
                )
            else:
                in_step = set()
            in_step.add(optimizer)
            steps.append(step)
        return steps


def read_rank_logs(folder: Path) -> list[RankLog]:
    """All ranks of a launch, in order."""
    logs = []
    for path in sorted(folder.glob("agent-*.jsonl")):
        log = RankLog(path)
        log.poll()
        logs.append(log)
    return without_restarted(logs)


def without_restarted(logs: Iterable[RankLog]) -> list[RankLog]:
    """The ranks in order, without those whose successor began after their end: a launcher had restarted them."""
    ranks = sorted(logs, key=lambda log: (log.rank is None, log.rank or 0, log.pid))
    newest: dict[tuple[int, str], int] = {}
    for log in ranks:
        if log.rank is not None:
            newest[log.rank, log.host] = max(newest.get((log.rank, log.host), 0), log.began)
    return [log for log in ranks if log.rank is None or log.last_sign >= newest[log.rank, log.host]]
