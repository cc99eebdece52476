"""From a WorkloadSpec to a model with its data, loss and optimizer; says what is wrong with a factory's arguments."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from scalescope.errors import UsageError
from scalescope.records.profile import Scalar, WorkloadSpec
from scalescope.text import did_you_mean
from scalescope.workloads import builtin
from scalescope.workloads.inputs import Data, labelled, next_to_model, next_tokens, parse_input, seeded
from scalescope.workloads.references import module_file, one_line, parse_model_args, resolve

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn, optim


EMPTY = inspect.Parameter.empty
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def build(name: str, factory: Callable[..., object], arguments: Mapping[str, Scalar]) -> "nn.Module":
    """The model that a factory makes of these arguments."""
    from torch import nn
    from torch.nn.parameter import UninitializedParameter

    parameters = inspect.signature(factory).parameters.values()
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


@dataclass(frozen=True)
class Workload:
    """A model on the CPU and what trains it; `batch` and `target` make the same samples at every call."""

    spec: WorkloadSpec
    model: "nn.Module"
    batch: "Callable[[int], tuple[Tensor, ...]]"
    target: Callable[[int], object]
    loss: "Callable[[object, object], Tensor]"
    optimizer: "Callable[[Iterable[nn.Parameter]], optim.Optimizer]"

    def precision(self, device_type: str) -> "torch.autocast":
        """The context of forward and loss."""
        import torch

        return torch.autocast(device_type, dtype=torch.bfloat16, enabled=self.spec.dtype == "bf16")

    def parts(self, batch: int) -> list[tuple["tuple[Tensor, ...]", object]]:
        """Inputs and target of every pass of a step with this many samples."""
        passes = self.spec.accumulate
        if batch < passes:
            raise UsageError(f"a batch of {batch} cannot be split into {passes} passes: lower --accumulate")
        sizes = [batch // passes + (index < batch % passes) for index in range(passes)]
        made = {size: (self.batch(size), self.target(size)) for size in set(sizes)}
        return [made[size] for size in sizes]


def spec_from_options(
    model: str,
    *,
    model_args: Sequence[str] | Mapping[str, Scalar] = (),
    inputs: Sequence[str] = (),
    loss: str | None = None,
    optimizer: str = "sgd",
    **how: Any,
) -> WorkloadSpec:
    """The spec that command-line texts describe.

    Args:
        model: A built-in name, `package.module:factory` or `path/file.py:factory`.
        model_args: `name=value` texts, or values.
        inputs: One `[DTYPE:]SHAPE[:vocab=N]` for each positional input.
        loss: A name or a reference; None: that of a built-in model, the mean square for a user's.
        optimizer: A name or a reference.
        **how: Other fields of the spec, as they are.

    Raises:
        UsageError: A text cannot be read.
    """
    for text in inputs:
        parse_input(text)
    for reference in (model, loss or "", optimizer):
        where = reference.rpartition(":")[0]
        if where.endswith(".py"):
            module_file(where)  # before anything is launched
    if is_builtin(model):
        builtin.find(model)
    return WorkloadSpec(
        model=model,
        model_args=dict(model_args) if isinstance(model_args, Mapping) else parse_model_args(model_args),
        inputs=tuple(inputs),
        loss=loss,
        optimizer=optimizer,
        **how,
    )


def load(spec: WorkloadSpec, *, seed: int = 0) -> Workload:
    """Build the model and what trains it; weights and made-up data follow from `seed`."""
    return load_builtin(spec, seed) if is_builtin(spec.model) else load_own(spec, seed)


def is_builtin(model: str) -> bool:
    """True if a model's name has the form of a built-in one."""
    return ":" not in model


def load_builtin(spec: WorkloadSpec, seed: int) -> Workload:
    """A built-in model, fitted to its input and in the precision of it."""
    import torch

    from scalescope.workloads.models import classes_for

    kind = builtin.find(spec.model)
    factory = builtin.factory_of(spec.model)
    given = builtin.fit(spec.model, spec.inputs, spec.model_args)
    with seeded(seed):
        model = build(spec.model, factory, given)
    bound = inspect.signature(factory).bind(**given)
    bound.apply_defaults()
    arguments = bound.arguments
    sample = parse_input(spec.inputs[0]) if spec.inputs else builtin.default_input(spec.model, arguments)
    if kind.loss == "next_token":
        data = next_tokens(sample, seed)
    else:
        data = labelled(sample, classes_for(arguments.get("image_size", 0), arguments["classes"]), seed)
    if sample.vocab is None:
        model.to(getattr(torch, sample.dtype))
    return assemble(spec, model, data, kind.loss)


def load_own(spec: WorkloadSpec, seed: int) -> Workload:
    """A user's model, with the data that --input or the functions next to the model give."""
    factory, module = own_factory(spec.model)
    data = next_to_model(module, [parse_input(text) for text in spec.inputs], seed)
    if data is None:
        where = spec.model.rpartition(":")[0]
        raise UsageError(f"no input known for {spec.model}: add --input 3x224x224, or write batch(n) in {where}")
    with seeded(seed):
        model = build(spec.model, factory, spec.model_args)
    return assemble(spec, model, data, "mean_square")


def own_factory(model: str) -> tuple[Callable[..., object], ModuleType]:
    """A user's class or function that makes a model, and the module it stands in."""
    found, module = resolve(model)
    # A model that is already made is callable too, and would be called with the arguments as its inputs.
    if isinstance(found, type) or (callable(found) and not hasattr(found, "forward")):
        return found, module
    raise UsageError(
        f"{model} is {type(found).__name__}, not a factory: name a Module class or a function that returns a Module"
    )


def assemble(spec: WorkloadSpec, model: "nn.Module", data: Data, default_loss: str) -> Workload:
    """A Workload with the loss and the optimizer that its spec names."""
    from scalescope.workloads.training import find_loss, find_optimizer

    return Workload(
        spec=spec,
        model=model,
        batch=data.batch,
        target=data.target,
        loss=find_loss(spec.loss or default_loss),
        optimizer=find_optimizer(spec.optimizer, spec.learning_rate),
    )
