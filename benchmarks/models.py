"""Models that sections train: three that are not built in, many small tensors, and one whose compute is waiting."""

import time
from typing import Any

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """Two LSTM layers over 32 steps of 64 values: many small kernels, a few large gradients."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.LSTM(64, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The scores after the last step."""
        return self.head(self.layers(x)[0][:, -1])


class Separable(nn.Module):
    """Depthwise and pointwise convolutions with batch norms: many small gradients and buffers."""

    def __init__(self, width: int = 32, depth: int = 6) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
        for _ in range(depth):
            layers += [
                nn.Conv2d(width, width, 3, padding=1, groups=width),
                nn.Conv2d(width, width, 1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the mean over the picture."""
        return self.head(self.body(x).mean(dim=(2, 3)))


class Halving(nn.Module):
    """Down and up again with a bridge, as networks for segmentation do: large activations at both ends."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.near = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.deep = nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1)
        self.out = nn.ConvTranspose2d(4 * width, 3, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """A picture of the input's size."""
        half = torch.relu(self.down(torch.relu(self.near(x))))
        deep = torch.relu(self.up(torch.relu(self.deep(half))))
        return self.out(torch.cat([half, deep], dim=1))


WIDTH = 96


def small_tensors(layers: int = 100) -> nn.Module:
    """Two small tensors per layer, so that messages cost more than the bytes in them."""
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


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
    """Samples for `emulated`, whose values do not matter; the other models are given --input."""
    return torch.ones(n, 4, requires_grad=True)
