"""A profile of resnet50 on one GPU: compute and memory against batch size, and how well batches between are known."""

from typing import Any

from benchmarks.accuracy import FOLDER
from benchmarks.table import print_table
from scalescope.errors import UsageError
from scalescope.measurement.profile import assemble, read_blocks, take_profile
from scalescope.measurement.profile_ranks import Block, Model, ProfileTask
from scalescope.measurement.surroundings import gpus_here
from scalescope.prediction.compute import work
from scalescope.records.profile import ModelProfile
from scalescope.records.workload import WorkloadSpec

KNOWN = (8, 16, 32, 64, 128, 256, 512)
HELD_OUT = (12, 24, 48, 96, 192, 384)
TURNS = 2
SECONDS = 20.0
RESNET = WorkloadSpec(model="resnet50")


def run() -> list[dict[str, Any]]:
    """Powers of two and the sizes between them are profiled by turns; the first predict the second."""
    if not gpus_here():
        raise UsageError("this section needs a GPU: run it where nvidia-smi shows one")
    turns = [(_blocks(f"known{turn}", KNOWN), _blocks(f"held_out{turn}", HELD_OUT)) for turn in range(TURNS)]
    known, held_out = (_joined([turn[side] for turn in turns]) for side in range(2))
    between = work(known, [point.batch for point in held_out.points])
    rows = [
        {
            "batch": point.batch,
            "measured ms": point.step_s * 1e3,
            "samples/s": point.batch / point.step_s,
            "noise %": 100 * point.noise,
            "memory GiB": point.memory_bytes / 2**30,
        }
        for point in known.points
    ]
    print_table(rows)
    checks = [
        {
            "batch between": point.batch,
            "measured ms": point.step_s * 1e3,
            "predicted ms": float(step_s) * 1e3,
            "error %": 100 * (float(step_s) / point.step_s - 1),
            "memory GiB": point.memory_bytes / 2**30,
            "predicted GiB": float(memory) / 2**30,
            "memory error %": 100 * (float(memory) / point.memory_bytes - 1),
        }
        for point, step_s, memory in zip(held_out.points, between.step_s, between.memory_bytes, strict=True)
    ]
    print_table(checks)
    return [
        {
            "device": known.device,
            "mean error %": sum(abs(row["error %"]) for row in checks) / len(checks),
            "worst error %": max(abs(row["error %"]) for row in checks),
            "stated error %": 100 * known.interpolation_error,
            "worst memory error %": max(abs(row["memory error %"]) for row in checks),
        }
    ]


def _blocks(name: str, batches: tuple[int, ...]) -> tuple[Model, list[Block]]:
    folder = (FOLDER / "gpu" / name).absolute()
    task = ProfileTask(workload=RESNET, batches=batches, device="cuda", seconds=SECONDS, repeats=8, crowds=())
    take_profile(task, threads_per_rank=4, folder=folder, tell=lambda lines: None)
    model, blocks = read_blocks(folder, 1)
    return model, blocks[0]


def _joined(turns: list[tuple[Model, list[Block]]]) -> ModelProfile:
    return assemble(RESNET, turns[0][0], [[block for _, blocks in turns for block in blocks]], 4, 0.0)
