"""`--input` specs: the shape, the kind of number and the vocabulary of one positional input."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalescope.errors import UsageError

if TYPE_CHECKING:
    import torch

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
