"""Hooks on the modules and loaders of a script: calls, evaluation and training, TorchScript, fetched batches.

Scripts fetch all batches of an accumulation before the first forward, or one more than they need; others skip some, or
evaluate in between. Batches since the beginning of the pass count, unless there are more than usual.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from .recorder import now
from .steps import StepClock


def watch_calls(module: Any, seen: Callable[[Any, Any], None]) -> Callable[[], None]:
    """Call `seen` with every module that is called while gradients are on, and its arguments; returns how to stop.

    `module` is torch.nn.modules.module. A hook on every module costs too much to keep.
    """
    hooks, torch = module._global_forward_pre_hooks, module.torch
    has_hook = getattr(module, "_has_any_global_hook", None)

    def on_any_call(model: Any, arguments: Any) -> None:
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            seen(model, arguments)

    never_compile(on_any_call)

    def has_any_other_hook() -> Any:
        """A compiled model warns of hooks on every module before it calls them; ours is gone after that."""
        ours = hooks.pop(handle.id, None)
        try:
            return has_hook and has_hook()
        finally:
            if ours:
                hooks[handle.id] = ours

    def stop() -> None:
        handle.remove()
        if has_hook and module._has_any_global_hook is has_any_other_hook:
            module._has_any_global_hook = has_hook

    handle = module.register_module_forward_pre_hook(on_any_call)
    if has_hook:
        module._has_any_global_hook = has_any_other_hook
    return stop


def never_compile(function: Any) -> None:
    """Keep torch.compile from compiling this function, and what it calls, where it is not traced but just called."""
    with contextlib.suppress(Exception):  # an older torch has no such thing, and counts a frame more
        import torch

        frames: Any = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


def watch_modes(module: Any, evaluates: Callable[[Any], None], trains: Callable[[Any], None]) -> Callable[[bool], None]:
    """Call `evaluates` after every `eval()` and, if that is switched on, `trains` after `train()`; returns the switch.

    Some scripts call `train()` in every step, and it calls itself for every layer: so it is not seen all the time.
    """
    kind = module.Module
    evaluate, train = kind.eval, kind.train

    @functools.wraps(evaluate)
    def evaluating(model: Any) -> Any:
        result = evaluate(model)
        evaluates(model)
        return result

    @functools.wraps(train)
    def training(model: Any, mode: bool = True) -> Any:
        result = train(model, mode)
        if mode:
            trains(model)
        return result

    def see_train(wanted: bool) -> None:
        if kind.train is (train if wanted else training):
            kind.train = training if wanted else train

    kind.eval = evaluating
    return see_train


def watch_scripting(module: Any, make_way: Callable[[], None]) -> None:
    """Call `make_way` before a module is compiled as TorchScript; `module` is torch.jit._recursive."""
    original = module.create_script_module

    @functools.wraps(original)
    def create(*arguments: Any, **options: Any) -> Any:
        make_way()
        return original(*arguments, **options)

    module.create_script_module = create


def wrapped_in(model: Any) -> list[Any]:
    """The model, and what it wraps: DistributedDataParallel's module, torch.compile's original."""
    found = []
    while model is not None:
        found.append(model)
        parts, is_wrapper = model._modules, type(model).__name__.endswith("Parallel")
        model = parts.get("_orig_mod", parts.get("module") if is_wrapper else None)
    return found


class Fetch(NamedTuple):
    """One batch."""

    at: int
    wait: int
    samples: int


class Fetches:
    """Batches fetched since the pass began, and what is known of the steps before."""

    def __init__(self) -> None:
        self.pending: list[Fetch] = []
        self.too_many = False  # Whether nobody can tell which of them the next step is made of
        self._usual = 0  # in one step
        self._trained_on: set[int] = set()  # datasets

    def in_step(self, iterator: Any, count: int) -> None:
        """A step that goes on fetched from this iterator, and `count` batches so far."""
        self._usual = max(self._usual, count)
        self._trained_on.add(_dataset(iterator))

    def is_for_evaluation(self, iterator: Any) -> bool:
        """True when an iterator that is used while the model is not in training is none of the training's."""
        return bool(self._trained_on) and _dataset(iterator) not in self._trained_on

    def add(self, fetch: Fetch) -> None:
        """Take in a batch that may be the next step's."""
        self.pending.append(fetch)
        if len(self.pending) > self._usual + 1:
            self.too_many = True
            del self.pending[:-1]

    def clear(self) -> None:
        """Forget them: they have been used, or were for something else."""
        self.pending.clear()
        self.too_many = False


def _dataset(iterator: Any) -> int:
    return id(getattr(iterator, "_dataset", None))


def watch_fetches(
    module: Any, clock: StepClock, pass_begins: Callable[[], None], fetched: Callable[[Any, Any, int, int], None]
) -> None:
    """See passes over loaders and, while the clock looks closely, what they give; `module` is torch's of loaders."""
    loader, iterator = module.DataLoader, module._BaseDataLoaderIter
    make_iterator, fetch = loader.__iter__, iterator.__next__

    @functools.wraps(make_iterator)
    def begin_pass(self_: Any) -> Any:
        pass_begins()
        return make_iterator(self_)

    @functools.wraps(fetch)
    def timed_fetch(self_: Any) -> Any:
        if not clock.looks_closely:
            return fetch(self_)
        started = now()
        batch = fetch(self_)
        fetched(self_, batch, started, now())
        return batch

    loader.__iter__, iterator.__next__ = begin_pass, timed_fetch
