"""What a rank did according to a profiler trace, as sets of moments."""

import numpy as np

from scalescope.timelines.breakdown import Activities, Parts, parts_of
from scalescope.timelines.intervals import NOTHING, Intervals, Times, common, joined, without
from scalescope.timelines.kineto.collector import BRIDGED_S, Collector
from scalescope.timelines.kineto.moments import EVER

_STEPS_TOGETHER = 64


def account(found: Collector, starts_s: Times, ends_s: Times, *, on_device: bool) -> Parts:
    """The parts of every step, a few steps at a time: sets of a whole file would take much memory."""
    of_rank, blocks = of_device if on_device else of_host, []
    for at in range(0, max(1, len(starts_s)), _STEPS_TOGETHER):
        starts, ends = starts_s[at : at + _STEPS_TOGETHER], ends_s[at : at + _STEPS_TOGETHER]
        within = (float(starts[0]), float(ends.max())) if len(starts) else (0.0, 0.0)
        blocks.append(parts_of(of_rank(found, within), starts, ends))

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
    optimizers = found.optimizing.between(within)
    stepping = joined(common(busy, optimizers), without(optimizers, exchange))
    return Activities(
        compute=without(busy, optimizers),
        optimizer=stepping if len(found.optimizers) else None,
        exchange=exchange if len(found.collectives) else None,
        input=inputs if found.inputs.moments else None,
    )


def of_device(found: Collector, within: tuple[float, float] = EVER) -> Activities:
    """On CUDA: what the GPU did; the loader counts where the GPU idles."""
    streams = set(found.device.moments)
    busy = joined(NOTHING, *(found.device.of(stream, within) for stream in streams - found.exchange_streams))
    optimizers = found.device_optimizer.all(within)
    copies = joined(NOTHING, *(found.device.of(stream, within) for stream in streams & found.exchange_streams))
    return Activities(
        compute=without(busy, optimizers),
        optimizer=common(busy, optimizers) if found.device_optimizer.moments else None,
        exchange=joined(found.exchange.between(within), copies) if len(found.collectives) else None,
        input=found.inputs.all(within) if found.inputs.moments else None,
    )


def operators(found: Collector, lane: int | str, within: tuple[float, float] = EVER) -> Intervals:
    """When operators ran on a thread: not the launch of communication, and not those of the loader."""
    wide = found.operators.of(lane, within)
    ran = Intervals(wide.starts, wide.ends - BRIDGED_S)
    return without(ran, joined(found.launching.of(lane, within), found.inputs.of(lane, within)))
