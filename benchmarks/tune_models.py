"""Models whose landscapes are measured, beside the built-in and the emulated ones."""

import torch
from torch import Tensor, nn

WIDTH = 96


def small_tensors(layers: int = 100) -> nn.Module:
    """Two small tensors per layer, so that messages cost more than the bytes in them."""
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def batch(n: int) -> Tensor:
    """Samples whose values do not matter."""
    return torch.ones(n, WIDTH)
