"""A small GPT on the CPU's gloo ranks, with DDP or sharded block by block by FSDP2; started by torchrun."""

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpt_training import CONTEXT, VOCABULARY, Gpt


def main() -> None:
    """Train on made-up tokens."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--engine", choices=("ddp", "fsdp2"), default="ddp")
    asked.add_argument("--steps", type=int, default=60)
    asked.add_argument("--layers", type=int, default=4)
    asked.add_argument("--width", type=int, default=96)
    asked.add_argument("--batch", type=int, default=1)
    asked.add_argument("--length", type=int, default=32)
    told = asked.parse_args()
    assert told.length <= CONTEXT
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: Any = Gpt(told.layers, told.width, 6)
    if told.engine == "ddp":
        model = DistributedDataParallel(model)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(told.steps):
        tokens = torch.randint(VOCABULARY, (told.batch, told.length + 1))
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
