"""What the scripts share: seeded data, a small network, and a checkpoint of every rank in the folder they are given."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH, WIDTH, CLASSES = 50, 16, 512, 10
"""Explain captures steps 21 to 40 and would end a script after step 53; these end by themselves."""


def dataset(samples: int = STEPS * BATCH * 2) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, WIDTH, generator=generator)
    return TensorDataset(inputs, torch.randint(CLASSES, (samples,), generator=generator))


def batches(steps: int = STEPS) -> DataLoader:
    """As many batches on each of two ranks."""
    data = dataset(steps * BATCH * 2)
    return DataLoader(data, BATCH, sampler=DistributedSampler(data))


def network() -> nn.Sequential:
    """4 MiB of parameters, so that different bucket sizes make different buckets."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, CLASSES))


def save(model: nn.Module) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.save(model.state_dict(), Path(sys.argv[1]) / f"rank{rank}.pt")
