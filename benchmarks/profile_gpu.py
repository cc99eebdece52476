"""A profile of resnet50 on one GPU: compute and memory against batch size, and how well batches between are known."""

from pathlib import Path
from typing import Any

from benchmarks.accuracy import FOLDER
from benchmarks.table import print_table
from scalescope import host
from scalescope.errors import UsageError
from scalescope.estimation.profile import assemble, read_blocks
from scalescope.estimation.profile_ranks import Profiler, ProfileTask, file_of
from scalescope.jobs.train_model import device_named
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.simulator.compute import work

KNOWN = (8, 16, 32, 64, 128, 256, 512)
HELD_OUT = (12, 24, 48, 96, 192, 384)
ROUNDS = 4


def run() -> list[dict[str, Any]]:
    """Powers of two and the sizes between them take turns in one process; the first predict the second."""
    if not host.gpus():
        raise UsageError("this section needs a GPU: run it where nvidia-smi shows one")
    return compare("resnet50", "cuda", KNOWN, HELD_OUT)


def compare(model: str, device: str, known: tuple[int, ...], held_out: tuple[int, ...]) -> list[dict[str, Any]]:
    """Tables of what was measured and what was predicted, and their summary."""
    workload = WorkloadSpec(model=model)
    folder = FOLDER / "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file_of(0)).unlink(missing_ok=True)
    task = ProfileTask(workload=workload, batches=known, device=device, seconds=0, repeats=ROUNDS, together=())
    profiler = Profiler(task, device_named(device), folder / file_of(0))
    profiler.write(profiler.describe())
    for _ in range(ROUNDS):
        for batch in sorted({*known, *held_out}):
            profiler.block(batch, 1)
    base, others = (_profile(workload, folder, sizes) for sizes in (known, held_out))
    print_table(
        [
            {
                "batch": point.batch,
                "measured ms": point.step_s * 1e3,
                "samples/s": point.batch / point.step_s,
                "noise %": 100 * point.noise,
                "memory GiB": point.memory_bytes / 2**30,
            }
            for point in base.points
        ]
    )
    between = work(base, [point.batch for point in others.points])
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
        for point, step_s, memory in zip(others.points, between.step_s, between.memory_bytes, strict=True)
    ]
    print_table(checks)
    return [
        {
            "device": base.device,
            "mean error %": sum(abs(row["error %"]) for row in checks) / len(checks),
            "worst error %": max(abs(row["error %"]) for row in checks),
            "stated error %": 100 * base.interpolation_error,
            "worst memory error %": max(abs(row["memory error %"]) for row in checks),
        }
    ]


def _profile(workload: WorkloadSpec, folder: Path, batches: tuple[int, ...]) -> ModelProfile:
    model, blocks = read_blocks(folder, 1)
    return assemble(workload, model, [[block for block in blocks[0] if block.batch in batches]], 1, 0.0)
