"""Short DDP trainings under the profiler, run by torchrun: OUT, and for each training what is wrong with it."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

OUT, PLANTED = sys.argv[1], sys.argv[2:]
STEPS, BATCH = 44, 16


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def __len__(self) -> int:
        return BATCH * (STEPS + 10)

    def __getitem__(self, at: int) -> torch.Tensor:
        time.sleep(self._pause_s)
        return torch.full((512,), float(at % 7))


def train(planted: str, rank: int) -> None:
    layers = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=2, warmup=2, active=STEPS - 4, repeat=1),
        record_shapes=planted != "slow loader",
        on_trace_ready=lambda done: done.export_chrome_trace(f"{OUT}/{planted}.rank{rank}.json"),
    ) as profiler:
        data = DataLoader(Numbers(0.003 if planted == "slow loader" else 0.0), batch_size=BATCH)
        for batch, _ in zip(data, range(STEPS), strict=False):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            if planted == "straggler" and rank == 1:
                time.sleep(0.1)
            loss.backward()
            optimizer.step()
            profiler.step()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for planted in PLANTED:
        train(planted, dist.get_rank())
        dist.barrier()
    dist.destroy_process_group()


main()
