"""Residual networks (He et al., 2015), with the stride of a bottleneck in its 3x3 convolution."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from scalescope.workloads.images import classes_for, is_large

STAGE_WIDTHS = (64, 128, 256, 512)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the image size up to its stride, followed by BatchNorm."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


def basic(inputs: int, width: int, stride: int) -> nn.Sequential:
    """Two 3x3 convolutions."""
    return nn.Sequential(convolution(inputs, width, 3, stride), nn.ReLU(), convolution(width, width, 3))


def bottleneck(inputs: int, width: int, stride: int) -> nn.Sequential:
    """A 1x1, a 3x3 and a 1x1 convolution that ends with 4 `width` channels."""
    return nn.Sequential(
        convolution(inputs, width, 1),
        nn.ReLU(),
        convolution(width, width, 3, stride),
        nn.ReLU(),
        convolution(width, 4 * width, 1),
    )


class Residual(nn.Module):
    """A branch added to its own input; a 1x1 convolution adapts the input where the shapes differ."""

    def __init__(self, branch: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        same_shape = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same_shape else convolution(inputs, outputs, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Activations of the block."""
        return functional.relu(self.branch(images) + self.shortcut(images))


def resnet(
    block: Callable[[int, int, int], nn.Sequential],
    expansion: int,
    depths: tuple[int, int, int, int],
    channels: int,
    image_size: int,
    classes: int | None,
) -> nn.Module:
    """A residual network of four stages; `expansion` is a block's outputs over its width."""
    if is_large(image_size):
        layers: list[nn.Module] = [convolution(channels, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    else:
        layers = [convolution(channels, 64, 3), nn.ReLU()]
    size = 64
    for stage, (width, depth) in enumerate(zip(STAGE_WIDTHS, depths, strict=True)):
        for position in range(depth):
            stride = 2 if stage > 0 and position == 0 else 1
            layers.append(Residual(block(size, width, stride), size, expansion * width, stride))
            size = expansion * width
    head = nn.Linear(size, classes_for(image_size, classes))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def resnet18(channels: int = 3, image_size: int = 32, classes: int | None = None) -> nn.Module:
    """ResNet-18."""
    return resnet(basic, 1, (2, 2, 2, 2), channels, image_size, classes)


def resnet50(channels: int = 3, image_size: int = 32, classes: int | None = None) -> nn.Module:
    """ResNet-50."""
    return resnet(bottleneck, 4, (3, 4, 6, 3), channels, image_size, classes)


def resnet101(channels: int = 3, image_size: int = 32, classes: int | None = None) -> nn.Module:
    """ResNet-101."""
    return resnet(bottleneck, 4, (3, 4, 23, 3), channels, image_size, classes)
