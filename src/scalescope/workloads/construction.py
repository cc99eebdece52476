"""Calling a model's factory with the user's arguments, and saying what is wrong with them."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from scalescope.errors import UsageError
from scalescope.records.workload import Scalar
from scalescope.workloads.wording import did_you_mean, one_line

if TYPE_CHECKING:
    from torch import nn

EMPTY = inspect.Parameter.empty
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def signature_of(factory: Callable[..., object]) -> inspect.Signature:
    """A factory's parameters, with annotations evaluated where that is possible."""
    try:
        return inspect.signature(factory, eval_str=True)
    except Exception:
        # Evaluating annotations runs the user's expressions, which may raise anything.
        return inspect.signature(factory)


def annotations_of(factory: Callable[..., object]) -> dict[str, object]:
    """The annotation of every annotated parameter of a factory."""
    parameters = signature_of(factory).parameters.values()
    return {parameter.name: parameter.annotation for parameter in parameters if parameter.annotation is not EMPTY}


def check_arguments(name: str, factory: Callable[..., object], arguments: Mapping[str, Scalar]) -> None:
    """Raise UsageError for an argument that the factory does not know, and for one that it needs and did not get."""
    parameters = signature_of(factory).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind not in VARIADIC]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    known = [parameter.name for parameter in named]
    for argument in arguments:
        if argument not in known and not takes_any:
            listed = f"it has {', '.join(known)}" if known else "it has none; remove it"
            raise UsageError(f"{name} has no argument {argument!r}{did_you_mean(argument, known)}: {listed}")
    missing = [item.name for item in named if item.default is EMPTY and item.name not in arguments]
    if missing:
        options = " ".join(f"--model-arg {argument}=VALUE" for argument in missing)
        raise UsageError(f"{name} needs {' and '.join(missing)}: add {options}")


def build(name: str, factory: Callable[..., object], arguments: Mapping[str, Scalar]) -> "nn.Module":
    """The model that a factory makes of these arguments."""
    from torch import nn
    from torch.nn.parameter import UninitializedParameter

    check_arguments(name, factory, arguments)
    try:
        model = factory(**arguments)
    except Exception as error:
        listed = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise UsageError(
            f"{name}({listed}) fails: {type(error).__name__}: {one_line(error)}; change --model-arg or the factory"
        ) from error
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"{name} returns {type(model).__name__}, not a torch.nn.Module: name a Module class or a function for one"
        )
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        raise UsageError(f"{name} has lazy layers without a size: call the model once in a factory before returning it")
    return model


def arguments_with_defaults(factory: Callable[..., object], arguments: Mapping[str, Scalar]) -> dict[str, Any]:
    """Every argument that a factory receives when it is called with `arguments`."""
    bound = inspect.signature(factory).bind(**arguments)
    bound.apply_defaults()
    return bound.arguments
