"""What DDP costs on one GPU, what a communication kernel costs compute there, and how well a profile knows a GPU."""

import copy
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.accuracy import FOLDER
from benchmarks.shared import print_table
from scalescope import host
from scalescope.errors import UsageError
from scalescope.estimation.profile import assemble, read_blocks
from scalescope.estimation.profile_blocks import ProfileTask, file_of
from scalescope.estimation.profile_ranks import Profiler
from scalescope.jobs.hosts import free_port
from scalescope.jobs.train_model import device_named
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.simulator.compute import work
from scalescope.workloads import load

KNOWN = (8, 16, 32, 64, 128, 256, 512)
HELD_OUT = (12, 24, 48, 96, 192, 384)
PROFILE_ROUNDS = 4


def profile_gpu() -> list[dict[str, Any]]:
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
    task = ProfileTask(workload=workload, batches=known, device=device, seconds=0, repeats=PROFILE_ROUNDS, together=())
    profiler = Profiler(task, device_named(device), folder / file_of(0))
    profiler.write(profiler.describe())
    for _ in range(PROFILE_ROUNDS):
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

    if not host.gpus():
        raise UsageError("this section needs a GPU: run it where nvidia-smi shows one")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1)
    rows = []
    try:
        for spec, batch in CASES:
            rows.append(own_cost(spec, batch))
            print_table(rows[-1:])
            torch.cuda.empty_cache()
        print_table(rows)
        print_table(copies())
        print_table(occupied())
    finally:
        dist.destroy_process_group()
    return rows


def stepping(
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


def own_cost(spec: WorkloadSpec, batch: int) -> dict[str, Any]:
    """Milliseconds that each variant adds, when the host waits for every step and when it runs ahead."""
    workload_model = load(spec).model
    sizes = [parameter.numel() * parameter.element_size() for parameter in workload_model.parameters()]
    steps = stepping(spec, batch)
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in steps}
    for step in steps.values():
        timed(step, 0.2)
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(timed(step, BLOCK_S))
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


def timed(step: Callable[[], None], seconds: float) -> tuple[float, float, float]:
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


def copies() -> list[dict[str, Any]]:
    """Device time of copies of gradients into a bucket, as DDP makes them, queued so that the host is no limit."""
    import torch

    rows = []
    for size in (4 << 10, 64 << 10, 1 << 20, 16 << 20):
        count = 200 if size < 1 << 20 else 20
        bucket = torch.empty(count * size // 4, device="cuda")
        gradients = [torch.ones(size // 4, device="cuda") for _ in range(count)]
        views = torch.split(bucket, size // 4)
        seconds = []
        for _ in range(5):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda._sleep(40_000_000)  # type: ignore[no-untyped-call]
            first.record()
            for view, gradient in zip(views, gradients, strict=True):
                torch.mul(gradient, 1.0, out=view)
            last.record()
            last.synchronize()
            seconds.append(first.elapsed_time(last) * 1e-3)
        rows.append({"copied bytes": size, "us each": median(seconds) / count * 1e6})
    return rows


def occupied() -> list[dict[str, Any]]:
    """How many times longer a step takes while some multiprocessors communicate."""
    import torch

    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    rows = []
    for spec, batch in (CASES[4], CASES[6], CASES[7]):
        step = stepping(spec, batch, ())["bare"]
        alone_s = median(device_s(step, 0.0, 0, False) for _ in range(6))
        for copying in (False, True):
            row: dict[str, Any] = {"model": spec.model, "of": multiprocessors, "copying": copying}
            row["alone ms"] = alone_s * 1e3
            for blocks in BLOCKS:
                seconds = median(device_s(step, 2.5 * alone_s, blocks, copying) for _ in range(5))
                row[f"{blocks} blocks"] = seconds / alone_s
            rows.append(row)
    return rows


def device_s(step: Callable[[], None], seconds: float, blocks: int, copying: bool) -> float:
    """Seconds of a step on the GPU, next to a kernel that runs in this many blocks for so long."""
    import torch

    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    if blocks:
        kernel, to, source, aside = occupant()
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
def occupant() -> tuple[Any, Any, Any, Any]:
    """The kernel, what it copies where, and its stream."""
    import torch

    kernel: Any = torch.cuda._compile_kernel(KERNEL, "occupy")
    kernel.set_shared_memory_config(SHARED_BYTES)
    to, source = (torch.ones(1 << 26, device="cuda") for _ in range(2))
    return kernel, to, source, torch.cuda.Stream()  # type: ignore[no-untyped-call]
