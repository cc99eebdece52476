"""Starts its ranks itself, with torch.multiprocessing.spawn."""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank: int, count: int, port: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=count)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as held:
        free = held.getsockname()[1]
    mp.spawn(train, args=(int(sys.argv[1]), free), nprocs=int(sys.argv[1]))
