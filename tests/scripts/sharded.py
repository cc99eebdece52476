"""Short FSDP2 trainings under the profiler, run by torchrun: OUT, and for each training KIND or KIND.NUMBER."""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, schedule

OUT, PLANTED = sys.argv[1], sys.argv[2:]
STEPS, IGNORED = 13, 3
LATE_S, LATE_STEPS = 0.15, 43  # A late rank is named where it stands out from what steps on busy cores differ by
# Blocks, layers of a block, width, batch, and micro-batches of a step; a balanced one computes for most of its step
KINDS = {
    "balanced": (2, 2, 256, 8192, 1),
    "late": (2, 2, 128, 512, 1),
    "synchronized": (4, 2, 512, 32, 4),
    "synchronized_once": (4, 2, 512, 32, 4),
    "gathered_twice": (4, 2, 512, 64, 1),
    "small_groups": (8, 2, 96, 64, 1),
}


def train(planted: str, rank: int) -> None:
    kind = planted.partition(".")[0]
    blocks, layers, width, batch, micro_batches = KINDS[kind]
    model: Any = nn.Sequential(
        *(
            nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
            for _ in range(blocks)
        )
    )
    apart = [part for part in model.modules() if isinstance(part, nn.Linear)] if kind == "small_groups" else model
    for part in apart:
        fully_shard(part, reshard_after_forward=kind == "gathered_twice")
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch, width)
    steps = LATE_STEPS if kind == "late" else STEPS
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=IGNORED - 1, active=steps - IGNORED, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda done: done.export_chrome_trace(f"{OUT}/{planted}.rank{rank}.json"),
    ) as profiler:
        for _ in range(steps):
            for micro in range(micro_batches):
                if kind == "synchronized_once":
                    model.set_requires_gradient_sync(micro == micro_batches - 1)
                loss = model(inputs).square().mean()
                if kind == "late" and rank == 1:
                    time.sleep(LATE_S)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for planted in PLANTED:
        train(planted, dist.get_rank())
        dist.barrier()
    dist.destroy_process_group()


main()
