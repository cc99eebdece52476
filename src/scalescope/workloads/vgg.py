"""VGG-19 (Simonyan and Zisserman, 2014), without BatchNorm."""

from torch import nn

from scalescope.workloads.images import classes_for, is_large

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
SMALLEST_IMAGE = 2 ** len(STAGES)


def vgg19(channels: int = 3, image_size: int = 32, classes: int | None = None) -> nn.Module:
    """VGG-19: three linear layers on top for large images, one for small images."""
    if image_size < SMALLEST_IMAGE:
        raise ValueError(f"images must have at least {SMALLEST_IMAGE} pixels a side, not {image_size}")
    layers: list[nn.Module] = []
    size = channels
    for width, depth in STAGES:
        for _ in range(depth):
            layer = nn.Conv2d(size, width, 3, padding=1)
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            layers += [layer, nn.ReLU()]
            size = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *head(is_large(image_size), classes_for(image_size, classes)))


def head(large: bool, classes: int) -> list[nn.Module]:
    """The layers that turn the last 512 channels into scores."""
    if not large:
        return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return [
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, classes),
    ]
