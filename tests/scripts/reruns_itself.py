"""Starts its other ranks as Lightning does: by running its own command line again, with another LOCAL_RANK."""

import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist

count = int(sys.argv[1])
children = []
if "STARTED_BY_RANK_0" not in os.environ:
    with socket.create_server(("127.0.0.1", 0)) as held:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1]), "LOCAL_RANK": "0"}
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    for rank in range(1, count):
        mine = {"STARTED_BY_RANK_0": "1", "LOCAL_RANK": str(rank)}
        children.append(subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **mine}))
dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=count)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
sys.exit(max((child.wait() for child in children), default=0))
