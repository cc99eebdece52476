"""Published steps of FSDP on more nodes, predicted from the published step on the fewest.

llm-foundry's own table (mosaicml/llm-foundry, scripts/train/benchmarking/README.md): MPT models on A100 40 GB machines
with 1600 Gbit/s a node, FULL_SHARD, parameters and gradients in bfloat16, 2048 tokens a sample. The step on the fewest
GPUs gives the compute, which nothing else tells; what changes from there on is predicted. The table's H100 rows name no
network, so nothing can be predicted of them. Nothing in the model was fitted to these figures.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import brentq

from benchmarks.shared import print_table
from scalescope.records.cluster import Cluster, Link
from scalescope.simulator.costs import CostModel
from scalescope.simulator.events import OverlapSlowdown
from scalescope.simulator.gpu import copy_s_per_byte, described_overlap, unequal
from scalescope.simulator.sharded import Group, Segment, ShardedStep, run

CLUSTER = Cluster(
    name="A100 40 GB, 1600 Gbit/s",
    nodes=16,
    slots_per_node=8,
    cores_per_node=128,
    device="gpu",
    gpu="A100",
    inside=Link(bytes_per_s=300e9, latency_s=5e-6),
    between=Link(bytes_per_s=200e9, latency_s=8e-6),
)
_NUMBER_BYTES, _TOKENS, _VOCABULARY = 2, 2048, 50432


@dataclass(frozen=True)
class Row:
    """A model with the micro-batch that it was measured with, and tokens per second of a GPU by number of GPUs."""

    model: str
    parameters: int
    layers: int
    width: int
    batch: int
    checkpointing: bool
    rates: dict[int, float]


ROWS = (
    Row("7b", 6_658_859_008, 32, 4096, 18, True, {32: 3725, 64: 3665, 128: 3623}),
    Row("13b", 12_853_954_560, 40, 5120, 16, True, {64: 1976, 128: 1972}),
    Row("3b", 2_651_837_440, 32, 2560, 6, False, {64: 9736, 128: 9538}),
)


def published_fsdp() -> list[dict[str, Any]]:
    """Predicted against published steps, and against the prediction that nothing changes."""
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        steps_s = {ranks: row.batch * _TOKENS / rate for ranks, rate in row.rates.items()}
        first = min(steps_s)
        compute_s = computed_s(row, first, steps_s[first])
        rows += [
            {
                "model": row.model,
                "GPUs": ranks,
                "from": first,
                "published ms": 1e3 * truth_s,
                "predicted ms": 1e3 * (predicted_s := step_s(row, compute_s, ranks)),
                "error %": 100 * (predicted_s / truth_s - 1),
                "of no change %": 100 * (steps_s[first] / truth_s - 1),
            }
            for ranks, truth_s in steps_s.items()
            if ranks > first
        ]
    print_table(rows)
    return [
        {
            "points": len(rows),
            "mean error % (goal 2)": fmean(abs(row["error %"]) for row in rows),
            "of no change %": fmean(abs(row["of no change %"]) for row in rows),
            "worst error %": max((row["error %"] for row in rows), key=abs),
        }
    ]


def computed_s(row: Row, ranks: int, published_s: float) -> float:
    """Forward and backward of a model whose step takes this long."""
    return float(brentq(lambda seconds: step_s(row, seconds, ranks) - published_s, 0.1, 60.0))


def step_s(row: Row, compute_s: float, ranks: int) -> float:
    """A step of a model whose forward and backward take this long on a typical GPU."""
    nodes = -(-ranks // CLUSTER.slots_per_node)
    root = _VOCABULARY * row.width
    sizes = [root, *([(row.parameters - root) // row.layers] * row.layers)]
    gathers, scatters = (CostModel(CLUSTER, "nccl", operation) for operation in ("allgather", "reducescatter"))
    copied_s = copy_s_per_byte(CLUSTER)
    groups = tuple(
        Group(
            name=str(number),
            bytes=_NUMBER_BYTES * size,
            gather_s=float(gathers.seconds(_NUMBER_BYTES * size, ranks, nodes)),
            scatter_s=float(scatters.seconds(_NUMBER_BYTES * size, ranks, nodes)),
            reshards=number > 0,
            copy_out_s=copied_s * _NUMBER_BYTES * size,
            copy_in_s=copied_s * _NUMBER_BYTES * size,
        )
        for number, size in enumerate(sizes)
    )
    slowest, _ = unequal(CLUSTER, [ranks])
    # Backward is twice the forward; with activation checkpointing the forward is in it once more.
    forward_s = compute_s * float(slowest[0]) / (4 if row.checkpointing else 3)
    backward_s = compute_s * float(slowest[0]) - forward_s
    shares = np.array(sizes) / sum(sizes)
    made = ShardedStep(
        groups=groups,
        forward=tuple(Segment(at, forward_s * share) for at, share in enumerate(shares)),
        backward=tuple(Segment(at, backward_s * share) for at, share in reversed(list(enumerate(shares)))),
    )
    overlap = described_overlap(CLUSTER, ranks, nodes)
    return float(np.ravel(run(made, OverlapSlowdown(overlap.compute, overlap.communication)).step_s)[0])
