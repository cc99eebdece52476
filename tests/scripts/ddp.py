"""A small DDP training that can be told to go wrong at step 10 on its last rank."""

import argparse
import os
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--pause", type=float, default=0.03)
parser.add_argument("--fault", default="")
parser.add_argument("--pid-file", default="")
options = parser.parse_args()

dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
if options.pid_file:
    with open(f"{options.pid_file}.{rank}", "w") as file:
        file.write(str(os.getpid()))
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print(f"rank {rank} of {last + 1} on {os.uname().nodename}", flush=True)
for step in range(options.steps):
    if step == 10 and rank == last:
        if options.fault == "raise":
            raise ValueError("planted")
        if options.fault == "sleep":
            print("about to sleep", flush=True)
            time.sleep(1000)
        if options.fault == "other collective":
            print("about to differ", flush=True)
            for _ in range(3):
                dist.broadcast(torch.zeros(3), 0)
    optimizer.zero_grad()
    model(torch.randn(options.batch_size, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(options.pause)
dist.barrier()
dist.destroy_process_group()
