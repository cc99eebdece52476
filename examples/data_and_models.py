"""What the three training scripts share: their options, CIFAR10 and SVHN (real or made up), and two models."""

import argparse
import pickle
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

CLASSES = 10


def parse_options(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", choices=["cnn", "resnet50"], default="cnn")
    parser.add_argument("--dataset", choices=["cifar10", "svhn"], default="cifar10")
    parser.add_argument("--data", type=Path, help="folder with the real files; without it the data is made up")
    parser.add_argument("--samples", type=int, help="made-up training samples (2048); a quarter as many for testing")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per process and step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=0, help="data loader processes per training process")
    parser.add_argument("--save", type=Path, help="file for the trained parameters")
    options = parser.parse_args()
    if options.data and options.samples:
        parser.error("--samples is for made-up data: remove it or --data")
    return options


def load_datasets(options):
    """The training and the testing set: images as floats of shape (n, 3, 32, 32), labels from 0 to 9."""
    if options.data is None:
        samples = options.samples or 2048
        return made_up(samples, seed=1), made_up(samples // 4, seed=2)
    read = {"cifar10": read_cifar10, "svhn": read_svhn}[options.dataset]
    return as_dataset(*read(options.data, "train")), as_dataset(*read(options.data, "test"))


def made_up(samples, seed):
    """Learnable images: every class has a pattern of its own, under noise."""
    patterns = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    patterns = nn.functional.interpolate(patterns, size=32, mode="bilinear")
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    images = patterns[labels] + torch.randn(samples, 3, 32, 32, generator=generator)
    return TensorDataset(images, labels)


def as_dataset(images, labels):
    """Bytes from 0 to 255 become floats from -1 to 1."""
    images = torch.from_numpy(np.ascontiguousarray(images)).float().div_(127.5).sub_(1)
    return TensorDataset(images, torch.from_numpy(np.asarray(labels, dtype=np.int64)))


def read_cifar10(folder, part):
    """CIFAR10 in its Python or its binary version."""
    name = "data_batch_[1-5]" if part == "train" else "test_batch"
    for place in (folder, folder / "cifar-10-batches-py", folder / "cifar-10-batches-bin"):
        for suffix, read in (("", read_cifar10_python), (".bin", read_cifar10_binary)):
            batches = [read(file) for file in sorted(place.glob(name + suffix))]
            if batches:
                images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
                return images.reshape(-1, 3, 32, 32), labels
    raise SystemExit(f"no CIFAR10 files ({name} or {name}.bin) in {folder}: check --data")


def read_cifar10_binary(file):
    """Records of one label byte and 3072 image bytes."""
    records = np.fromfile(file, dtype=np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:], records[:, 0]


def read_cifar10_python(file):
    with file.open("rb") as stream:
        batch = ArrayUnpickler(stream, encoding="bytes").load()
    return batch[b"data"], np.asarray(batch[b"labels"])


class ArrayUnpickler(pickle.Unpickler):
    """Reads NumPy arrays in plain containers and nothing else: a pickle could otherwise run any code."""

    reconstruct = np.empty(0).__reduce__()[0]
    ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module, name):
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a CIFAR10 file: it may be harmful")
        return self.ALLOWED[module, name]


def read_svhn(folder, part):
    """SVHN's cropped digits; its files number the digit zero as 10."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise SystemExit("SVHN's files need SciPy: pip install scipy") from None
    file = folder / f"{part}_32x32.mat"
    if not file.is_file():
        raise SystemExit(f"no {file}: check --data")
    contents = loadmat(file)
    return contents["X"].transpose(3, 2, 0, 1), contents["y"].flatten() % 10


def build_model(name):
    return {"cnn": small_cnn, "resnet50": resnet50}[name]()


def small_cnn():
    layers, channels = [], 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def resnet50():
    """ResNet-50 for images of 32 x 32: it starts with a 3 x 3 convolution and no pooling."""
    layers, channels = [*convolution(3, 64, 3), nn.ReLU()], 64
    for width, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, first_stride if block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def convolution(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.branch = nn.Sequential(
            *convolution(inputs, width, 1),
            nn.ReLU(),
            *convolution(width, width, 3, stride),
            nn.ReLU(),
            *convolution(width, 4 * width, 1),
        )
        same_shape = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same_shape else nn.Sequential(*convolution(inputs, 4 * width, 1, stride))

    def forward(self, images):
        return torch.relu(self.branch(images) + self.shortcut(images))
