"""Fully connected layers."""

from torch import nn


def mlp(features: int = 1024, width: int = 1024, depth: int = 4, classes: int = 10) -> nn.Module:
    """`depth` hidden layers of `width` units between `features` inputs and `classes` scores."""
    layers: list[nn.Module] = [nn.Flatten()]
    size = features
    for _ in range(depth):
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, classes))
