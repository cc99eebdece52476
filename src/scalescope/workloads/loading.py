"""From a WorkloadSpec to a model with its data, loss and optimizer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from scalescope.errors import UsageError
from scalescope.records.workload import WorkloadSpec
from scalescope.workloads import builtin
from scalescope.workloads.construction import annotations_of, arguments_with_defaults, build
from scalescope.workloads.data import Data, beside_model, labelled, next_tokens, seeded
from scalescope.workloads.images import classes_for
from scalescope.workloads.inputs import parse_input
from scalescope.workloads.model_args import parse_model_args
from scalescope.workloads.references import resolve

if TYPE_CHECKING:
    from torch import Tensor, nn, optim


@dataclass(frozen=True)
class Workload:
    """A model on the CPU and what trains it; `batch` and `target` make the same samples at every call."""

    spec: WorkloadSpec
    model: "nn.Module"
    batch: "Callable[[int], tuple[Tensor, ...]]"
    target: Callable[[int], object]
    loss: "Callable[[object, object], Tensor]"
    optimizer: "Callable[[Iterable[nn.Parameter]], optim.Optimizer]"


def spec_from_options(
    model: str,
    *,
    model_args: Sequence[str] = (),
    inputs: Sequence[str] = (),
    loss: str | None = None,
    optimizer: str = "sgd",
    learning_rate: float | None = None,
) -> WorkloadSpec:
    """The spec that command-line texts describe; `model_args` are `name=value`, typed by the factory's annotations."""
    for text in inputs:
        parse_input(text)
    annotations: dict[str, object] = {}
    if is_builtin(model):
        builtin.find(model)
    if model_args:
        # Only arguments are worth an import of the model here: their types are the factory's.
        annotations = annotations_of(builtin.factory_of(model) if is_builtin(model) else own_factory(model)[0])
    return WorkloadSpec(
        model=model,
        model_args=parse_model_args(model_args, annotations),
        inputs=tuple(inputs),
        loss=loss,
        optimizer=optimizer,
        learning_rate=learning_rate,
    )


def load(spec: WorkloadSpec, *, seed: int = 0) -> Workload:
    """Build the model and what trains it; weights and made-up data follow from `seed`."""
    return load_builtin(spec, seed) if is_builtin(spec.model) else load_own(spec, seed)


def is_builtin(model: str) -> bool:
    """Whether a model's name, by its form, is that of a built-in one."""
    return ":" not in model


def load_builtin(spec: WorkloadSpec, seed: int) -> Workload:
    """A built-in model, fitted to its input and in the precision of it."""
    import torch

    kind = builtin.find(spec.model)
    factory = builtin.factory_of(spec.model)
    given = builtin.fit(spec.model, spec.inputs, spec.model_args)
    with seeded(seed):
        model = build(spec.model, factory, given)
    arguments = arguments_with_defaults(factory, given)
    sample = parse_input(spec.inputs[0]) if spec.inputs else builtin.default_input(spec.model, arguments)
    if kind.loss == "next_token":
        data = next_tokens(sample, seed)
    else:
        data = labelled(sample, classes_for(arguments.get("image_size", 0), arguments["classes"]), seed)
    if sample.vocab is None:
        model.to(getattr(torch, sample.dtype))
    return assemble(spec, model, data, kind.loss)


def load_own(spec: WorkloadSpec, seed: int) -> Workload:
    """A user's model, with the data that --input or the functions beside the model give."""
    factory, module = own_factory(spec.model)
    data = beside_model(module, [parse_input(text) for text in spec.inputs], seed)
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
    from scalescope.workloads.losses import find_loss
    from scalescope.workloads.optimizers import find_optimizer

    return Workload(
        spec=spec,
        model=model,
        batch=data.batch,
        target=data.target,
        loss=find_loss(spec.loss or default_loss),
        optimizer=find_optimizer(spec.optimizer, spec.learning_rate),
    )
