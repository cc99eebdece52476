"""One predicted step as a Timeline: what a trace of it would show."""

import numpy as np

from scalescope.engines import find_engine
from scalescope.prediction.step import steps
from scalescope.records.cluster import Cluster
from scalescope.records.knobs import Knobs
from scalescope.records.profile import ModelProfile
from scalescope.records.timeline import Activity, Span, Step, Timeline


def predicted_step(profile: ModelProfile, cluster: Cluster, knobs: Knobs, np_: int, batch: int) -> Timeline:
    """The step of the slowest of `np_` processes with `batch` samples each; all of them look alike."""
    exchange = find_engine(knobs.engine).exchange(profile, knobs.values)
    made = steps(profile, cluster, exchange, np.array([np_]), np.array([batch]))
    spans: list[Span] = []
    at = 0.0

    def add(activity: Activity, start_s: float, end_s: float, name: str, size: int = 0) -> None:
        if end_s > start_s:
            spans.append(Span(rank=0, activity=activity, start_s=start_s, end_s=end_s, name=name, bytes=size))

    broadcast_s, forward_s, optimizer_s = (
        float(part[0]) for part in (made.broadcast_s, made.forward_s, made.optimizer_s)
    )
    add("communication", at, at + broadcast_s, "buffers", sum(exchange.broadcasts))
    at += broadcast_s
    add("forward", at, at + forward_s, "forward")
    at += forward_s
    outcome = made.outcome
    add("backward", at, at + float(outcome.backward_s[0]), "backward")
    free = float(outcome.backward_s[0])
    for first, after in _travelled(outcome.ends_s[:, 0]) if np_ > 1 else ():
        if exchange.negotiated:
            add("negotiation", at + free, at + float(outcome.starts_s[first, 0]), "until all ranks agree")
            free = max(free, float(outcome.ends_s[first, 0]))
        size = sum(message.bytes for message in exchange.messages[first:after])
        tensors = sum(message.tensors for message in exchange.messages[first:after])
        name = f"allreduce of {tensors} gradients" if tensors > 1 else "allreduce of 1 gradient"
        add("communication", at + float(outcome.starts_s[first, 0]), at + float(outcome.ends_s[first, 0]), name, size)
    at += float(outcome.sent_s[0])
    add("copy", at, at + float(made.finish_s[0]), "gradients out of buckets")
    at += float(made.finish_s[0])
    add("optimizer", at, at + optimizer_s, "optimizer")
    return Timeline(source="predicted", spans=tuple(spans), steps=(Step(rank=0, start_s=0.0, end_s=at + optimizer_s),))


def _travelled(ends_s: "np.ndarray") -> list[tuple[int, int]]:
    """First and after-last index of the messages that travelled together."""
    firsts = [index for index, end in enumerate(ends_s) if end > 0]
    return list(zip(firsts, [*firsts[1:], len(ends_s)], strict=True))
