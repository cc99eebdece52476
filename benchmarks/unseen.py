"""Models that are not built in and that nobody looked at while the simulator was written."""

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
