"""The built-in models: one factory each, with the sizes people publish."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

# ImageNet stems divide the size by 32: below 64 pixels hardly anything would be left of an image.
LARGE_IMAGE = 64


def is_large(image_size: int) -> bool:
    """True if images of this many pixels a side get the ImageNet stem and head instead of the CIFAR ones."""
    return image_size >= LARGE_IMAGE


def classes_for(image_size: int, classes: int | None) -> int:
    """`classes` where they are given, otherwise 1000 (ImageNet) for large images and 10 (CIFAR) for small ones."""
    if classes is not None:
        return classes
    return 1000 if is_large(image_size) else 10


def mlp(features: int = 1024, width: int = 1024, depth: int = 4, classes: int = 10) -> nn.Module:
    """`depth` hidden layers of `width` units between `features` inputs and `classes` scores."""
    layers: list[nn.Module] = [nn.Flatten()]
    size = features
    for _ in range(depth):
        layers += [nn.Linear(size, width), nn.ReLU()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, classes))


def cnn(channels: int = 3, image_size: int = 32, width: int = 32, classes: int | None = None) -> nn.Module:
    """Three convolutions of `width`, 2 `width` and 4 `width` channels, each halving the image."""
    layers: list[nn.Module] = []
    size = channels
    for stage in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(size, stage, 3, padding=1, bias=False), nn.BatchNorm2d(stage), nn.ReLU(), nn.MaxPool2d(2)]
        size = stage
    head = nn.Linear(size, classes_for(image_size, classes))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


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


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the image size up to its stride, followed by BatchNorm."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


def basic(inputs: int, width: int, stride: int) -> nn.Sequential:
    """Two 3x3 convolutions."""
    return nn.Sequential(convolution(inputs, width, 3, stride), nn.ReLU(), convolution(width, width, 3))


def bottleneck(inputs: int, width: int, stride: int, groups: int = 1, group_width: int = 64) -> nn.Sequential:
    """A 1x1, a 3x3 and a 1x1 convolution that ends with 4 `width` channels; the 3x3 one in `groups` (ResNeXt).

    `group_width` is what a group has where `width` is 64: 64 in one group is ResNet, 4 or 8 in 32 groups are ResNeXt.
    """
    inner = width * group_width // 64 * groups
    return nn.Sequential(
        convolution(inputs, inner, 1),
        nn.ReLU(),
        convolution(inner, inner, 3, stride, groups),
        nn.ReLU(),
        convolution(inner, 4 * width, 1),
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
    block: Callable[[int, int, int], nn.Sequential], expansion: int, depths: tuple[int, int, int, int]
) -> Callable[..., nn.Module]:
    """A factory of residual networks of four stages; `expansion` is a block's outputs over its width."""

    def make(channels: int = 3, image_size: int = 32, classes: int | None = None) -> nn.Module:
        if is_large(image_size):
            layers: list[nn.Module] = [convolution(channels, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        else:
            layers = [convolution(channels, 64, 3), nn.ReLU()]
        size = 64
        for stage, (width, depth) in enumerate(zip((64, 128, 256, 512), depths, strict=True)):
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                layers.append(Residual(block(size, width, stride), size, expansion * width, stride))
                size = expansion * width
        head = nn.Linear(size, classes_for(image_size, classes))
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)

    return make


resnet18 = resnet(basic, 1, (2, 2, 2, 2))
resnet50 = resnet(bottleneck, 4, (3, 4, 6, 3))
resnet101 = resnet(bottleneck, 4, (3, 4, 23, 3))
# 32 groups of 4 and of 8 channels
resnext50_32x4d = resnet(functools.partial(bottleneck, groups=32, group_width=4), 4, (3, 4, 6, 3))
resnext101_32x8d = resnet(functools.partial(bottleneck, groups=32, group_width=8), 4, (3, 4, 23, 3))


class Encoder(nn.Module):
    """Embeddings with learned positions, encoder layers, and scores from the mean over the sequence."""

    def __init__(
        self, layers: int, width: int, heads: int, sequence: int, vocab: int, classes: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(0.02 * torch.randn(sequence, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every class for tokens of shape (n, sequence)."""
        embedded = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        scores: Tensor = self.scores(self.encoder(embedded).mean(dim=1))
        return scores


def transformer(
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    sequence: int = 128,
    vocab: int = 30000,
    classes: int = 10,
    dropout: float = 0.1,
) -> nn.Module:
    """An encoder of `layers` layers of `width` features over `sequence` tokens."""
    if width % heads:
        raise ValueError(f"heads={heads} must divide width={width}")
    return Encoder(layers, width, heads, sequence, vocab, classes, dropout)


class CausalAttention(nn.Module):
    """Self-attention in which a token sees itself and the tokens before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Mixed features, of the shape (n, sequence, width) of the input."""
        n, sequence, width = features.shape
        projected = self.queries_keys_values(features).view(n, sequence, 3, self.heads, width // self.heads)
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(n, sequence, width))
        return output


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalised before and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), CausalAttention(width, heads))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Features of the same shape."""
        features = features + self.attention(features)
        output: Tensor = features + self.feed_forward(features)
        return output


class Decoder(nn.Module):
    """Embeddings with learned positions, blocks, and scores that share the embedding's weights."""

    def __init__(self, layers: int, width: int, heads: int, sequence: int, vocab: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(sequence, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (n, sequence, vocab) of the token that follows each of `tokens` (n, sequence)."""
        embedded = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return functional.linear(self.norm(self.blocks(embedded)), self.tokens.weight)


def gpt(layers: int = 4, width: int = 256, heads: int = 4, sequence: int = 128, vocab: int = 8192) -> nn.Module:
    """A decoder of `layers` blocks of `width` features over `sequence` tokens."""
    if width % heads:
        raise ValueError(f"heads={heads} must divide width={width}")
    return Decoder(layers, width, heads, sequence, vocab)
