"""A small FSDP2 training that is slow on request: each option plants one problem that `scalescope explain` should find.

scalescope explain --np 2 -- python examples/slow_sharded.py --accumulate 4
scalescope explain --np 2 -- python examples/slow_sharded.py --late-ms 20
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def arguments() -> argparse.Namespace:
    """What is to go wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64, help="of one micro-batch")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2, help="of a block")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step, each of which synchronizes")
    parser.add_argument("--synchronize-last", action="store_true", help="only the last micro-batch synchronizes")
    parser.add_argument("--reshard", action="store_true", help="free parameters after forward and gather them again")
    parser.add_argument("--each-layer", action="store_true", help="shard every layer for itself, not every block")
    parser.add_argument("--late-ms", type=float, default=0, help="the last rank is so late in every step")
    return parser.parse_args()


def main() -> None:
    """Train."""
    asked = arguments()
    dist.init_process_group("gloo")
    last = dist.get_rank() == dist.get_world_size() - 1
    torch.manual_seed(0)

    def block() -> torch.nn.Module:
        layers = [(torch.nn.Linear(asked.width, asked.width), torch.nn.ReLU()) for _ in range(asked.layers)]
        return torch.nn.Sequential(*(part for layer in layers for part in layer))

    model = torch.nn.Sequential(*(block() for _ in range(asked.blocks)))
    for part in model.modules() if asked.each_layer else model:
        if not asked.each_layer or isinstance(part, torch.nn.Linear):
            fully_shard(part, reshard_after_forward=asked.reshard)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(asked.batch, asked.width)
    for step in range(asked.steps):
        for micro in range(asked.accumulate):
            if asked.synchronize_last:
                model.set_requires_gradient_sync(micro == asked.accumulate - 1)
            loss = model(batch).square().mean()
            if last and asked.late_ms and not micro:
                time.sleep(asked.late_ms / 1000)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 and last:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
