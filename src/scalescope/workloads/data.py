"""Where the samples of a workload come from: made up from specs, or the functions beside a user's model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from scalescope.errors import UsageError
from scalescope.workloads.inputs import InputSpec, draw

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Data:
    """Functions of the number of samples: the model's positional inputs, and the target (None: there is none)."""

    batch: "Callable[[int], tuple[Tensor, ...]]"
    target: Callable[[int], object]


def labelled(spec: InputSpec, classes: int, seed: int) -> Data:
    """Made-up samples, each of one of `classes` classes."""
    label = InputSpec(shape=(), dtype="int64", vocab=classes)
    return Data(batch=lambda n: made_up([spec], seed, n), target=lambda n: made_up([label], seed, n)[0])


def next_tokens(spec: InputSpec, seed: int) -> Data:
    """Made-up sequences; the target of a token is the one that follows it."""
    longer = InputSpec(shape=(spec.shape[0] + 1,), dtype=spec.dtype, vocab=spec.vocab)
    return Data(
        batch=lambda n: (made_up([longer], seed, n)[0][:, :-1],),
        target=lambda n: made_up([longer], seed, n)[0][:, 1:].long(),
    )


def beside_model(module: ModuleType, specs: Sequence[InputSpec], seed: int) -> Data | None:
    """Inputs from specs or else from `batch(n)` beside the model, targets from `target(n)`; None without inputs."""
    own_batch, own_target = function_in(module, "batch"), function_in(module, "target")

    def target(n: int) -> object:
        if own_target is None:
            return None
        with seeded(seed):
            return own_target(n)

    if specs:
        return Data(batch=lambda n: made_up(specs, seed, n), target=target)
    if own_batch is None:
        return None

    def batch(n: int) -> "tuple[Tensor, ...]":
        with seeded(seed):
            return positional(own_batch(n))

    return Data(batch=batch, target=target)


def function_in(module: ModuleType, name: str) -> Callable[[int], object] | None:
    """The function `name` of a module, None where it has none."""
    found = getattr(module, name, None)
    return found if callable(found) else None


def positional(inputs: object) -> "tuple[Tensor, ...]":
    """What a user's `batch(n)` returned, as a tuple of positional inputs."""
    from torch import Tensor

    values = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    for value in values:
        if not isinstance(value, Tensor):
            raise UsageError(
                f"batch(n) returns {type(value).__name__}: return a tensor, or a tuple of the model's positional inputs"
            )
    return values


def made_up(specs: Sequence[InputSpec], seed: int, n: int) -> "tuple[Tensor, ...]":
    """`n` samples of every input, the same for the same seed."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return tuple(draw(spec, n, generator) for spec in specs)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's CPU random numbers from `seed`, and afterwards as they were."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
