"""Sums over steps of a Horovod timeline: what its background thread did."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scalescope.records.explanation import HorovodAccount, TensorAccount
from scalescope.timelines.horovod.columns import Numbers, Vocabulary
from scalescope.timelines.horovod.names import COPY_IN, COPY_OUT, DATA_WAIT, GROUPS, NEGOTIATION, QUEUE
from scalescope.timelines.horovod.pairs import Ticks
from scalescope.timelines.horovod.responses import Responses, within
from scalescope.timelines.intervals import Intervals, Times, between, union


@dataclass
class Sums:
    """Over a number of steps; times in microseconds."""

    steps: int = 0
    groups: Times = field(default_factory=lambda: np.zeros(GROUPS))
    collectives: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """By name."""
    waiting: float = 0.0
    """Until the last rank was ready, in negotiations with rank ticks."""
    ticked: float = 0.0
    """All of the negotiations with rank ticks."""
    negotiations: int = 0
    ticked_negotiations: int = 0
    responses: int = 0
    tensors: int = 0
    sized_responses: int = 0
    bytes: int = 0
    cycles: int = 0
    idle_cycles: int = 0

    def add_times(
        self, groups: Sequence[Intervals], collectives: Mapping[int, Intervals], starts: Times, ends: Times
    ) -> None:
        """What lies in the steps, by group of activities and by name of the collective."""
        self.steps += len(starts)
        self.groups += [between(moments, starts, ends).sum() for moments in groups]
        for name, moments in collectives.items():
            self.collectives[name] += float(between(moments, starts, ends).sum())

    def add_ticks(self, begins: Numbers, ticked: Ticks, starts: Times, ends: Times) -> None:
        """Counts the negotiations that begin so, and splits those with rank ticks."""
        self.negotiations += int((within(begins.astype(np.float64), starts, ends) >= 0).sum())
        self.ticked_negotiations += int((within(ticked.begin.astype(np.float64), starts, ends) >= 0).sum())
        if len(ticked.begin):
            self.waiting += float(between(union(ticked.begin, ticked.ready), starts, ends).sum())
            self.ticked += float(between(union(ticked.begin, ticked.end), starts, ends).sum())

    def add_messages(self, messages: Responses, marks: Times, starts: Times, ends: Times) -> None:
        """Counts messages and cycles; a cycle is idle when no message begins before the next one."""
        begins = messages.begin.astype(np.float64)
        inside = within(begins, starts, ends) >= 0
        sized = inside & (messages.bytes >= 0)
        self.responses += int(inside.sum())
        self.tensors += int(messages.tensors[inside].sum())
        self.sized_responses += int(sized.sum())
        self.bytes += int(messages.bytes[sized].sum())
        ordered = np.sort(begins)
        sent = np.diff(np.searchsorted(ordered, np.append(marks, np.inf)))
        cycles = within(marks, starts, ends) >= 0
        self.cycles += int(cycles.sum())
        self.idle_cycles += int((cycles & (sent == 0)).sum())

    def account(
        self,
        vocabulary: Vocabulary,
        last_rank: dict[int, int],
        first_negotiation: float,
        tensors: tuple[TensorAccount, ...],
    ) -> HorovodAccount:
        """The same per step, in seconds."""
        steps = max(1, self.steps)
        cached = 2 * self.ticked_negotiations < self.negotiations
        seconds = self.groups / 1e6 / steps
        return HorovodAccount(
            negotiation_s=float(seconds[NEGOTIATION]),
            waiting_s=None if cached or not self.ticked_negotiations else self.waiting / 1e6 / steps,
            protocol_s=None if cached or not self.ticked_negotiations else (self.ticked - self.waiting) / 1e6 / steps,
            queue_s=float(seconds[QUEUE]),
            data_wait_s=float(seconds[DATA_WAIT]),
            memcpy_in_s=float(seconds[COPY_IN]),
            memcpy_out_s=float(seconds[COPY_OUT]),
            collectives_s={
                vocabulary.names[name]: time / 1e6 / steps for name, time in self.collectives.items() if time
            },
            responses=self.responses / steps,
            tensors_per_response=self.tensors / max(1, self.responses),
            bytes_per_response=self.bytes / self.sized_responses if self.sized_responses else None,
            cycles=self.cycles / steps if self.cycles else None,
            idle_cycles=self.idle_cycles / steps if self.cycles else None,
            cached=cached,
            last_rank=dict(sorted(last_rank.items())),
            first_negotiation_s=first_negotiation / 1e6,
            tensors=tensors,
        )
