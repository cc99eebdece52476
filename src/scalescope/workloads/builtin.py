"""The models that come with scalescope: one visible table, built when asked for."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from scalescope.errors import UsageError
from scalescope.records.profile import Scalar
from scalescope.text import did_you_mean
from scalescope.workloads.inputs import FLOATS, InputSpec, parse_input

Data = Literal["features", "images", "tokens"]

# The input that follows from a model's arguments; `arguments_from` is the other direction.
INPUTS: dict[Data, str] = {
    "features": "{features}",
    "images": "{channels}x{image_size}x{image_size}",
    "tokens": "int64:{sequence}:vocab={vocab}",
}
EXAMPLES: dict[Data, str] = {"features": "1024", "images": "3x224x224", "tokens": "int64:128:vocab=30000"}
# Annotations of all arguments, so that no model, and no torch, has to be imported to read what is given.
ARGUMENTS = {
    "channels": "int",
    "classes": "int | None",
    "depth": "int",
    "dropout": "float",
    "features": "int",
    "heads": "int",
    "image_size": "int",
    "layers": "int",
    "sequence": "int",
    "vocab": "int",
    "width": "int",
}


@dataclass(frozen=True)
class Builtin:
    """A built-in model; models.py holds its factory, under the same name."""

    data: Data
    description: str
    loss: str = "cross_entropy"


BUILTINS: dict[str, Builtin] = {
    "mlp": Builtin("features", "fully connected layers: few large gradients, little compute"),
    "cnn": Builtin("images", "three convolutions with BatchNorm: small, for first tries"),
    "resnet18": Builtin("images", "residual network of 18 layers"),
    "resnet50": Builtin("images", "residual network of 50 layers, the usual benchmark"),
    "resnet101": Builtin("images", "residual network of 101 layers: many small gradients"),
    "resnext50_32x4d": Builtin("images", "ResNeXt of 50 layers: resnet50's gradients, more time on the device"),
    "resnext101_32x8d": Builtin("images", "ResNeXt of 101 layers: large gradients and much compute"),
    "vgg19": Builtin("images", "plain convolutions and, from 64 pixels up, one very large linear layer"),
    "transformer": Builtin("tokens", "transformer encoder that classifies a sequence"),
    "gpt": Builtin("tokens", "decoder-only language model that predicts the next token", loss="next_token"),
}


def find(name: str) -> Builtin:
    """The built-in model of this name."""
    if name in BUILTINS:
        return BUILTINS[name]
    if name.endswith(".py"):
        raise UsageError(
            f"{name} names no factory: write {name}:NAME, with the name of a class or function in it, "
            f"or, to run it as a script, -- python {name}"
        )
    raise UsageError(
        f"no built-in model {name!r}{did_you_mean(name, BUILTINS)}: "
        f"use one of {', '.join(BUILTINS)}, or your own as package.module:factory or path/file.py:factory"
    )


def factory_of(name: str) -> Callable[..., object]:
    """The function that makes a built-in model."""
    find(name)
    from scalescope.workloads import models  # imports torch

    factory: Callable[..., object] = getattr(models, name)
    return factory


def arguments_from(name: str, spec: InputSpec) -> dict[str, int]:
    """The constructor arguments that fit a built-in model to an input."""
    data = find(name).data
    if data == "features" and spec.dtype in FLOATS:
        return {"features": math.prod(spec.shape)}
    if data == "images" and spec.dtype in FLOATS and len(spec.shape) == 3:
        channels, height, width = spec.shape
        return {"channels": channels, "image_size": min(height, width)}
    if data == "tokens" and spec.vocab is not None and len(spec.shape) == 1:
        return {"sequence": spec.shape[0], "vocab": spec.vocab}
    raise UsageError(f"{name} takes {data}, not --input {spec}: for example --input {EXAMPLES[data]}")


def fit(name: str, inputs: tuple[str, ...], arguments: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """`arguments` together with those that follow from --input; the two must agree."""
    if len(inputs) > 1:
        raise UsageError(f"{name} takes one input, not {len(inputs)}: keep one --input")
    fitted = dict(arguments)
    for text in inputs:
        for argument, value in arguments_from(name, parse_input(text)).items():
            if fitted.setdefault(argument, value) != value:
                raise UsageError(
                    f"--input {text} and --model-arg {argument}={fitted[argument]} disagree: remove one of them"
                )
    return fitted


def default_input(name: str, arguments: Mapping[str, object]) -> InputSpec:
    """The input that a built-in model made with all of `arguments` (defaults included) takes."""
    return parse_input(INPUTS[find(name).data].format(**arguments))
