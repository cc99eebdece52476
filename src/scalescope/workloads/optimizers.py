"""Optimizers by name or by reference."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn, optim

from scalescope.errors import UsageError
from scalescope.workloads.references import resolve
from scalescope.workloads.wording import did_you_mean

MakeOptimizer = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

OPTIMIZERS: dict[str, tuple[Callable[..., optim.Optimizer], dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "adam": (optim.Adam, {"lr": 0.001}),
    "adamw": (optim.AdamW, {"lr": 0.001}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01}),
    "adagrad": (optim.Adagrad, {"lr": 0.01}),
}


def find_optimizer(name: str, learning_rate: float | None) -> MakeOptimizer:
    """What makes the optimizer of this name, or the user's `module:function` called with the parameters."""
    if name in OPTIMIZERS:
        return named_optimizer(name, learning_rate)
    if ":" not in name:
        raise UsageError(
            f"no optimizer {name!r}{did_you_mean(name, OPTIMIZERS)}: "
            f"use one of {', '.join(OPTIMIZERS)}, or your own as package.module:function or path/file.py:function"
        )
    if learning_rate is not None:
        raise UsageError(f"{name} sets its own learning rate: remove the learning rate, or use a named optimizer")
    function, _ = resolve(name)
    if not callable(function):
        raise UsageError(f"{name} is not a function: the optimizer needs one that is called with the parameters")

    def make(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        optimizer = function(parameters)
        if not isinstance(optimizer, optim.Optimizer):
            raise UsageError(f"{name} returns {type(optimizer).__name__}: it must return a torch.optim.Optimizer")
        return optimizer

    return make


def named_optimizer(name: str, learning_rate: float | None) -> MakeOptimizer:
    """What makes a built-in optimizer, with its own learning rate unless one is given."""
    if learning_rate is not None and learning_rate <= 0:
        raise UsageError(f"the learning rate must be above 0, not {learning_rate:g}: for example 0.01")
    make, defaults = OPTIMIZERS[name]
    options = defaults if learning_rate is None else {**defaults, "lr": learning_rate}
    return lambda parameters: make(parameters, **options)
