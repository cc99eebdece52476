"""What a rank did according to a profiler trace, as sets of moments."""

import numpy as np

from scalescope.traces.intervals import NOTHING, Intervals, Times, common, joined, union, without
from scalescope.traces.kineto.collector import BRIDGED_S, Collector
from scalescope.traces.kineto.moments import EVER
from scalescope.traces.trace import Activities, Parts, parts_of

_STEPS_TOGETHER = 64


def account(found: Collector, starts_s: Times, ends_s: Times, *, on_device: bool) -> Parts:
    """The parts of every step, a few steps at a time: sets of a whole file would take much memory."""
    blocks, knows_optimizer = [], bool(found.device_optimizer.moments)
    for at in range(0, max(1, len(starts_s)), _STEPS_TOGETHER):
        starts, ends = starts_s[at : at + _STEPS_TOGETHER], ends_s[at : at + _STEPS_TOGETHER]
        within = (float(starts[0]), float(ends.max())) if len(starts) else (0.0, 0.0)
        if not at:  # a GPU's mark of an optimizer holds the kernels of its closure, too
            knows_optimizer &= not len(closures(found, within).starts)
        activities = of_device(found, within, knows_optimizer) if on_device else of_host(found, within)
        blocks.append(parts_of(activities, starts, ends))

    def column(name: str) -> Times | None:
        pieces = [getattr(block, name) for block in blocks]
        return None if pieces[0] is None else np.concatenate(pieces)

    step, other = column("step"), column("other")
    assert step is not None
    assert other is not None
    names = ("compute", "optimizer", "exposed", "hidden", "input")
    return Parts(step=step, other=other, **{name: column(name) for name in names})


def of_host(found: Collector, within: tuple[float, float] = EVER) -> Activities:
    """On CPU: what operators of the training threads, the threads of gloo and the loader did.

    A rank that waits for its next batch does not wait for communication, even if some goes on.
    """
    lanes = found.training or set(found.operators.moments) - found.exchanging
    busy = joined(NOTHING, *(operators(found, lane, within) for lane in lanes))
    inputs = found.inputs.all(within)
    exchange = without(found.exchange.between(within), inputs)
    optimizers = stepping_alone(found, within)
    stepping = joined(common(busy, optimizers), without(optimizers, exchange))
    return Activities(
        compute=without(busy, optimizers),
        optimizer=stepping if len(found.optimizers) else None,
        exchange=exchange if len(found.collectives) else None,
        input=inputs if found.inputs.moments else None,
    )


def of_device(found: Collector, within: tuple[float, float], knows_optimizer: bool) -> Activities:
    """On CUDA: what the GPU did; the loader counts where the GPU idles."""
    streams = set(found.device.moments)
    busy = joined(NOTHING, *(found.device.of(stream, within) for stream in streams - found.exchange_streams))
    optimizers = found.device_optimizer.all(within) if knows_optimizer else NOTHING
    copies = joined(NOTHING, *(found.device.of(stream, within) for stream in streams & found.exchange_streams))
    return Activities(
        compute=without(busy, optimizers),
        optimizer=common(busy, optimizers) if knows_optimizer else None,
        exchange=joined(found.exchange.between(within), copies) if len(found.collectives) else None,
        input=found.inputs.all(within) if found.inputs.moments else None,
    )


def operators(found: Collector, lane: int | str, within: tuple[float, float] = EVER) -> Intervals:
    """When operators ran on a thread: not the launch of communication, and not those of the loader."""
    wide = found.operators.of(lane, within)
    ran = Intervals(wide.starts, wide.ends - BRIDGED_S)
    return without(ran, joined(found.launching.of(lane, within), found.inputs.of(lane, within)))


def stepping_alone(found: Collector, within: tuple[float, float] = EVER) -> Intervals:
    """When optimizers stepped; what their closures did is forward and backward."""
    return without(found.optimizing.between(within), closures(found, within))


def closures(found: Collector, within: tuple[float, float] = EVER) -> Intervals:
    """Inside Optimizer.step: from its beginning or a zero_grad to the end of the last backward before the next one."""
    steps, backward = found.optimizing.between(within), found.backward.all(within)
    if not len(steps.starts) or not len(backward.starts):
        return NOTHING
    zeroed = np.sort(np.array(found.zero_grads))
    holder = np.searchsorted(steps.starts, zeroed, side="right") - 1
    starts = np.sort(np.append(steps.starts, zeroed[(holder >= 0) & (zeroed < steps.ends[holder])]))
    ends = np.minimum(
        np.append(starts[1:], np.inf), steps.ends[np.searchsorted(steps.starts, starts, side="right") - 1]
    )
    last = np.searchsorted(backward.starts, ends) - 1
    has_one = (last >= 0) & (backward.starts[last] >= starts)
    return union(starts[has_one], np.minimum(backward.ends[last], ends)[has_one])
