"""The optimizers that make the steps of all ranks: those that hold parameters whose gradients are exchanged.

A rank may step others on its own, such as a linear probe's on rank 0. Were they counted, ranks would stop and switch
at different steps. Where nothing is wrapped (one process, gradients that a script exchanges itself) all of them count.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from .recorder import guarded, say_once


class Exchanged:
    """The parameters of what engines have wrapped: models, or optimizers."""

    def __init__(self) -> None:
        self.on_first: Callable[[], None] = lambda: None  # Called when the first model or optimizer is wrapped
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self.engine = ""  # That wrapped a model or an optimizer first
        self._parameters: dict[int, weakref.ref[Any]] = {}
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()
        self._ignored: weakref.WeakSet[Any] = weakref.WeakSet()

    def has_wrapped(self, engine: str, parameters: Callable[[], Iterable[Any]]) -> None:
        """An engine was given a model or an optimizer, with these parameters."""
        self.engine = self.engine or engine
        guarded("every optimizer counts", lambda: self.add(parameters()))()

    def add(self, parameters: Iterable[Any]) -> None:
        """From now on these are exchanged, and only what holds some of them counts."""
        is_first = not self._parameters
        self._parameters.update((id(each), weakref.ref(each)) for each in parameters)
        self._counted.clear()
        self._ignored.clear()
        if is_first and self._parameters:
            self.on_first()

    # What is asked

    def holds(self, parameters: Iterable[Any]) -> bool:
        """True when any of these is exchanged, or nothing is."""
        known = self._parameters
        return not known or any(id(each) in known and known[id(each)]() is each for each in parameters)

    def counts(self, optimizer: Any) -> bool:
        """True when the steps of this optimizer count."""
        try:
            if optimizer in self._counted:
                return True
            if optimizer in self._ignored:
                return False
            counts = not self._parameters or self._is_of(optimizer) or not self._is_any_other(optimizer)
            (self._counted if counts else self._ignored).add(optimizer)
            return counts
        except Exception as problem:
            say_once("every optimizer counts", problem)
            return True

    def _is_of(self, optimizer: Any) -> bool:
        """True when it holds exchanged parameters, or one buffer of which they are parts."""
        own = [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]
        if self.holds(own):
            return True
        exchanged = {_storage(each) for each in (reference() for reference in self._parameters.values())} - {0}
        return any(_storage(each) in exchanged for each in own)

    def _is_any_other(self, optimizer: Any) -> bool:
        """True when another optimizer holds exchanged parameters; none does where all hold converted copies."""
        from torch.optim import Optimizer

        others = [each for each in gc.get_objects() if issubclass(type(each), Optimizer) and each is not optimizer]
        return any(self._is_of(each) for each in others)


def _storage(tensor: Any) -> int:
    """Address of its numbers; 0 when there is none."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except Exception:  # no tensor any more, or one without a storage
        return 0
