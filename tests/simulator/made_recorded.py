"""Recorded steps made by hand: of DDP from a profile, of FSDP2 from a step whose collectives cost nothing."""

from dataclasses import replace

import numpy as np

from scalescope.engines.base import Exchange
from scalescope.records.profile import ModelProfile
from scalescope.records.rank_zero import Message, RankZero
from scalescope.simulator.sharded import ShardedStep
from scalescope.simulator.sharded import run as run_sharded

_NEARLY_NOTHING = 1e-12  # An all-reduce that costs nothing is none
_OPERATIONS = {"gather": "all_gather", "scatter": "reduce_scatter", "allreduce": "all_reduce"}


def rank_zero(np_: int = 2, step_s: float = 10.0, *messages: Message, **more: object) -> RankZero:
    """A step of ten seconds on one of two CPU ranks: 1 s of input, 3 of forward, 4 of backward, 2 of the optimizer."""
    given = {
        "what": "train.py",
        "ranks_per_node": np_,
        "copies": np_,
        "batch": 8,
        "engine": "ddp",
        "backend": "gloo",
        "recorded_step_s": step_s,
        "forward_s": 0.3 * step_s,
        "backward_s": 0.4 * step_s,
        "optimizer_s": 0.2 * step_s,
        "memory_bytes": 2**30,
        "memory_limit_bytes": 64 * 2**30,
        **more,
    }
    return RankZero(np=np_, step_s=step_s, messages=messages, **given)


def message(
    issued_s: float = 5.0, needed_s: float | None = 8.0, bytes_: int = 2**20, ranks: int = 2, **more
) -> Message:
    """A bucket of DDP."""
    given = {"operation": "all_reduce", "phase": "backward", "group": "world", **more}
    return Message(bytes=bytes_, ranks=ranks, issued_s=issued_s, needed_s=needed_s, **given)


def recorded_ddp(profile: ModelProfile, exchange: Exchange, ranks: int) -> RankZero:
    """The recording of the step that a profile of one batch size holds."""
    (point,) = profile.points
    end_s = point.forward_s + point.backward_s
    sent = [message(point.forward_s + point.ready_s[each.last], end_s, each.bytes, ranks) for each in exchange.messages]
    return rank_zero(
        ranks,
        point.step_s,
        *sent,
        forward_s=point.forward_s,
        backward_s=point.backward_s,
        optimizer_s=point.optimizer_s,
        batch=point.batch,
        cores_used=point.cores_used,
    )


def recorded_fsdp2(step: ShardedStep, ranks: int = 2, device: str = "gpu") -> tuple[RankZero, list[float]]:
    """The recording of a sharded step, whose collectives cost nothing in it, and what they cost in truth."""
    free = replace(
        step,
        groups=tuple(
            replace(each, gather_s=0.0, scatter_s=0.0, allreduce_s=_NEARLY_NOTHING * (each.allreduce_s > 0))
            for each in step.groups
        ),
    )
    made, groups = run_sharded(free), {each.name: each for each in step.groups}
    messages, costs = [], []
    for at, done in enumerate(made.done):
        if done.kind not in _OPERATIONS:
            continue
        needed = None
        if done.kind == "gather":
            uses = [each for each in made.done[at:] if each.kind in ("forward", "backward") and each.name == done.name]
            needed = float(np.asarray(uses[0].start_s - groups[done.name].copy_out_s))
        group = groups[done.name]
        costs.append({"gather": group.gather_s, "scatter": group.scatter_s, "allreduce": group.allreduce_s}[done.kind])
        messages.append(
            Message(
                operation=_OPERATIONS[done.kind],
                bytes=done.bytes,
                ranks=ranks,
                group="replicas" if done.kind == "allreduce" else "world",
                phase="backward" if done.kind != "gather" else "forward",
                module=done.name,
                issued_s=float(np.asarray(done.start_s)),
                needed_s=needed,
            )
        )
    step_s = float(np.asarray(made.step_s))
    times = {"forward_s": 0.0, "backward_s": step_s - step.optimizer_s, "optimizer_s": step.optimizer_s}
    return rank_zero(ranks, step_s, *messages, engine="fsdp2", device=device, backend="nccl", **times), costs
