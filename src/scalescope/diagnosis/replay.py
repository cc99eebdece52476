"""Replay of a step with something changed: its gradient messages, sent again through the simulator."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalescope.diagnosis.traces import JobTraces
from scalescope.engines import engine_named
from scalescope.intervals import Times
from scalescope.records.explanation import Explanation
from scalescope.simulator.events import OverlapSlowdown, Traffic, simulate
from scalescope.traces.trace import Trace

_FEWEST_STEPS = 3
_FEWEST_SIZES = 2
# Of large messages inside a host; taken where a trace shows one size only, which cannot tell rate from fixed cost.
USUAL_BYTES_PER_S = {"gloo": 1e9, "nccl": 1e10}


@dataclass(frozen=True, kw_only=True)
class MessageCosts:
    """Seconds of messages of any size, by those of some."""

    sizes: Times  # Ascending sizes of which the cost is known, with their seconds
    seconds: Times
    usual_bytes_per_s: float = 1e9  # The rate of further bytes, where one size alone was seen

    def cost(self, bytes_: Times) -> Times:
        """Straight lines between what was seen, a constant below, a rate above."""
        marginal = self.seconds[-1] / self.sizes[-1]
        if len(self.sizes) < _FEWEST_SIZES:
            marginal = min(marginal, 1 / self.usual_bytes_per_s)
            least = max(self.seconds[0] - self.sizes[0] / self.usual_bytes_per_s, 0.0)
        else:
            step = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
            marginal = step if step > 0 else marginal
            # Of an empty message: where the line through the two smallest sizes begins.
            slope = (self.seconds[1] - self.seconds[0]) / (self.sizes[1] - self.sizes[0])
            least = np.clip(self.seconds[0] - slope * self.sizes[0], 0.0, self.seconds[0])
        small = least + (self.seconds[0] - least) * bytes_ / self.sizes[0]
        found = np.where(bytes_ < self.sizes[0], small, np.interp(bytes_, self.sizes, self.seconds))
        return np.asarray(found + marginal * np.maximum(bytes_ - self.sizes[-1], 0.0))


@dataclass(frozen=True, kw_only=True)
class Replay(MessageCosts):
    """Gradient messages of a typical step; seconds from the step's start."""

    step_s: float
    ready_s: Times  # When the last rank had each message
    bytes: Times
    produced_s: float = 0.0  # When the first byte of gradient began to be made: about where backward begins

    def end_s(self, ready_s: Times, bytes_: Times, *, speed: float = 1.0) -> float:
        """Seconds until the last of these messages has arrived, with links `speed` times as fast."""
        traffic = Traffic(
            ready_s=np.maximum.accumulate(ready_s)[:, None],
            bytes=bytes_,
            cost=lambda size, _: self.cost(size) / speed,
        )
        return float(simulate(self.ready_s[-1:], traffic, OverlapSlowdown()).sent_s[0])

    def with_links(self, speed: float) -> float:
        """Seconds of a step if links were `speed` times as fast."""
        return self._changed(self.end_s(self.ready_s, self.bytes, speed=speed))

    def with_buckets(self, cap_bytes: float) -> float:
        """Seconds of a step if the same gradients travelled in messages of this size.

        Each is ready when its last byte is, along the line through the seen messages.
        """
        made = np.concatenate([[0.0], np.cumsum(self.bytes)])
        times = np.concatenate([[self.produced_s], np.maximum.accumulate(self.ready_s)])
        edges = np.append(np.arange(cap_bytes, made[-1], cap_bytes), made[-1])
        return self._changed(self.end_s(np.interp(edges, made, times), np.diff(edges, prepend=0.0)))

    def _changed(self, end_s: float) -> float:
        return self.step_s + end_s - self.end_s(self.ready_s, self.bytes)


def replay_of(job: JobTraces, explanation: Explanation) -> Replay | None:
    """The typical steady step of a job whose traces say the sizes of its messages; None for others."""
    if explanation.step_s is None or not engine_named(explanation.engine).message_size:
        return None
    traces = job.traces
    found = _messages(traces[0], explanation)
    if found is None:
        return None
    ready, sizes, own_s = found
    end_s = float((ready + own_s).max())
    # Until backward is over: what a message shows is when a thread was free to send it.
    parts = next(account.parts for account in explanation.per_rank if account.rank == job.ranks[0])
    computed_s = parts.step_s - (parts.exposed_s or 0.0) - (parts.optimizer_s or 0.0)
    ready = np.minimum(ready, max(computed_s / explanation.untraced_per_traced, float(ready[0])))
    transfer, step_s = own_s.copy(), explanation.step_s / explanation.untraced_per_traced
    compared = job.compared
    if compared and all(clock.pairs for clock in job.clocks):
        for index, size in enumerate(sizes.tolist()):
            same = (compared.bytes == size) & (compared.operation == "allreduce")
            transfer[index] = np.median(compared.transfer_s[same]) if same.any() else own_s[index]
        if len(compared.late_s):
            late_s = float(np.median(compared.late_s.max(axis=1) - compared.late_s[:, 0]))
            # Where clocks are off, no later than lets the messages arrive within the step.
            ready = ready + min(late_s, max(step_s - float((ready + transfer).max()), 0.0))
    known, at = np.unique(sizes, return_inverse=True)
    seconds = np.array([float(np.median(transfer[at == index])) for index in range(len(known))])
    gap = float(np.median(np.diff(ready))) if len(ready) > 1 else float(ready[0]) / 2
    seen = Replay(
        step_s=step_s,
        ready_s=np.maximum.accumulate(ready),
        bytes=sizes.astype(float),
        sizes=known.astype(float),
        seconds=np.maximum.accumulate(np.maximum(seconds, 1e-9)),
        usual_bytes_per_s=USUAL_BYTES_PER_S.get(explanation.backend, 1e9),
        produced_s=max(float(ready[0]) - max(gap, 0.0), 0.0),
    )
    return _as_seen(seen, max(end_s, float(seen.ready_s[-1])))


def _as_seen(replay: Replay, end_s: float) -> Replay:
    """The replay with costs at which its messages end when they did: some travel at the same time, on two threads."""
    low, high = 0.0, 1.0
    if replay.end_s(replay.ready_s, replay.bytes) <= end_s:
        return replay
    for _ in range(30):
        middle = (low + high) / 2
        tried = replace(replay, seconds=replay.seconds * middle)
        if tried.end_s(tried.ready_s, tried.bytes) > end_s:
            high = middle
        else:
            low = middle
    return replace(replay, seconds=np.maximum(replay.seconds * low, 1e-9))


def _messages(trace: Trace, explanation: Explanation) -> tuple[Times, Times, Times] | None:
    """Ready time, bytes and seconds of every gradient message, medians over steady steps that have all of them."""
    seen = trace.collectives
    usual = len(trace.bucket_bytes)
    if not usual or not len(trace.starts_s):
        return None
    rows = []
    order = np.argsort(seen.start_s, kind="stable")
    starts, ends = seen.start_s[order], seen.end_s[order]
    reduces = (seen.operation[order] == "allreduce") & (seen.bytes[order] > 0)
    sizes = seen.bytes[order]
    for index in range(explanation.warmup_steps, len(trace.starts_s)):
        begin, end = trace.starts_s[index], trace.ends_s[index]
        here = reduces & (starts >= begin) & (starts < end)
        if int(here.sum()) == usual:
            rows.append((starts[here] - begin, sizes[here], ends[here] - starts[here]))
    if len(rows) < _FEWEST_STEPS:
        return None
    ready, message_bytes, seconds = (np.median(np.array([row[column] for row in rows]), axis=0) for column in range(3))
    return ready, message_bytes, seconds


def gain(before_s: float, after_s: float) -> float:
    """Step time now over step time then, minus 1."""
    return before_s / max(after_s, 1e-9) - 1


def best_bucket(replay: Replay, caps: Sequence[float]) -> tuple[float, float]:
    """The size of messages with the shortest step, the first of equals, and that step's seconds."""
    return min(((cap, replay.with_buckets(cap)) for cap in caps), key=lambda pair: round(pair[1], 6))
