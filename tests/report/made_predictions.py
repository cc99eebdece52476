"""Predictions, timelines and clusters made by hand: what maps, charts and the terminal are tried on."""

import functools
import math
from collections.abc import Sequence

import msgspec

from scalescope.records.cluster import Cluster, Costs
from scalescope.records.job import Knobs
from scalescope.records.prediction import Advice, Calibration, Cell, Check, Prediction
from scalescope.records.request import ScalingKind
from scalescope.records.timeline import Span, Step, Timeline

COUNTS = (1, 2, 3, 4, 6, 8)
BATCHES = (4, 8, 16, 32, 64, 128, 256, 512)
GIB = 2**30


def predicted(
    what: str = "cnn",
    *,
    counts: Sequence[int] = COUNTS,
    batches: Sequence[int] = BATCHES,
    kinds: Sequence[ScalingKind] = ("weak",),
    slots: int = 4,
    network_s: float = 0.02,
    memory_limit: int = 64 * GIB,
    goal: float = 0.8,
) -> Prediction:
    """A model whose exchange costs `network_s` between nodes and a third of that inside one."""
    cells = []
    for kind in kinds:
        for np in counts:
            for batch in batches:
                if kind == "weak" or batch >= np:
                    each, total = (batch, np * batch) if kind == "weak" else (-(-batch // np), batch)
                    cells.append(_cell(kind, np, each, total, slots, network_s, memory_limit))
    fitting = [cell for cell in cells if cell.fits]
    good = [cell for cell in fitting if cell.efficiency >= goal]
    fastest = max((cell.throughput for cell in fitting), default=0.0)
    best = max(good or fitting, key=lambda cell: cell.throughput, default=None)
    advice = best and Advice(
        np=best.np,
        batch=best.batch,
        global_batch=best.global_batch,
        scaling=best.scaling,
        speedup=best.speedup,
        efficiency=best.efficiency,
        throughput=best.throughput,
        regret=1 - best.throughput / fastest,
        why="the fastest cell that keeps 80 % efficiency",
    )
    return Prediction(
        what=what,
        engine="ddp",
        knobs=Knobs(engine="ddp", values={"bucket_cap_mb": 25}),
        cluster="cluster.toml",
        slots_per_node=slots,
        nodes=-(-max(counts) // slots),
        threads_per_rank=1,
        cells=tuple(cells),
        recommended=advice,
        most_efficient_np=max((cell.np for cell in good), default=None),
        efficiency_goal=goal,
        residual=0.03,
        profile_batches=(4, 16, 64, 256),
        interpolation_error=0.02,
        memory_limit_bytes=memory_limit,
        largest_batch=max((cell.batch for cell in fitting), default=None),
    )


def both() -> Prediction:
    """Strong and weak scaling; a global batch of 4 is too small for 6 and 8 processes."""
    return predicted(kinds=("strong", "weak"))


def hopeless() -> Prediction:
    """No speedup above 1 anywhere."""
    return predicted("mlp", network_s=4.0, counts=(1, 2, 4, 8))


def crowded() -> Prediction:
    """Large batches do not fit into memory."""
    return predicted("resnet50", memory_limit=3 * GIB)


def too_large() -> Prediction:
    """Nothing fits."""
    return predicted("gpt", memory_limit=GIB // 4, batches=(64, 128))


def single() -> Prediction:
    """One cell."""
    return predicted(counts=(2,), batches=(32,), slots=2)


@functools.cache
def large() -> Prediction:
    """64 x 1,024 cells on 8 nodes."""
    return predicted("resnet50", counts=range(1, 65), batches=range(1, 1025), slots=8, network_s=0.05)


def checked() -> Prediction:
    """Four cells were run for real, after twelve in earlier estimates."""
    prediction = both()
    wanted = [("weak", 2, 16), ("weak", 4, 64), ("weak", 8, 256), ("strong", 4, 16)]
    checks = []
    for (kind, np, batch), error in zip(wanted, (0.03, -0.02, 0.12, 0.01), strict=True):
        (cell,) = [each for each in prediction.cells if (each.scaling, each.np, each.batch) == (kind, np, batch)]
        measured = cell.step_s / (1 + error)
        checks.append(
            Check(
                np=np,
                batch=batch,
                scaling=cell.scaling,
                predicted_s=cell.step_s,
                low_s=cell.low_s,
                high_s=cell.high_s,
                measured_s=measured,
                measured_low_s=0.98 * measured,
                measured_high_s=1.03 * measured,
            )
        )
    return msgspec.structs.replace(
        prediction,
        calibration=Calibration(estimates=12, factor=1.042, spread=0.031, mean_error=0.058),
        checks=tuple(checks),
        warnings=("other programs took [red]0.8[/red] cores while the profile was taken",),
    )


def _cell(kind: ScalingKind, np: int, batch: int, total: int, slots: int, network_s: float, limit: int) -> Cell:
    nodes = -(-np // slots)
    alone, alone_all = 0.004 + 0.0008 * batch, 0.004 + 0.0008 * total
    exchange = 0.0 if np == 1 else 2 * (np - 1) / np * network_s * (1.0 if nodes > 1 else 0.33)
    hidden = min(exchange, 0.5 * alone)
    skew = 1 + 0.04 * math.log2(np)
    step = alone * skew + 1.1 * exchange - hidden
    speedup = alone_all / step if kind == "strong" else np * alone / step
    memory = int(0.3 * GIB + batch * 12e6)
    rate = total / step
    apart = 0.04 + 0.01 * nodes
    return Cell(
        np=np,
        nodes=nodes,
        batch=batch,
        global_batch=total,
        scaling=kind,
        step_s=step,
        low_s=step * (1 - apart),
        high_s=step * (1 + apart),
        speedup=speedup,
        speedup_low=speedup / (1 + apart),
        speedup_high=speedup / (1 - apart),
        efficiency=speedup / np,
        throughput=rate,
        exposed_s=1.1 * exchange - hidden,
        hidden_s=hidden,
        memory_bytes=memory,
        device_hours=np * 1e6 / rate / 3600,
        fits=memory <= limit,
        measured_batch=4 <= batch <= 256,
    )


def timeline(source: str = "predicted", ranks: int = 2, slow: float = 1.0) -> Timeline:
    """One DDP step: three buckets, the last one exposed, two of them at the same time."""
    spans = []
    for rank in range(ranks):
        late = 0.0005 * rank
        parts = [
            ("forward", 0.0, 0.010, "", 0),
            ("backward", 0.010, 0.030, "", 0),
            ("copy", 0.030, 0.031, "bucket 2", 4 << 20),
            ("communication", 0.014, 0.022, "allreduce bucket 0", 25 << 20),
            ("communication", 0.020, 0.029, "allreduce bucket 1", 25 << 20),
            ("communication", 0.031, 0.036 + late, "allreduce bucket 2", 4 << 20),
            ("optimizer", 0.037 + late, 0.040 + late, "sgd", 0),
        ]
        spans += [
            Span(rank=rank, activity=kind, start_s=5 + slow * start, end_s=5 + slow * end, name=name, bytes=size)  # type: ignore[arg-type]
            for kind, start, end, name, size in parts
        ]
    steps = [Step(rank=rank, start_s=5.0, end_s=5 + slow * (0.040 + 0.0005 * rank)) for rank in range(ranks)]
    return Timeline(source=source, spans=tuple(spans), steps=tuple(steps))


def cluster() -> Cluster:
    """Two nodes, gloo and Horovod over MPI probed."""
    sizes = tuple(4**power for power in range(5, 14))
    costs = []
    for backend, latency, bandwidth in (("gloo", 9e-5, 1.6e9), ("horovod-mpi", 4e-4, 1.1e9)):
        for operation in ("allreduce", "broadcast"):
            for ranks, nodes in ((2, 1), (4, 1), (4, 2)):
                speed = bandwidth / (12 if nodes > 1 else 1)
                work = 2 * (ranks - 1) / ranks if operation == "allreduce" else 1.0
                seconds = tuple(latency * ranks * nodes + work * size / speed for size in sizes)
                costs.append(
                    Costs(
                        backend=backend,
                        operation=operation,  # type: ignore[arg-type]
                        ranks=ranks,
                        nodes=nodes,
                        sizes_bytes=sizes,
                        seconds=seconds,
                        cpu_seconds=tuple(0.6 * each for each in seconds),
                        error=0.04,
                    )
                )
    return Cluster(name="two nodes", nodes=2, slots_per_node=4, cores_per_node=8, costs=tuple(costs))
