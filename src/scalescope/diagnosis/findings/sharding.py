"""Sharded parameters and gradients: synchronized too often, gathered twice, too late, or in too many parts."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.diagnosis.findings.case import NOTEWORTHY, Case
from scalescope.diagnosis.replay import USUAL_BYTES_PER_S, MessageCosts
from scalescope.engines.base import MIB
from scalescope.intervals import before, between, common, union
from scalescope.records.explanation import Finding
from scalescope.simulator.sharded import ShardedStep
from scalescope.text import plural
from scalescope.traces.trace import Issued, Trace
from scalescope.units import format_bytes, format_seconds

_MEMORY_SHARE = 0.25  # Of a GPU that parameters which are kept may take
_MANY = 8
_SMALL_BYTES = MIB
_JOINED_BYTES = 8 * MIB
_FEWEST_GROUPS = 4  # That are left when groups are joined: one computes while the next one is gathered
_Which = Callable[[Trace, Issued], NDArray[np.bool_]]


class _Cost(NamedTuple):
    """Cost of some collectives in a typical steady step; gathers and reductions of it that wait for no rank."""

    number: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0  # Exposed


def _cost(case: Case, which: _Which) -> _Cost:
    """The mean over ranks; nothing where the traces do not say what FSDP2 did."""
    first, rows = case.explanation.warmup_steps, list[tuple[float, float, float]]()
    for trace in case.job.traces:
        issued, seen = trace.issued, trace.collectives
        starts, ends = trace.starts_s[first:], trace.ends_s[first:]
        if issued is None or trace.exposed is None or not len(starts):
            return _Cost()
        those = which(trace, issued) & (seen.start_s >= starts[0]) & (seen.start_s < ends[-1])
        alone = common(trace.exposed, union(seen.start_s[those], seen.end_s[those]))
        sizes = np.maximum(seen.bytes[those], 0)
        rows.append((those.sum() / len(starts), sizes.sum() / len(starts), between(alone, starts, ends).mean()))
        if trace is case.job.traces[0]:
            chosen, steps = those, len(starts)
    number, size, exposed_s = np.mean(rows, axis=0).tolist()
    compared = case.job.compared
    waited_s = 0.0 if compared is None else float(compared.mean_wait_s[chosen[compared.at]].sum()) / steps
    return _Cost(number, size, case.factor * max(exposed_s - waited_s, 0.0))


def _saved(
    case: Case, change: Callable[[ShardedStep], ShardedStep], seen_s: float
) -> tuple[float, Literal["replay", "accounting"]]:
    """Seconds that a step takes less once it is changed so, by its replay or else as seen; and which of both."""
    if case.sharded is None:
        return seen_s, "accounting"
    return case.sharded.saved_s(change(case.sharded.step)), "replay"


def _gathers(trace: Trace, issued: Issued) -> NDArray[np.bool_]:
    return np.asarray((trace.collectives.operation == "allgather") & (issued.phase != ""), dtype=bool)


def _reduces(trace: Trace, issued: Issued) -> NDArray[np.bool_]:
    """Reductions of gradients: scattered in a group that shards, between groups that replicate in full."""
    kinds = np.isin(trace.collectives.operation.astype(str), ("reducescatter", "allreduce"))
    return np.asarray(kinds & (issued.phase == "backward"), dtype=bool)


def _module_bytes(trace: Trace, own: NDArray[np.bool_]) -> dict[str, float]:
    """Median size of each module's collectives, in bytes."""
    assert trace.issued is not None
    own = own & (trace.collectives.bytes > 0)
    modules, sizes = trace.issued.module[own], trace.collectives.bytes[own]
    return {str(name): float(np.median(sizes[modules == name])) for name in set(modules.tolist())}


def synchronized_micro_batches(case: Case) -> Finding | None:
    """Gradients are reduced in every micro-batch of an accumulation, and not only in the last."""
    total, needless = (
        _cost(case, _reduces),
        _cost(case, lambda trace, issued: issued.followed & _reduces(trace, issued)),
    )
    saved, source = _saved(case, ShardedStep.synced_once, needless.seconds)
    if needless.number < 1 or case.saving(saved) < NOTEWORTHY:
        return None
    passes = round(total.number / max(total.number - needless.number, 1.0))
    return Finding(
        id="synchronized_micro_batches",
        sentence=f"Gradients are reduced in each of {passes} micro-batches, and only the last one needs it: "
        f"{format_seconds(saved)} a step.",
        evidence={
            "reductions per step": f"{total.number:.3g}",
            "of them before the last micro-batch": f"{needless.number:.3g}",
            "memory it takes": f"whole gradients on every rank, {format_bytes(total.bytes / passes)}"
            if total.bytes
            else "whole gradients on every rank",
            "seen in": case.shown,
        },
        change="model.set_requires_gradient_sync(micro == last) before each micro-batch, with "
        "model.set_is_last_backward(micro == last)",
        gain=case.saving(saved),
        gain_from=source,
        parts=(case.part("transfer"),),
    )


def second_gathers(case: Case) -> Finding | None:
    """Parameters are freed after forward and gathered again for backward, where memory would hold them."""
    trace = case.job.traces[0]
    cost = _cost(case, lambda seen, issued: _gathers(seen, issued) & (issued.phase == "backward"))
    saved, source = _saved(case, ShardedStep.without_reshard, cost.seconds)
    if trace.issued is None or not cost.number or case.saving(saved) < NOTEWORTHY:
        return None
    again = _gathers(trace, trace.issued) & (trace.issued.phase == "backward")
    # Gloo tells of a gather what one rank gives; gradients are as large as parameters
    kept_bytes = sum(_module_bytes(trace, again if trace.device == "cuda" else _reduces(trace, trace.issued)).values())
    device = trace.device_bytes
    if device and kept_bytes > _MEMORY_SHARE * device:
        return None
    where = f" of {format_bytes(device)} on the GPU" if device else ""
    return Finding(
        id="second_gathers",
        sentence=f"Parameters are freed after forward and gathered again for backward: "
        f"{plural(round(cost.number), 'gather')} and {format_seconds(saved)} a step.",
        evidence={
            "memory it takes to keep them": f"{format_bytes(kept_bytes)} a rank{where}" if kept_bytes else "unknown",
            "gathers in backward per step": f"{cost.number:.3g}",
            "seen in": case.shown,
        },
        change="fully_shard(block, reshard_after_forward=False), where each rank has room for "
        f"{format_bytes(kept_bytes) if kept_bytes else 'all parameters'} more",
        gain=case.saving(saved),
        gain_from=source,
        parts=(case.part("transfer"),),
    )


def unprefetched_gathers(case: Case) -> Finding | None:
    """The GPU waits for gathers that could have been started while the module before was computed.

    Over gloo every gather blocks, whenever it is started.
    """
    trace = case.job.traces[0]
    starts, ends = (moments[case.explanation.warmup_steps :] for moments in (trace.starts_s, trace.ends_s))
    if trace.issued is None or trace.device != "cuda" or trace.exposed is None or not len(starts):
        return None
    saved = number = 0.0
    for phase in ("forward", "backward"):
        own = np.flatnonzero(_gathers(trace, trace.issued) & (trace.issued.phase == phase))
        own = own[np.argsort(trace.collectives.start_s[own])]
        begin, end = trace.collectives.start_s[own], trace.collectives.end_s[own]
        exposed = before(trace.exposed, end) - before(trace.exposed, begin)
        # What the module before took since its own gather: a gather that starts there hides under that
        room = np.concatenate([[0.0], begin[1:] - end[:-1]])[: len(own)]
        first = np.searchsorted(starts, begin, side="right") != np.searchsorted(starts, np.roll(begin, 1), side="right")
        waits = ~trace.issued.prefetched[own] & ~first & (room > 0) & (begin >= starts[0]) & (begin < ends[-1])
        saved += float(np.minimum(exposed, room)[waits].sum()) / len(starts)
        number += float((waits & (exposed > 0)).sum()) / len(starts)
    # Where the GPU idles it is the host that is late, and a gather that starts earlier makes no host faster
    saved -= case.explanation.accounting.other_s if case.explanation.accounting else 0.0
    saved, source = _saved(case, ShardedStep.with_prefetch, saved)
    if case.saving(saved) < NOTEWORTHY:
        return None
    return Finding(
        id="unprefetched_gathers",
        sentence=f"{number:.3g} gathers a step start only when their module is reached, and the GPU waits "
        f"{format_seconds(saved)} for them.",
        evidence={"gathers that wait, per step": f"{number:.3g}", "seen in": case.shown},
        change="block.set_modules_to_forward_prefetch([next_block]) for every block but the last",
        gain=case.saving(saved),
        gain_from=source,
        parts=(case.part("transfer"),),
    )


def small_groups(case: Case) -> Finding | None:
    """Parameters travel in many small groups, and each pays a fixed cost."""
    trace = case.job.traces[0]
    if trace.issued is None:
        return None
    saved, groups, fewer, typical = 0.0, 0, 0, 0.0
    for operation in ("allgather", "reducescatter"):
        own = (trace.collectives.operation == operation) & (trace.issued.phase != "")
        sizes = list(_module_bytes(trace, own).values())
        seen = sorted((each.bytes, each.seconds) for each in case.explanation.transfers if each.operation == operation)
        if len(sizes) < _MANY or float(np.median(sizes)) > _SMALL_BYTES or not seen:
            continue
        known, seconds = np.array(seen, dtype=float).T
        costs = MessageCosts(
            sizes=known,
            seconds=np.maximum.accumulate(seconds),
            usual_bytes_per_s=USUAL_BYTES_PER_S.get(case.explanation.backend, 1e9),
        )
        groups, typical = len(sizes), float(np.median(sizes))
        fewer = max(_FEWEST_GROUPS, math.ceil(sum(sizes) / _JOINED_BYTES))
        now, then = costs.cost(np.array(sizes)).sum(), fewer * costs.cost(np.array([sum(sizes) / fewer])).sum()
        all_ = [each for each in case.explanation.exchanges if each.operation == operation and each.phase]
        passes = sum(each.count for each in all_) / groups
        saved += min(case.factor * passes * float(now - then), sum(each.transfer_s for each in all_))
    if not groups or case.saving(saved) < NOTEWORTHY:
        return None
    return Finding(
        id="small_groups",
        sentence=f"Parameters are sharded in {groups} groups of about {format_bytes(typical)}: "
        "each gather and each reduction pays a fixed cost.",
        evidence={"groups": str(groups), "typical size": format_bytes(typical), "seen in": case.shown},
        change="fully_shard whole blocks instead of single layers, or several modules as one group: "
        f"fully_shard([layer1, layer2]); {fewer} groups would do",
        gain=case.saving(saved),
        gain_from="replay",
        parts=(case.part("transfer"),),
    )
