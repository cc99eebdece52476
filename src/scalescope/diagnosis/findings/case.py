"""Evidence for findings: the explanation, the traces behind it, and replays of a step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

from scalescope.diagnosis.replay import Replay
from scalescope.diagnosis.sharded_replay import ShardedReplay, sharded_replay_of
from scalescope.diagnosis.traces import JobTraces
from scalescope.intervals import between, common, union
from scalescope.records.explanation import Explanation, Finding
from scalescope.records.timeline import Breakdown
from scalescope.steady import step_times_by_number

NOTEWORTHY = 0.03  # A gain below this is no finding


@dataclass(frozen=True)
class Case:
    """An explanation without findings, what it was made of, and its replay where there is one."""

    explanation: Explanation
    job: JobTraces
    replay: Replay | None

    @property
    def step_s(self) -> float:
        """The typical steady step; 0 where there is none."""
        return self.explanation.step_s or 0.0

    @property
    def factor(self) -> float:
        """Seconds of `step_s` for each second of the trace."""
        return self.explanation.untraced_per_traced

    @property
    def traced_s(self) -> float:
        """The typical steady step as it was traced; 0 where there is none."""
        return self.explanation.traced_step_s or self.step_s

    def saving(self, seconds: float) -> float:
        """The gain when a step takes `seconds` less."""
        return self.step_s / max(self.step_s - seconds, 0.05 * self.step_s) - 1 if self.step_s else 0.0

    @property
    def late_s(self) -> dict[int, float]:
        """By rank: how long others wait for it in a step, as far as ranks can be told apart."""
        account = self.explanation.horovod
        if account is not None and account.late_s:
            return account.late_s
        return {each.rank: each.late_s or 0.0 for each in self.explanation.per_rank}

    @cached_property
    def sharded(self) -> ShardedReplay | None:
        """The step of FSDP2 on a GPU, where the simulator's rules explain it."""
        found = sharded_replay_of(self.job, self.explanation)
        return found if found is not None and found.is_as_seen else None

    @cached_property
    def waited_s(self) -> float | None:
        """Seconds of a typical step in which ranks wait for the last one, in the mean over ranks; None: not known.

        Equal ranks would save just that. What waits under compute is none of it.
        """
        steady = [step for step in self.explanation.steps if step.index >= self.explanation.warmup_steps]
        waits = [(step.index, step.parts.waiting_s) for step in steady if step.parts.waiting_s is not None]
        accounting = self.explanation.accounting
        if not waits or self.explanation.too_heavy:
            return accounting.waiting_s if accounting else None
        numbers, waited_s = zip(*waits, strict=True)
        return self.factor * median(step_times_by_number(numbers, waited_s).values())

    @property
    def left_s(self) -> dict[str, float]:
        """Seconds of each part of a step that findings can claim, of the rank with most; an unknown one is missing."""
        parts = [account.parts for account in self.explanation.per_rank]
        left = {}
        for name in ("waiting", "transfer", "exposed", "input", "other"):
            seconds = [getattr(each, f"{name}_s") for each in parts]
            known = [each for each in seconds if each is not None]
            if known:
                left[name] = max(known)
        return left

    def exposed_by_operation(self, rank: int) -> dict[str, float]:
        """Exposed seconds of a steady step of one rank, by collective; empty where the trace does not say when."""
        trace = self.job.traces[self.explanation.ranks.index(rank)]
        first = min(self.explanation.warmup_steps, max(len(trace.starts_s) - 1, 0))
        starts, ends = trace.starts_s[first:], trace.ends_s[first:]
        if trace.exposed is None or not len(starts):
            return {}
        seen = trace.collectives
        found = {}
        for name in self.explanation.collectives:
            own = seen.operation == name
            moments = common(trace.exposed, union(seen.start_s[own], seen.end_s[own]))
            found[name] = self.factor * float(between(moments, starts, ends).mean())
        return {name: seconds for name, seconds in found.items() if seconds > 0}

    def part(self, name: Literal["waiting", "transfer"]) -> str:
        """The part of a step out of which something comes: all exposed communication where it is not divided."""
        accounting = self.explanation.accounting
        return "exposed" if accounting is None or accounting.waiting_s is None else name

    @property
    def sending_s(self) -> float | None:
        """Seconds a step in which Horovod copies and sends; None for other engines."""
        account = self.explanation.horovod
        if account is None:
            return None
        return self.factor * (sum(account.collectives_s.values()) + account.memcpy_in_s + account.memcpy_out_s)

    @property
    def where(self) -> str:
        """The files, for evidence."""
        names = [trace.path.name for trace in self.job.traces]
        unique = list(dict.fromkeys(names))
        return ", ".join(unique[:3]) + (f" and {len(unique) - 3} more" if len(unique) > 3 else "")

    @property
    def shown(self) -> str:
        """The step that is drawn, for evidence."""
        index = self.explanation.shown_index
        return f"step {index} of {self.where}" if index is not None else self.where

    @property
    def shares_cores(self) -> bool:
        """True if the cores that compute also move messages: hidden under compute, these slow it by what they save."""
        return self.explanation.device == "cpu" and self.job.hosts < 2


def sent_s(parts: Breakdown) -> float:
    """Exposed seconds in which messages travel; with waits for late ranks where these are not told apart."""
    return (parts.exposed_s if parts.transfer_s is None else parts.transfer_s) or 0.0


Look = Callable[[Case], Finding | None]
