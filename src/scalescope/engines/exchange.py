"""What an engine exchanges in a step, as plain data: the bridge from knobs to the simulator."""

from collections.abc import Sequence

import msgspec

from scalescope.records.profile import Gradient

MIB = 1024 * 1024


class Message(msgspec.Struct, frozen=True):
    """Gradients that travel together."""

    bytes: int
    last: int
    """Index of the gradient that is ready last, in the profile's order."""
    tensors: int


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """How one step's gradients travel: fixed messages, or messages made up of whatever is ready at each cycle."""

    backend: str
    """As clusters name it: gloo, nccl, horovod-gloo, horovod-mpi, horovod-nccl."""
    messages: tuple[Message, ...]
    """In the order in which they are sent; each waits for the one before."""
    broadcasts: tuple[int, ...] = ()
    """Bytes of what rank 0 sends to all before the forward."""
    copies: bool = False
    """Whether gradients are copied into messages during backward and back after it."""
    fuse_bytes: int = 0
    """Messages that are ready together travel as one up to this size; 0: each for itself."""
    cycle_s: float = 0.0
    """How often the ranks look for what is ready; 0: messages leave as soon as they are ready."""
    negotiated: bool = False
    """Whether the ranks agree on every message before it leaves."""
    agreements_kept: bool = True
    """Whether an agreement is remembered; if not, every tensor costs a question and an answer each step."""


def one_by_one(gradients: Sequence[Gradient]) -> tuple[Message, ...]:
    """Every gradient as a message of its own."""
    return tuple(Message(gradient.bytes, index, 1) for index, gradient in enumerate(gradients))


def in_buckets(gradients: Sequence[Gradient], first_bytes: float, cap_bytes: float) -> tuple[Message, ...]:
    """Messages that are closed by the gradient that fills them, the first one at `first_bytes`.

    Gradients of different kinds of number never share a message; a gradient is never split.
    """
    messages: list[Message] = []
    open_: dict[int, tuple[int, int]] = {}
    closed_of_kind: set[int] = set()
    last_of_kind: dict[int, int] = {}
    for index, gradient in enumerate(gradients):
        kind = gradient.element_bytes
        size, tensors = open_.pop(kind, (0, 0))
        size, tensors, last_of_kind[kind] = size + gradient.bytes, tensors + 1, index
        if size >= (cap_bytes if kind in closed_of_kind else first_bytes):
            messages.append(Message(size, index, tensors))
            closed_of_kind.add(kind)
        else:
            open_[kind] = size, tensors
    rest = [Message(size, last_of_kind[kind], tensors) for kind, (size, tensors) in open_.items()]
    return (*messages, *sorted(rest, key=lambda message: message.last))
