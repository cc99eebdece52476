"""What a finding looks at."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from scalescope.diagnosis.replay import Replay
from scalescope.diagnosis.traces import JobTraces
from scalescope.records.explanation import Explanation, Finding, Transfer

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

    @property
    def waited_s(self) -> float:
        """Seconds a step that ranks are known to wait for the last one: no cost of messages, cycles or settings."""
        if self.explanation.skew_s:
            return median(self.explanation.skew_s)
        rank = self.explanation.straggler
        return 0.0 if rank is None else self.late_s[rank]

    @property
    def sending_s(self) -> float | None:
        """Seconds a step in which Horovod copies and sends; None for other engines."""
        account = self.explanation.horovod
        if account is None:
            return None
        return sum(account.collectives_s.values()) + account.memcpy_in_s + account.memcpy_out_s

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
        """Whether messages are moved by the cores that compute: hidden under compute they slow it by what they save."""
        record = self.job.record
        hosts = len({rank.host for rank in record.ranks}) if record else 1
        return self.explanation.device == "cpu" and hosts < 2

    def per_step(self, seconds: Callable[[Transfer], float | None]) -> float | None:
        """Seconds a step of all transfers together; None where ranks were not compared."""
        steps = min(len(trace.starts_s) for trace in self.job.traces)
        values = [(seconds(transfer), transfer.count) for transfer in self.explanation.transfers]
        if not self.job.clocks or not steps or not values or any(value is None for value, _ in values):
            return None
        return sum((value or 0.0) * count for value, count in values) / steps


Look = Callable[[Case], Finding | None]
