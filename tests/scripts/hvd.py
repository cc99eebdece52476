"""A small Horovod training that can be told to go wrong at step 10 on its last rank."""

import argparse
import os
import time

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--fault", default="")
parser.add_argument("--pid-file", default="")
options = parser.parse_args()

hvd.init()
if options.pid_file:
    with open(f"{options.pid_file}.{hvd.rank()}", "w") as file:
        file.write(str(os.getpid()))
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
print(f"rank {hvd.rank()} of {hvd.size()} on {os.uname().nodename}", flush=True)
for step in range(options.steps):
    if step == 10 and hvd.rank() == hvd.size() - 1 and options.fault == "sleep":
        print("about to sleep", flush=True)
        time.sleep(1000)
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.03)
