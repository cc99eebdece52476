"""A profiler trace of FSDP2 on a GPU whose host waits for the GPU after every block of the forward, made by rule."""

import json
from pathlib import Path
from typing import Any

BLOCKS, STEPS = 6, 6
GATHER, SCATTER, FORWARD, BACKWARD, COPY, LAUNCH, OPTIMIZER = 1000.0, 1000.0, 1000.0, 2000.0, 10.0, 100.0, 500.0
HOST, COMPUTING, SENDING = 1, 7, 18


class Made:
    """Writes events down as a host, a stream that computes and one that sends would leave them; microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.cpu, self.compute, self.queue = 1e6, 0.0, 0.0

    def note(self, category: str, name: str, start: float, length: float, lane: int, **args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "tid": lane, "args": args}
        self.events.append(event)

    def send(self, operation: str, around: tuple[str, ...], length: float, after: float = 0.0) -> float:
        """Issues a collective inside these ranges; when it ends."""
        number = len(self.events)
        for name in around:
            self.note("user_annotation", name, self.cpu, 20, HOST)
        self.note("cuda_runtime", "cudaLaunchKernel", self.cpu + 5, 2, HOST, correlation=number)
        start = max(self.cpu + 10, self.queue, after)
        told = {"Collective name": f"_{operation}_base", "In msg nelems": 1 << 20, "dtype": "Float"}
        kernel = {
            "allgather": "ncclDevKernel_AllGather_RING_LL",
            "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32",
        }
        self.note("kernel", kernel[operation], start, length, SENDING, correlation=number, **told)
        self.note("gpu_user_annotation", "nccl:collective", start, length, SENDING)
        self.cpu += 20
        self.queue = start + length
        return self.queue

    def work(self, length: float, after: float = 0.0) -> None:
        """Computes, once the host has launched it."""
        self.cpu += LAUNCH
        start = max(self.cpu, self.compute, after)
        self.note("kernel", "gemm", start, length, COMPUTING)
        self.compute = start + length

    def copies(self, name: str, after: float) -> None:
        start = max(self.compute, after, self.cpu)
        self.note("gpu_user_annotation", name, start, COPY, COMPUTING)
        self.note("kernel", "copy", start, COPY, COMPUTING)
        self.compute = start + COPY

    def wait(self, until: float) -> None:
        """The host waits for its GPU."""
        if until > self.cpu:
            self.note("cuda_runtime", "cudaStreamSynchronize", self.cpu, until - self.cpu, HOST)
            self.cpu = until


def made(path: Path, *, prefetch: bool) -> Path:
    """A file with steps whose parameters are kept from forward to backward."""
    by = Made()
    for number in range(STEPS):
        began = by.cpu
        gathered: dict[int, float] = {}
        for at in range(BLOCKS):
            if at not in gathered:
                around = f"FSDP::pre_forward (blocks.{at})", f"FSDP::all_gather (blocks.{at})"
                gathered[at] = by.send("allgather", around, GATHER)
            by.copies(f"FSDP::all_gather_copy_out (blocks.{at})", gathered[at])
            if prefetch and at + 1 < BLOCKS:
                around = f"FSDP::forward_prefetch for blocks.{at + 1}", f"FSDP::all_gather (blocks.{at + 1})"
                gathered[at + 1] = by.send("allgather", around, GATHER)
            by.work(FORWARD)
            by.wait(by.compute)
        for at in reversed(range(BLOCKS)):
            by.work(BACKWARD)
            by.copies(f"FSDP::post_backward_reduce (blocks.{at})", 0.0)
            by.send("reduce_scatter", (f"FSDP::post_backward_reduce (blocks.{at})",), SCATTER, by.compute)
        by.note("user_annotation", "FSDP::root_post_backward_callback", by.cpu, 10, HOST)
        by.cpu += 20
        by.note("user_annotation", "Optimizer.step#SGD.step", by.cpu, LAUNCH, HOST)
        by.work(OPTIMIZER, by.queue)
        by.note("gpu_user_annotation", "Optimizer.step#SGD.step", by.compute - OPTIMIZER, OPTIMIZER, COMPUTING)
        by.wait(by.compute)
        by.note("user_annotation", f"ProfilerStep#{number}", began, by.cpu - began, HOST)
    told = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}, "traceEvents": by.events}
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 10**18, **told}))
    return path
