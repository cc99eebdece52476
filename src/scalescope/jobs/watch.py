"""Watches a launch: follows records and output, reports progress, and explains why a launch went wrong."""

import re
import signal
import time
from pathlib import Path

from scalescope.engines import ENGINES
from scalescope.errors import WorkFailed
from scalescope.jobs.output import OutputFiles, last_lines, outputs
from scalescope.jobs.own_ranks import OwnRanksWatch
from scalescope.jobs.rank_log import RankLog, without_restarted
from scalescope.launchers.base import Launcher
from scalescope.launchers.runner import LAUNCHER_OUTPUT, how_it_ended, signal_of, signal_rank
from scalescope.progress import Progress
from scalescope.records.job import Job
from scalescope.text import plural, without_escapes

EMPTIED = "the script removed files of its launch from {}: let it empty a folder of its own, such as {{run_dir}}/out"
_STACK_WITHIN_S = 2.0
_OUT_OF_REACH = re.compile(
    r"(?:failed to connect to any network address of|while trying to connect to) \((?P<host>[^,()]+), (?P<port>\d+)\)"
)
_GAVE_UP = re.compile(r"RendezvousConnectionError|Dist(?:Network|Store)Error")
_RETRIES = re.compile(r"\[[WE]\d|Exception raised from|frame #|<omitting|.*" + _OUT_OF_REACH.pattern)
_REACH = (
    ", where they meet: check that hosts reach the first one there (firewall, name), or name another address of it "
    "with --env MASTER_ADDR=..."
)


class LaunchWatch:
    """The runner's watch on one launch."""

    def __init__(
        self,
        job: Job,
        progress: Progress,
        pattern: re.Pattern[str] | None,
        *,
        keeps_steps: bool = True,
        looks_for_own_ranks: bool = False,
    ) -> None:
        """`keeps_steps`: otherwise they are counted only, for a training of any length."""
        self._job = job
        self._keeps_steps = keeps_steps
        self._folder = Path(job.folder)
        self._progress = progress
        self.output = OutputFiles(self._folder, pattern, progress.output, np=job.np)
        self._logs: dict[Path, RankLog] = {}
        self._read = 0  # Lines and bytes so far
        self._own_ranks = OwnRanksWatch(job.launch, job.np) if looks_for_own_ranks else None

    @property
    def logs(self) -> list[RankLog]:
        """Records of the ranks so far, in order of rank; ranks that were restarted count once."""
        return without_restarted(self._logs.values())

    @property
    def restarted(self) -> int:
        """Ranks that the launcher had to start again."""
        return len(self._logs) - len(self.logs)

    def tick(self) -> int:
        """Take in what is new."""
        for path in self._folder.glob("agent-*.jsonl"):
            if path not in self._logs:
                self._logs[path] = RankLog(path, keeps_steps=self._keeps_steps)
        try:
            self._read += sum(log.poll() for log in self._logs.values())
        except FileNotFoundError:
            raise WorkFailed(EMPTIED.format(self._folder)) from None
        printed = self.output.poll()
        self._read += 0 if printed and self._out_of_reach() else printed  # torch tells of every retry, for 30 minutes
        if self._own_ranks:
            self._own_ranks.check(self._logs.values())
        if self._logs:
            self._progress.advance(min(log.events for log in self.logs))
        return self._read

    def stalled(self, seconds: float) -> tuple[str, str]:
        """Name the ranks that are behind and show where every rank stands."""
        logs = self.logs
        if address := self._out_of_reach():
            problem = f"ranks could not connect to {address} for {seconds:.0f} s{_REACH}"
            return problem, self._tail(LAUNCHER_OUTPUT)
        if not logs:
            return f"nothing happened for {seconds:.0f} s and no rank has started", self._tail(LAUNCHER_OUTPUT)
        stacks = self._collect_stacks(logs)
        least = min(log.events for log in logs)
        waiting = {id(log) for log in logs if _waits_for_others(stacks.get(log, ""))}
        behind = [log for log in logs if log.events == least]
        suspects = [log for log in behind if id(log) not in waiting] or behind
        names = ", ".join(str(log.rank) for log in suspects)
        where = "while starting the process group" if suspects[0].in_init else f"after {plural(least, 'step')}"
        problem = f"no progress for {seconds:.0f} s: rank {names} hangs {where}"
        if len(suspects) == len(logs) > 1:
            problem = f"no progress for {seconds:.0f} s: all ranks hang {where}"
            if suspects[0].in_init:
                problem += (
                    ", maybe for ranks that nobody started: take rank and number of processes from the launcher "
                    "(RANK, WORLD_SIZE), or add --launcher own if the script starts its ranks itself"
                )
        details = []
        for log in [*suspects, *(log for log in logs if log not in suspects)][:8]:
            role = "waits for the others in a collective" if id(log) in waiting else "is busy or stuck"
            details.append(f"rank {log.rank} on {log.host} (process {log.pid}) {role}, {log.events} steps done")
            details += [
                "  last output:",
                *(f"    {line}" for line in self._last_lines(log.rank, 5)),
            ]
            details += [
                "  Python stack:",
                *(f"    {line}" for line in stacks.get(log, "not available").splitlines()),
            ]
        return problem, "\n".join(details)

    def _collect_stacks(self, logs: list[RankLog]) -> dict[RankLog, str]:
        for log in logs:
            if log.stack_signal:
                signal_rank(self._job, log.host, log.pid, log.stack_signal)
        deadline = time.monotonic() + _STACK_WITHIN_S
        while time.monotonic() < deadline and not all(_size(log.stack_path) for log in logs):
            time.sleep(0.05)
        stacks = {}
        for log in logs:
            if _size(path := log.stack_path):  # of the threads in faulthandler's dump the main one is the last
                threads = re.split(r"\n\n(?=Current thread|Thread)", path.read_text(errors="replace").strip())
                stacks[log] = without_escapes(threads[-1])
        return stacks

    def died(self, launcher: Launcher, code: int = 0) -> tuple[str, str]:
        """A launch that failed by itself: which rank began it, how, and its last words; `code` is the launcher's."""
        unstarted = next((found for found in self._blamed(launcher) if "node" in found.groupdict()), None)
        if unstarted and not any(log.events for log in self.logs):
            who, why = launcher.program or "the command", unstarted["reason"].strip()
            return f"{who} could not start ranks on {unstarted['node']} ({why})", self._tail(LAUNCHER_OUTPUT)
        if address := self._out_of_reach(gave_up=True):
            return f"ranks could not connect to {address}{_REACH}", self._tail(LAUNCHER_OUTPUT)
        deaths = self._deaths(launcher)
        suspects = list(deaths)
        if code >= 0:  # ranks whose launcher was killed may fail after it, and are not to blame
            suspects += [
                rank
                for rank in range(self._job.np)
                if any("Traceback" in line or "Error" in line for line in self._last_lines(rank))
            ]
        if not suspects:
            who = "the command" if launcher.name == "own" else "the launcher" if code else "the launch"
            steps = min((log.events for log in self.logs), default=0)
            when = f"after {plural(steps, 'step')}" if steps else "before the first step"
            return f"{who} {how_it_ended(code)} {when}", self._tail(LAUNCHER_OUTPUT)
        rank = min(suspects, key=self._fell_with_another)  # of several alike, the one the launcher names first
        how = how_it_ended(_code_of(deaths[rank]) if rank in deaths else 0)
        steps = next((log.events for log in self.logs if log.rank == rank), 0)
        problem = (
            f"rank {rank} {how} after {plural(steps, 'step')}" if steps else f"rank {rank} {how} before its first step"
        )
        return problem, self._tail(f"rank{rank}.out") or self._tail(LAUNCHER_OUTPUT)

    def died_after_training(self, launcher: Launcher, code: int = 0) -> str:
        """One line when ranks crashed only after their interpreters' end had begun and all had made the same steps.

        `code` is the launcher's: a line of the user may say no more of the death of its ranks.
        """
        logs = self.logs
        reported = self._deaths(launcher)
        deaths = [rank for rank in reported if not self._fell_with_another(rank)]
        if not all(signal_of(_code_of(reported[rank])) for rank in deaths):
            return ""  # an error of the script itself
        over = {log.rank for log in logs if log.ended}
        equal = len(logs) == self._job.np and len({log.events for log in logs}) == 1 and logs[0].events > 0
        unnamed = launcher.name == "own" and not reported and bool(signal_of(code)) and len(over) == len(logs)
        if not (deaths or unnamed) or not equal or not over.issuperset(deaths):
            return ""
        who = f"rank {deaths[0]}" if deaths else "the command"
        return f"{who} crashed while it was closing down, after its training; its steps still count"

    def _deaths(self, launcher: Launcher) -> dict[int, re.Match[str]]:
        """The ranks whose death the launcher reports, in its order, without those that it ended itself."""
        deaths = {int(found["rank"]): found for found in self._blamed(launcher) if "rank" in found.groupdict()}
        return {rank: found for rank, found in deaths.items() if signal_of(_code_of(found)) != signal.SIGTERM}

    def _out_of_reach(self, *, gave_up: bool = False) -> str:
        """The address of the first rank, where torch says last that it cannot connect to it, or that it `gave_up`."""
        if not all(log.in_init for log in self.logs):
            return ""
        for path in outputs(self._folder):
            lines = last_lines(path, 200)
            told = {at: found for at, line in enumerate(lines) if (found := _OUT_OF_REACH.search(line))}
            if not told:
                continue
            if gave_up:
                is_so = any(map(_GAVE_UP.search, lines[min(told) :]))
            else:
                is_so = all(map(_RETRIES.match, lines[max(told) :]))
            if is_so:
                last = told[max(told)]
                return f"{last['host']}:{last['port']}"
        return ""

    def _blamed(self, launcher: Launcher) -> list[re.Match[str]]:
        text = "\n".join(last_lines(self._folder / LAUNCHER_OUTPUT, 80))
        return [found for pattern in launcher.blame for found in pattern.finditer(text)]

    def _fell_with_another(self, rank: int) -> bool:
        """True when a rank's last words complain about another rank that was gone."""
        return any(map(_LOST_A_PEER.search, self._last_lines(rank)))

    def _last_lines(self, rank: int | None, count: int = 40) -> list[str]:
        return last_lines(self._folder / f"rank{rank}.out", count)

    def _tail(self, name: str) -> str:
        lines = last_lines(self._folder / name)
        return "\n".join([f"last output ({self._folder / name}):", *(f"  {line}" for line in lines)]) if lines else ""


def _code_of(death: re.Match[str]) -> int:
    """The exit code that a launcher reports of a rank; negative: a signal. 0: it reports none."""
    found = death.groupdict()
    number = _SIGNALS.get((found.get("death") or "").strip()) or int(found.get("signal") or 0)
    return -number or int(found.get("code") or 0)


_SIGNALS = {signal.strsignal(each): int(each) for each in signal.Signals}  # As Slurm names them: Segmentation fault


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


_LOST_A_PEER = re.compile(
    "|".join(
        [
            r"[Cc]onnection (closed|reset|refused)|[Bb]roken pipe|[Ss]ocket closed|by peer|remote process exited",
            *filter(None, (engine.lost_peer for engine in ENGINES.values())),
        ]
    )
)
_PACKAGES = [engine.package for engine in ENGINES.values() if engine.package]
_COLLECTIVE = re.compile(
    r"in (?:all_?reduce|broadcast|barrier|wait|synchronize|all_?gather\w*|reduce_scatter\w*|backward|init\w*)\b"
)


def _waits_for_others(stack: str) -> bool:
    """True when the innermost frames are inside a collective, or in a backward that waits for one."""
    frames = [line for line in stack.splitlines() if "File " in line][:4]
    return any(
        (_COLLECTIVE.search(frame) and "torch" in frame) or any(f"/{package}/" in frame for package in _PACKAGES)
        for frame in frames
    )
