"""One GPU: how well a profile predicts, what DDP and a communication kernel cost, and what capturing costs."""

import copy
import functools
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shared import need_gpu, print_table
from scalescope.estimation.profile import assemble, read_blocks
from scalescope.estimation.profile_blocks import ProfileTask, file_of
from scalescope.estimation.profile_ranks import Profiler
from scalescope.jobs.hosts import free_port
from scalescope.jobs.plan import AGENT_HOOK
from scalescope.jobs.train_model import device_named
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.simulator.compute import work
from scalescope.workloads import load

KNOWN = (8, 16, 32, 64, 128, 256, 512)
HELD_OUT = (12, 24, 48, 96, 192, 384)
PROFILE_ROUNDS = 4


def profile_gpu() -> list[dict[str, Any]]:
    """Powers of two and the sizes between them take turns in one process; the first predict the second."""
    need_gpu()
    workload = WorkloadSpec(model="resnet50")
    folder = Path("results") / "bench" / "profile_gpu"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file_of(0)).unlink(missing_ok=True)
    task = ProfileTask(workload=workload, batches=KNOWN, device="cuda", seconds=0, repeats=PROFILE_ROUNDS, together=())
    profiler = Profiler(task, device_named("cuda"), folder / file_of(0))
    profiler.write(profiler.describe())
    for _ in range(PROFILE_ROUNDS):
        for batch in sorted({*KNOWN, *HELD_OUT}):
            profiler.block(batch, 1)
    base, others = (_profile(workload, folder, sizes) for sizes in (KNOWN, HELD_OUT))
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


IMAGES = ("3x224x224",)
CASES: tuple[tuple[WorkloadSpec, int], ...] = (
    (WorkloadSpec(model="resnet18", inputs=IMAGES), 32),
    (WorkloadSpec(model="resnet18", inputs=IMAGES), 512),
    (WorkloadSpec(model="resnet50", inputs=IMAGES), 32),
    (WorkloadSpec(model="resnet50", inputs=IMAGES), 128),
    (WorkloadSpec(model="resnet50", inputs=IMAGES), 384),
    (WorkloadSpec(model="resnet101", inputs=IMAGES), 256),
    (WorkloadSpec(model="vgg19", inputs=IMAGES), 128),
    (WorkloadSpec(model="gpt", model_args={"layers": 12, "width": 768, "heads": 12, "sequence": 512}), 32),
    (WorkloadSpec(model="mlp", model_args={"features": 4096, "width": 4096, "depth": 16}), 8192),
)
VARIANTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "no buffers": {"broadcast_buffers": False},
    "views": {"broadcast_buffers": False, "gradient_as_bucket_view": True},
    "1 MiB": {"broadcast_buffers": False, "bucket_cap_mb": 1},
}
ROUNDS, BLOCK_S = 3, 0.5
BLOCKS = (2, 4, 8, 16, 32)  # Of the kernel that stands for NCCL: one for each channel

KERNEL = """
extern "C" __global__ void occupy(float4* to, const float4* from, int count, int microseconds) {
    extern __shared__ float4 kept[];
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    const int stride = gridDim.x * blockDim.x;
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    do {
        for (int i = 0; i < 16 && count > 0; ++i) {
            to[at] = from[at];
            at = at + stride < count ? at + stride : threadIdx.x;
        }
        if (count == 0) __nanosleep(200);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while ((now - began) / 1000 < (unsigned long long)microseconds);
    if (began == 0) to[0] = kept[threadIdx.x];
}
"""
THREADS, SHARED_BYTES = 1024, 96 * 1024


def ddp_gpu() -> list[dict[str, Any]]:
    """Own cost of every case, then how much longer a step takes next to the kernel."""
    import torch
    import torch.distributed as dist

    need_gpu()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1)
    rows = []
    try:
        for spec, batch in CASES:
            rows.append(_own_cost(spec, batch))
            print_table(rows[-1:])
            torch.cuda.empty_cache()
        print_table(rows)
        print_table(_occupied())
    finally:
        dist.destroy_process_group()
    return rows


def _stepping(
    spec: WorkloadSpec, batch: int, variants: Sequence[str] = tuple(VARIANTS)
) -> dict[str, Callable[[], None]]:
    """One training step bare and with some variants of the wrapper, each on a copy of the model."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    workload = load(spec)
    inputs = tuple(each.cuda() for each in workload.batch(batch))
    target: Any = workload.target(batch)
    target = target.cuda() if isinstance(target, torch.Tensor) else target

    def step_of(model: Any) -> Callable[[], None]:
        optimizer = workload.optimizer(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            loss: Any = workload.loss(model(*inputs), target)
            loss.backward()
            optimizer.step()

        return step

    bare = workload.model.cuda()
    wrapped = {name: copy.deepcopy(bare) for name in variants}
    return {
        "bare": step_of(bare),
        **{
            name: step_of(DistributedDataParallel(model, device_ids=[0], **VARIANTS[name]))  # type: ignore[arg-type]
            for name, model in wrapped.items()
        },
    }


def _own_cost(spec: WorkloadSpec, batch: int) -> dict[str, Any]:
    """Milliseconds that each variant adds, when the host waits for every step and when it runs ahead."""
    workload_model = load(spec).model
    sizes = [parameter.numel() * parameter.element_size() for parameter in workload_model.parameters()]
    steps = _stepping(spec, batch)
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in steps}
    for step in steps.values():
        _timed(step, 0.2)
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(_timed(step, BLOCK_S))
    waited, ahead, issued = (
        {name: median(each[at] for each in times[name]) * 1e3 for name in steps} for at in range(3)
    )
    row: dict[str, Any] = {
        "model": spec.model,
        "batch": batch,
        "tensors": len(sizes),
        "MB": sum(sizes) / 1e6,
        "buffers": sum(1 for _ in workload_model.buffers()),
        "bare ms": waited["bare"],
        "issued ms": issued["bare"],
        "ahead ms": ahead["bare"],
    }
    for name in VARIANTS:
        row |= {f"{name} +ms": waited[name] - waited["bare"], f"{name} ahead +ms": ahead[name] - ahead["bare"]}
    return row


def _timed(step: Callable[[], None], seconds: float) -> tuple[float, float, float]:
    """Seconds of a step: with a wait after each (median), without (mean), and until the host has issued it."""
    import torch

    step()
    torch.cuda.synchronize()
    waited: list[float] = []
    issued: list[float] = []
    ends = time.perf_counter() + seconds / 2
    while time.perf_counter() < ends or len(waited) < 5:
        began = time.perf_counter()
        step()
        issued.append(time.perf_counter() - began)
        torch.cuda.synchronize()
        waited.append(time.perf_counter() - began)
    began, made = time.perf_counter(), len(waited)
    for _ in range(made):
        step()
    torch.cuda.synchronize()
    return median(waited), (time.perf_counter() - began) / made, median(issued)


def _occupied() -> list[dict[str, Any]]:
    """How many times longer a step takes while some multiprocessors communicate."""
    import torch

    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    rows = []
    for spec, batch in (CASES[4], CASES[6], CASES[7]):
        step = _stepping(spec, batch, ())["bare"]
        alone_s = median(_device_s(step, 0.0, 0, False) for _ in range(6))
        for copying in (False, True):
            row: dict[str, Any] = {"model": spec.model, "of": multiprocessors, "copying": copying}
            row["alone ms"] = alone_s * 1e3
            for blocks in BLOCKS:
                seconds = median(_device_s(step, 2.5 * alone_s, blocks, copying) for _ in range(5))
                row[f"{blocks} blocks"] = seconds / alone_s
            rows.append(row)
    return rows


def _device_s(step: Callable[[], None], seconds: float, blocks: int, copying: bool) -> float:
    """Seconds of a step on the GPU, next to a kernel that runs in this many blocks for so long."""
    import torch

    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    if blocks:
        kernel, to, source, aside = _occupant()
        kernel(
            grid=(blocks, 1, 1),
            block=(THREADS, 1, 1),
            args=[to, source, to.numel() // 4 if copying else 0, int(seconds * 1e6)],
            shared_mem=SHARED_BYTES,
            stream=aside,
        )
    began.record()
    step()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) * 1e-3


@functools.cache
def _occupant() -> tuple[Any, Any, Any, Any]:
    """The kernel, what it copies where, and its stream."""
    import torch

    kernel: Any = torch.cuda._compile_kernel(KERNEL, "occupy")
    kernel.set_shared_memory_config(SHARED_BYTES)
    to, source = (torch.ones(1 << 26, device="cuda") for _ in range(2))
    return kernel, to, source, torch.cuda.Stream()  # type: ignore[no-untyped-call]


FIRST, STEPS, TOTAL = 80, 40, 180  # Of the captured steps
SETTLED = 40  # Steps after which compilation and clocks have settled
SCRIPT = Path(__file__).with_name("gpt_training.py")
WINDOWS = {"untraced": "", "light": f"{FIRST}:{STEPS}:10", "full": f"{FIRST}:{STEPS}:10:full"}


def capture_gpu() -> list[dict[str, Any]]:
    """One row per kind of capture of a compiled GPT, medians over rounds in which the kinds take turns.

    Every launch traces a stretch in its middle and compares it with the steps before and after it; the untraced launch
    shows how much steps differ anyway.
    """
    need_gpu()
    details: list[dict[str, Any]] = []
    for round_ in range(ROUNDS):
        for kind, window in WINDOWS.items():
            folder = Path("results") / "bench" / "capture_gpu" / f"{kind}-{round_}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            details.append({"capture": kind, **_captured(folder, window)})
    print_table(details)
    numbers = [name for name, value in details[-1].items() if not isinstance(value, str)]
    return [
        {"capture": kind}
        | {
            name: median(told)
            for name in numbers
            if (told := [row[name] for row in details if row["capture"] == kind and row.get(name) is not None])
        }
        for kind in WINDOWS
    ]


def _captured(folder: Path, window: str) -> dict[str, Any]:
    around = {**os.environ, "SCALESCOPE_FOLDER": str(folder), "PYTHONPATH": str(AGENT_HOOK), "SCALESCOPE_TRACE": window}
    words = [sys.executable, str(SCRIPT), "--steps", str(TOTAL)]
    done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    steps = _steps(folder)
    before, inside, after = steps[SETTLED : FIRST - 1], steps[FIRST : FIRST + STEPS], steps[FIRST + STEPS + 2 :]
    untraced = median([*before, *after])
    row = {
        "step ms around": 1e3 * untraced,
        "step ms inside": 1e3 * median(inside),
        "longer %": 100 * (median(inside) / untraced - 1),
    }
    trace = folder / "trace-rank0.json.gz"
    if trace.exists():
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        busy = sum(
            event.get("dur", 0) for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        )
        row |= {
            "events": len(events),
            "GPU busy ms a step": busy / 1e3 / STEPS,
            "GPU idle, % of traced": 100 * (1 - busy / 1e6 / sum(inside)),
            "GPU idle, % of untraced": 100 * (1 - busy / 1e6 / STEPS / untraced),
            "trace MB": trace.stat().st_size / 1e6,
        }
    return row


def _steps(folder: Path) -> list[float]:
    """Seconds of every step, as the agent wrote them."""
    lines = [line for path in folder.glob("agent-*.jsonl") for line in path.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    found: list[float] = []
    for event in events:
        if event.get("kind") == "step":
            found.append((event["t"] - event["s"]) * 1e-9)
        elif event.get("kind") == "steps":
            found += [(end - start) * 1e-9 for start, end in pairwise([event["s"], *event["ends"]])]
    return found
