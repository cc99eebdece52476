"""Sources of a workload's samples: `--input` specs, or the functions next to a user's model."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from scalescope.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int64", "int32")
GRAMMAR = "write [DTYPE:]SHAPE[:vocab=N], for example 3x224x224, bfloat16:3x32x32 or int64:128:vocab=30000"
LARGEST_VOCAB = 2**31 - 1

SPEC = re.compile(r"(?:(?P<dtype>[a-z]+[0-9]+):)?(?P<shape>[0-9]+(?:x[0-9]+)*)(?::vocab=(?P<vocab>[0-9]+))?", re.ASCII)


@dataclass(frozen=True)
class InputSpec:
    """One positional input: `shape` is that of a single sample; integers are drawn from 0 to vocab - 1."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    vocab: int | None = None

    def __str__(self) -> str:
        dtype = "" if self.dtype == "float32" else f"{self.dtype}:"
        vocab = "" if self.vocab is None else f":vocab={self.vocab}"
        return dtype + "x".join(map(str, self.shape)) + vocab


def parse_input(text: str) -> InputSpec:
    """The InputSpec that `text` (`3x224x224`, `int64:128:vocab=30000`) describes."""
    match = SPEC.fullmatch(text)
    if match is None:
        raise UsageError(f"bad --input {text!r}: {GRAMMAR}")
    dtype = match["dtype"] or "float32"
    shape = tuple(int(size) for size in match["shape"].split("x"))
    vocab = int(match["vocab"]) if match["vocab"] else None
    if dtype not in FLOATS + INTEGERS:
        raise UsageError(f"bad --input {text!r}: {dtype} is not one of {', '.join(FLOATS + INTEGERS)}; {GRAMMAR}")
    if min(shape) < 1:
        raise UsageError(f"bad --input {text!r}: every size must be at least 1; {GRAMMAR}")
    if dtype in FLOATS and vocab is not None:
        raise UsageError(f"bad --input {text!r}: vocab needs integers; write int64:{match['shape']}:vocab={vocab}")
    if dtype in INTEGERS and vocab is None:
        raise UsageError(f"bad --input {text!r}: {dtype} needs the number of values; write {text}:vocab=30000")
    if vocab is not None and not 1 <= vocab <= LARGEST_VOCAB:
        raise UsageError(f"bad --input {text!r}: vocab must be between 1 and {LARGEST_VOCAB}; {GRAMMAR}")
    return InputSpec(shape=shape, dtype=dtype, vocab=vocab)


def draw(spec: InputSpec, n: int, generator: "torch.Generator") -> "torch.Tensor":
    """`n` made-up samples on the CPU: normal floats, or integers from 0 to vocab - 1."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.vocab is not None:
        return torch.randint(spec.vocab, (n, *spec.shape), generator=generator, dtype=dtype)
    return torch.randn((n, *spec.shape), generator=generator).to(dtype)


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


def next_to_model(module: ModuleType, specs: Sequence[InputSpec], seed: int) -> Data | None:
    """Inputs from specs or else from `batch(n)` next to the model, targets from `target(n)`; None without inputs."""
    found = (getattr(module, name, None) for name in ("batch", "target"))
    own_batch, own_target = (each if callable(each) else None for each in found)

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
        from torch import Tensor

        with seeded(seed):
            inputs = own_batch(n)
        values = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        for value in values:
            if not isinstance(value, Tensor):
                raise UsageError(
                    f"batch(n) returns {type(value).__name__}: "
                    "return a tensor, or a tuple of the model's positional inputs"
                )
        return values

    return Data(batch=batch, target=target)


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
