"""A small training that is slow on request: every option plants one problem that `scalescope explain` should find.

scalescope explain --np 2 -- python examples/slow_training.py --loader-ms 20
scalescope explain --np 2 --engine horovod -- python examples/slow_training.py --engine horovod --late-ms 20
"""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset


def pause(milliseconds: float) -> None:
    """Sleep; no time at all is no sleep, which would give the core away."""
    if milliseconds:
        time.sleep(milliseconds / 1000)


class Samples(Dataset):
    """Random vectors, each of which takes its time to load."""

    def __init__(self, count: int, width: int, milliseconds: float) -> None:
        self._data, self._milliseconds = torch.randn(count, width), milliseconds

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> torch.Tensor:
        pause(self._milliseconds)
        return self._data[index]


def arguments() -> argparse.Namespace:
    """What is to go wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("ddp", "horovod"), default="ddp")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60, help="steps of an epoch")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--loader-ms", type=float, default=0, help="a batch takes so long to load")
    parser.add_argument("--workers", type=int, default=0, help="of the data loader")
    parser.add_argument("--late-ms", type=float, default=0, help="the last rank is so late in every step")
    parser.add_argument("--first-epoch-ms", type=float, default=0, help="steps of the first epoch take so much longer")
    parser.add_argument("--bucket-mb", type=float, default=None, help="DDP's bucket_cap_mb")
    parser.add_argument("--norm", action="store_true", help="layers with BatchNorm, whose buffers DDP broadcasts")
    parser.add_argument("--save", help="file for the trained parameters")
    return parser.parse_args()


def network(layers: int, width: int, norm: bool) -> torch.nn.Module:
    """Equal linear layers."""
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), *([torch.nn.BatchNorm1d(width)] if norm else []), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts)


def main() -> None:
    """Train."""
    asked = arguments()
    model = network(asked.layers, asked.width, asked.norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if asked.engine == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank, world = hvd.rank(), hvd.size()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    else:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        options = {} if asked.bucket_mb is None else {"bucket_cap_mb": asked.bucket_mb}
        model = torch.nn.parallel.DistributedDataParallel(model, **options)
    data = Samples(asked.batch * asked.steps, asked.width, asked.loader_ms / asked.batch)
    loader = DataLoader(data, batch_size=asked.batch, num_workers=asked.workers)
    for epoch in range(asked.epochs):
        began = time.perf_counter()
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            if rank == world - 1:
                pause(asked.late_ms)
            if epoch == 0:
                pause(asked.first_epoch_ms)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"Epoch {epoch + 1}: {time.perf_counter() - began:.3f} s, loss {loss.item():.4f}", flush=True)
    if asked.save and rank == 0:
        torch.save(model.state_dict(), asked.save)


if __name__ == "__main__":
    main()
