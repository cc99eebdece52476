"""A short DDP training under the profiler, run by torchrun: OUT, shapes or plain, and what is wrong with it."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

OUT, SHAPES, PLANTED = sys.argv[1], sys.argv[2] == "shapes", sys.argv[3]
STEPS, BATCH = 20, 16


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return BATCH * (STEPS + 10)

    def __getitem__(self, at: int) -> torch.Tensor:
        if PLANTED == "slow loader":
            time.sleep(0.003)
        return torch.full((512,), float(at % 7))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=2, warmup=2, active=STEPS - 4, repeat=1),
        record_shapes=SHAPES,
        on_trace_ready=lambda done: done.export_chrome_trace(f"{OUT}/rank{rank}.json"),
    ) as profiler:
        for batch, _ in zip(DataLoader(Numbers(), batch_size=BATCH), range(STEPS), strict=False):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            if PLANTED == "straggler" and rank == 1:
                time.sleep(0.06)
            loss.backward()
            optimizer.step()
            profiler.step()
    dist.destroy_process_group()


main()
