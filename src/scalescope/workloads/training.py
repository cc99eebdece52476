"""Losses and optimizers by name or by reference, and how outputs that are not one tensor are read."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from scalescope.errors import UsageError
from scalescope.text import did_you_mean
from scalescope.workloads.references import resolve

Loss = Callable[[object, object], Tensor]


def main_tensor(output: object) -> Tensor:
    """The tensor that a loss compares: the output, its logits, or the first tensor in it."""
    logits = part(output, "logits")
    if isinstance(logits, Tensor):
        return logits
    for tensor in tensors_in(output):
        return tensor
    raise UsageError(f"the model returns {type(output).__name__} without tensors: give --loss file.py:function for it")


def part(output: object, name: str) -> object:
    """`output.name` or `output["name"]`, None where there is neither."""
    if isinstance(output, Mapping):
        return output.get(name)
    return getattr(output, name, None)


def tensors_in(output: object) -> Iterator[Tensor]:
    """Every floating-point tensor in nested tuples, lists, mappings and plain objects."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors_in(value)
    elif hasattr(output, "__dict__"):
        # Objects below an object are left alone: they may lead back to it.
        yield from tensors_in([value for value in vars(output).values() if isinstance(value, Tensor)])


def mean_square(output: object, target: object) -> Tensor:
    """The loss or the logits that the output carries, otherwise the mean square of all its tensors."""
    own_loss = part(output, "loss")
    if isinstance(own_loss, Tensor):
        return own_loss.mean()
    logits = part(output, "logits")
    if isinstance(logits, Tensor):
        return logits.square().mean()
    # Every tensor counts: an output that is left out leaves parameters without gradients, which stalls DDP.
    main_tensor(output)  # there is at least one
    return torch.stack([tensor.square().mean() for tensor in tensors_in(output)]).sum()


def against(function: Callable[[Tensor, Tensor], Tensor], made_up: Callable[[Tensor], Tensor]) -> Loss:
    """A loss that compares the output with its target; without a target, with one made up for the output."""

    def loss(output: object, target: object) -> Tensor:
        scores = main_tensor(output)
        if target is None:
            target = made_up(scores)
        if not isinstance(target, Tensor):
            raise UsageError(
                f"target(n) returns {type(target).__name__}: return a tensor, or give --loss file.py:function for it"
            )
        return function(scores, target)

    return loss


def classes_along(dimension: int) -> Callable[[Tensor], Tensor]:
    """Made-up classes for scores that have one for each class along this dimension."""

    def numbers(scores: Tensor) -> Tensor:
        shape = scores.select(dimension, 0).shape
        return torch.arange(shape.numel(), device=scores.device).remainder(scores.shape[dimension]).view(shape)

    return numbers


def next_token(scores: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of scores (n, ..., vocab) with tokens (n, ...)."""
    return functional.cross_entropy(scores.flatten(end_dim=-2), tokens.flatten())


LOSSES: dict[str, Loss] = {
    "mean_square": mean_square,
    "mse": against(functional.mse_loss, torch.zeros_like),
    "l1": against(functional.l1_loss, torch.zeros_like),
    "smooth_l1": against(functional.smooth_l1_loss, torch.zeros_like),
    "bce": against(functional.binary_cross_entropy, torch.zeros_like),
    "bce_with_logits": against(functional.binary_cross_entropy_with_logits, torch.zeros_like),
    "cross_entropy": against(functional.cross_entropy, classes_along(1)),
    "nll": against(functional.nll_loss, classes_along(1)),
    "next_token": against(next_token, classes_along(-1)),
}


def own_function(what: str, name: str, known: Collection[str], called_with: str) -> Callable[..., object]:
    """The user's loss or optimizer that `module:function` or `file.py:function` names."""
    if ":" not in name:
        raise UsageError(
            f"no {what} {name!r}{did_you_mean(name, known)}: "
            f"use one of {', '.join(known)}, or your own as package.module:function or path/file.py:function"
        )
    function, _ = resolve(name)
    if not callable(function):
        raise UsageError(f"{name} is not a function: --{what} needs one that is called with {called_with}")
    return function


def find_loss(name: str) -> Loss:
    """The loss of this name, or the user's `module:function` or `file.py:function`."""
    if name in LOSSES:
        return LOSSES[name]
    function = own_function("loss", name, LOSSES, "(output, target)")

    def loss(output: object, target: object) -> Tensor:
        value = function(output, target)
        if not isinstance(value, Tensor):
            raise UsageError(f"{name} returns {type(value).__name__}: a loss must return a tensor with one number")
        return value

    return loss


MakeOptimizer = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

OPTIMIZERS: dict[str, tuple[Callable[..., optim.Optimizer], dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "adam": (optim.Adam, {"lr": 0.001}),
    "adamw": (optim.AdamW, {"lr": 0.001}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01}),
    "adagrad": (optim.Adagrad, {"lr": 0.01}),
}


def find_optimizer(name: str, learning_rate: float | None) -> MakeOptimizer:
    """Find the optimizer of this name, or the user's `module:function` that is called with the parameters."""
    if learning_rate is not None and learning_rate <= 0:
        raise UsageError(f"the learning rate must be above 0, not {learning_rate:g}: for example 0.01")
    if name in OPTIMIZERS:
        make_named, defaults = OPTIMIZERS[name]
        options = defaults if learning_rate is None else {**defaults, "lr": learning_rate}
        return lambda parameters: make_named(parameters, **options)
    function = own_function("optimizer", name, OPTIMIZERS, "the parameters")
    if learning_rate is not None:
        raise UsageError(f"{name} sets its own learning rate: remove the learning rate, or use a named optimizer")

    def make(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        optimizer = function(parameters)
        if not isinstance(optimizer, optim.Optimizer):
            raise UsageError(f"{name} returns {type(optimizer).__name__}: it must return a torch.optim.Optimizer")
        return optimizer

    return make
