"""A small convolutional network with BatchNorm."""

from torch import nn

from scalescope.workloads.images import classes_for


def cnn(channels: int = 3, image_size: int = 32, width: int = 32, classes: int | None = None) -> nn.Module:
    """Three convolutions of `width`, 2 `width` and 4 `width` channels, each halving the image."""
    layers: list[nn.Module] = []
    size = channels
    for stage in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(size, stage, 3, padding=1, bias=False), nn.BatchNorm2d(stage), nn.ReLU(), nn.MaxPool2d(2)]
        size = stage
    head = nn.Linear(size, classes_for(image_size, classes))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
