"""Runs a user's command as rank 0 of N, in one process without any other rank; what was seen becomes a RankZero."""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from scalescope.agent.rank_zero import EXIT_CODE, LAUNCHED_AS, REFUSED
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.interpreter import torch_version
from scalescope.jobs.load import LoadMeter
from scalescope.jobs.output import last_lines
from scalescope.jobs.own_ranks import is_launch_line
from scalescope.jobs.plan import AGENT_HOOK
from scalescope.jobs.rank_zero_log import (
    Role,
    Saved,
    Seen,
    Warned,
    engine_of,
    memory_limit_here,
    peers_missed,
    read_process,
    record_of,
    texts_of,
)
from scalescope.jobs.watch import LaunchWatch
from scalescope.launchers.base import rank_environment
from scalescope.launchers.own import OWN
from scalescope.launchers.processes import end_marked, of_launch
from scalescope.launchers.runner import LAUNCHER_OUTPUT, check_system, run
from scalescope.progress import Progress
from scalescope.records.job import NO_ENGINE, Command, Ending, Job, Knobs
from scalescope.records.rank_zero import RankZero
from scalescope.records.store import writing
from scalescope.records.training_name import LAUNCH_MODULES, LAUNCH_PROGRAMS
from scalescope.text import plain

_OF_ANY_PROGRAM = LAUNCH_PROGRAMS - {"torchrun", "accelerate", "accelerate-launch"}
_MOST_OF_ONE_LINE = 2  # Ranks that a launch line starts: those after the first end at once
_OUT_OF_MEMORY = re.compile(
    r"(CUDA out of memory\. Tried to allocate [^.]*\.\d* \w+|can't allocate memory: you tried to allocate \d+ bytes|"
    r"\bMemoryError\b.*|Unable to allocate [\d.]+ \w+)"
)
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Refused)(?::.*)?)$")
_WAITS_FOR_KEY = re.compile(r"(?i)\bwait timeout\b(?: after \d+ ?ms, keys: (\S+))?")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_OPTION = re.compile(r"--([\w-]+)(?:=(.*))?")
_OF_NODES, _OF_RANKS = ("nnodes", "num-machines"), ("nproc-per-node", "num-processes")
_OF_MEETING = ("node-rank", "machine-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf")
_OF_LAUNCHERS = (*_OF_NODES, *_OF_RANKS, *_OF_MEETING)  # Options that say how many start, and where they meet
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python")


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
        with watch.output.followed():
            ending = run((Command(argv=words, env=rank_environment(job)),) * copies, job, watch, timeout_s=timeout_s)
        foreign = meter.read().foreign_cores
        for written in folder.glob("writes-*"):  # by the script, where it could not be the user's
            shutil.rmtree(written, ignore_errors=True)
        role = Role(what or " ".join(command), np, min(ranks_per_node, np))
        record = _record(role, watch, ending, folder)
        return msgspec.structs.replace(record, copies=copies, foreign_cores=foreign)


def _told(np: int, ranks_per_node: int, seconds: float, *, allow_writes: bool) -> dict[str, str]:
    """The request that the agent reads; ranks of a launch that this process may be in are forgotten."""
    asked = f"{np}:{ranks_per_node}:{seconds:g}" + (":writes" if allow_writes else "")
    return {"SCALESCOPE_RANK_ZERO": asked, **dict.fromkeys(filter(os.environ.__contains__, LAUNCHED_AS), "0")}


def _one_process(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command on this machine alone; of the ranks that a launch line starts all but the first end at once."""
    starts_any = next((Path(word).name for word in command if Path(word).name in _OF_ANY_PROGRAM), "")
    if starts_any and is_launch_line(command):
        raise UsageError(f"rank 0 of N is one process, which is started here: leave {starts_any} out of the command")
    modules = (at + 1 for at, word in enumerate(command[:-1]) if word == "-m" and command[at + 1] not in LAUNCH_MODULES)
    scripts = (at for at, word in enumerate(command) if word.endswith(".py"))
    script = min(*modules, *scripts, len(command), len(command))
    launcher, words = list(command[:script]), []
    while launcher:
        word = launcher.pop(0)
        found = _OPTION.fullmatch(word)
        name, value = found.groups() if found else ("", "")
        option = name.replace("_", "-")
        if option not in _OF_LAUNCHERS:
            words.append(word)
            continue
        if value is None:  # the next word
            value = launcher.pop(0) if launcher else ""
        if option in _OF_NODES:
            words.append(f"--{name}=1")
        elif option in _OF_RANKS:
            words.append(f"--{name}={min(int(value), _MOST_OF_ONE_LINE) if value.isdigit() else value}")
    return (*words, *command[script:])


class _Watch:
    """The runner's watch on processes that end by themselves once they have seen enough."""

    def __init__(self, job: Job, copies: int, progress: Progress) -> None:
        self._job, self._copies = job, copies
        self._folder = Path(job.folder)
        self._watch = LaunchWatch(job, progress, None)
        self.output = self._watch.output
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

    def seen(self) -> list[Seen]:
        """Records of the processes that trained; first those that saw enough."""
        found = [seen for path in self._paths() if (seen := read_process(path))]
        return sorted(found, key=lambda each: each.end.why != "enough")

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("agent-*.jsonl"))


def _has_enough(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - 4096, 0))
        return b'"why": "enough"' in file.read()


def _record(role: Role, watch: _Watch, ending: Ending, folder: Path) -> RankZero:
    """The record, or the error that says why there is none."""
    np = role.np
    output = last_lines(folder / LAUNCHER_OUTPUT, 400)
    for line in output:
        if REFUSED in line:
            raise UsageError(f"as rank 0 of {np}: {line.partition(REFUSED)[2]}")
    seen = watch.seen()
    enough = bool(seen) and all(each.end.why == "enough" for each in seen)
    ended_well = watch.over or enough or not ending.problem
    memory = next((found[1] for line in reversed(output) if (found := _OUT_OF_MEMORY.search(line))), "")
    if not (seen and ended_well) and (memory or (ending.code in (-9, 137) and not watch.over)):
        return _without_memory(role, seen, memory or "the process was killed, perhaps out of memory")
    if not ended_well and ending.code != EXIT_CODE:
        needs = peers_missed(seen) or _waits_for(output)
        why = f"{_why(watch, ending, output)}{f': {needs}' * bool(needs)} (see {folder / LAUNCHER_OUTPUT})"
        raise (UsageError if needs else WorkFailed)(f"as rank 0 of {np} {why}")
    if not seen:
        raise UsageError(f"as rank 0 of {np} the command made no optimizer step: name a script that trains with torch")
    records = [record_of(role, each, seen) for each in seen]
    middle = sorted(records, key=lambda each: each.step_s)[len(records) // 2]
    issues = [moments for each in records for moments in each.issues_s]
    return msgspec.structs.replace(
        middle,
        issues_s=tuple(moments for moments in issues if len(moments) == len(middle.messages) + 1),
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


def _waits_for(output: Sequence[str]) -> str:
    """Reason for which the script needs real ranks, if it waited for what another one would have put into a store."""
    found = next((found for line in reversed(output) if (found := _WAITS_FOR_KEY.search(line))), None)
    key = f" ({plain(found[1], 60)})" if found and found[1] else ""
    return f"it needs real ranks (it waits for what another rank puts into the store{key})" if found else ""


def _without_memory(role: Role, seen: Sequence[Seen], text: str) -> RankZero:
    """Memory ran out: that is an answer."""
    end = seen[0].end if seen else None
    gpu = end.gpu if end else ""
    is_gpu = bool(gpu) or "CUDA" in text
    return RankZero(
        **role._asdict(),
        engine=engine_of(seen[0], ()) if seen else "",
        device="gpu" if is_gpu else "cpu",
        gpu=gpu,
        torch=end.torch if end else torch_version(),
        step_s=0.0,
        memory_limit_bytes=(end.limit_bytes if end else 0) if is_gpu else memory_limit_here(),
        out_of_memory=plain(text, 300),
        saves=texts_of(seen, Saved),
        warnings=texts_of(seen, Warned),
    )
