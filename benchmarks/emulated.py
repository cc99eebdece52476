"""A model whose compute is waiting: layers sleep as long as they would compute, so that few cores carry many ranks."""

import time
from typing import Any

import torch
from torch import Tensor, nn


class Slept(torch.autograd.Function):
    """Passes its input on after `seconds`, and gradients back after twice as long."""

    @staticmethod
    def forward(context: Any, values: Tensor, weight: Tensor, seconds: float) -> Tensor:  # type: ignore[override]
        """Sleep, and leave the values as they are."""
        context.seconds, context.shape = seconds, weight.shape
        time.sleep(seconds)
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        """Sleep, and make a gradient of the weight's size."""
        time.sleep(2 * context.seconds)
        return gradient, torch.zeros(context.shape), None


class Layer(nn.Module):
    """A weight of so many bytes, and a time that each sample takes."""

    def __init__(self, size: int, seconds_per_sample: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size // 4))
        self.seconds_per_sample = seconds_per_sample

    def forward(self, values: Tensor) -> Tensor:
        """The values, later."""
        out: Tensor = Slept.apply(values, self.weight, self.seconds_per_sample * len(values))  # type: ignore[no-untyped-call]
        return out


def emulated(layers: int = 12, kilobytes: int = 512, microseconds: float = 300.0) -> nn.Module:
    """`layers` layers of `kilobytes` each that take `microseconds` for every sample."""
    return nn.Sequential(*(Layer(kilobytes << 10, microseconds * 1e-6) for _ in range(layers)))


def batch(n: int) -> Tensor:
    """Samples whose values do not matter."""
    return torch.ones(n, 4, requires_grad=True)
