"""The step clock: hooks that say when a step begins and ends, how many samples it took, and what was no step.

A step ends with an optimizer's step and begins where the one before it ended. After an evaluation, a checkpoint or
the start of an epoch it begins when its first batch is fetched, or, without a loader, when the model is first called.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .cuda import CudaClock
from .recorder import Recorder, now


class StepsDone(SystemExit):
    """Ends a rank cleanly after the number of steps that was asked for."""

    def __init__(self) -> None:
        super().__init__(0)


class StepClock:
    """Sees every step of this process."""

    def __init__(self, recorder: Recorder, stop_after: int, on_training: Callable[[Any], None]) -> None:
        self._recorder = recorder
        self._stop_after = stop_after
        self._on_training = on_training
        self._module_functions: Any = None
        self._first_call: Any = None
        self._begin()

    def _begin(self) -> None:
        self._root: Any = None
        self._training = False
        self._cuda: CudaClock | None = None
        self._interrupted = True  # something else than a step lies between the last step's end and now
        self._last_end = self._forward_at = self._fetch_at = self._fetch_end = self._wait = 0
        self._loaded = self._seen = 0  # samples since the last step, by the loader and by the model
        self._evaluating_since = self._evaluated_until = 0
        self._depth = self._optimizer_at = 0
        self._optimizers: dict[int, int] = {}
        self._group: set[int] = set()
        self._largest_group = 1
        self._steps = 0

    def after_fork(self) -> None:
        """Forget what the parent did."""
        self._begin()

    # What is watched, each as soon as its module of torch has been imported

    def watch_modules(self, module: Any) -> None:
        """Find the model in its first training call, and see when it is switched to evaluation."""
        self._module_functions = module
        self._first_call = module.register_module_forward_pre_hook(self._on_any_call)
        original = module.Module.eval

        @functools.wraps(original)
        def evaluate(model: Any) -> Any:
            if self._root is not None and self._is_kin(model):
                self._evaluation_begins()
            return original(model)

        module.Module.eval = evaluate

    def watch_optimizers(self, module: Any) -> None:
        """Every step of every optimizer."""
        module.register_optimizer_step_pre_hook(self._before_optimizer)
        module.register_optimizer_step_post_hook(self._after_optimizer)

    def watch_saving(self, module: Any) -> None:
        """A checkpoint is a pause."""
        original = module.save

        @functools.wraps(original)
        def save(*arguments: Any, **options: Any) -> Any:
            self._something_else()
            started = now()
            try:
                return original(*arguments, **options)
            finally:
                if self._recorder.is_rank:
                    self._recorder.line("save", s=started, t=now())

        module.save = save

    def watch_loaders(self, module: Any) -> None:
        """A new pass over a loader is no part of a step; a fetch is, and its time and samples are noted."""
        loader, iterator = module.DataLoader, module._BaseDataLoaderIter
        make_iterator, fetch = loader.__iter__, iterator.__next__

        @functools.wraps(make_iterator)
        def begin_pass(self_: Any) -> Any:
            self._something_else()
            return make_iterator(self_)

        @functools.wraps(fetch)
        def timed_fetch(self_: Any) -> Any:
            started = now()
            batch = fetch(self_)
            self._fetch_end = ended = now()
            self._wait += ended - started
            if self._interrupted:  # only the last fetch before the model's call belongs to the next step
                self._wait = ended - started
                # the first fetch of a pass with workers waits for them to start: part of the pause
                self._fetch_at = ended if self_._num_workers else started
                self._loaded = 0
            self._loaded += samples_in(batch)
            return batch

        loader.__iter__, iterator.__next__ = begin_pass, timed_fetch

    def no_step_inside(self, original: Any) -> Any:
        """The function, with the optimizer steps that it makes for its own ends left out."""

        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            self._depth += 1
            try:
                return original(*arguments, **options)
            finally:
                self._depth -= 1

        return call

    # What happens

    def _on_any_call(self, module: Any, arguments: Any) -> None:
        """Only until the first training call: a hook on every module costs too much to keep."""
        import torch

        if self._training or (module.training and torch.is_grad_enabled()):
            self._first_call.remove()
            if not self._training:
                self._adopt(module)
                self._on_call(module, arguments, {})

    def _adopt(self, root: Any) -> None:
        """The training begins, with this model (None: with an optimizer's step and no model seen)."""
        self._training = True
        self._root = root
        self._on_training(root)
        if root is None:
            return
        parameter = next(root.parameters(), None)
        if parameter is not None and parameter.is_cuda:
            self._cuda = CudaClock(self._recorder)
        if getattr(root, "_compiled_call_impl", None) is None:  # a hook would be traced into a compiled model
            root.register_forward_pre_hook(_RootHook(self._on_call), with_kwargs=True)

    def _is_kin(self, model: Any) -> bool:
        """Whether this is the model, what it wraps, or what wraps it; not one of its layers."""
        wrapped = getattr(self._root, "module", None)
        return model is self._root or model is wrapped or any(part is self._root for part in model.modules())

    def _on_call(self, module: Any, arguments: Any, options: Any) -> None:
        if not module.training:
            self._evaluation_begins()
            self._evaluated_until = 0
            return
        if not self._forward_at:
            self._forward_at = now()
            if self._interrupted:
                self._begin_after_interruption()
        self._seen += samples_in(arguments) or samples_in(options)

    def _begin_after_interruption(self) -> None:
        """The first training call after something else: what lay between is no part of the step."""
        fetched = self._last_end < self._fetch_at <= self._forward_at
        start = self._fetch_at if fetched else self._forward_at
        self._close_evaluation(start)
        self._last_end = start
        self._interrupted = False
        self._depth = 0
        if self._cuda:
            self._cuda.mark("begin")

    def _something_else(self) -> None:
        self._interrupted = True
        # an evaluation ends with the first other event after its last fetch
        if self._evaluating_since and self._fetch_at > max(self._evaluating_since, self._evaluated_until):
            self._evaluated_until = now()

    def _evaluation_begins(self) -> None:
        self._interrupted = True
        if not self._evaluating_since:
            self._evaluating_since = now()
            self._evaluated_until = 0

    def _close_evaluation(self, at: int) -> None:
        if self._evaluating_since:
            self._recorder.line("evaluation", s=self._evaluating_since, t=self._evaluated_until or at)
            self._evaluating_since = self._evaluated_until = 0

    def _before_optimizer(self, optimizer: Any, arguments: Any, options: Any) -> None:
        self._depth += 1  # Horovod's and sharded optimizers step another one inside their own step
        if self._depth == 1:
            self._optimizer_at = now()
            if not self._training:
                self._adopt(None)

    def _after_optimizer(self, optimizer: Any, arguments: Any, options: Any) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        end = now()
        self._depth = 0
        start = self._last_end
        if self._interrupted:  # no model was called since: all that is known is when the optimizer began
            start = max(self._last_end, self._optimizer_at)
            self._close_evaluation(start)
            self._interrupted = False
        index = self._optimizers.setdefault(id(optimizer), len(self._optimizers))
        if self._cuda:
            self._cuda.mark("end")
        self._recorder.step(
            f'{{"kind":"step","s":{start},"f":{self._forward_at},"o":{self._optimizer_at},"t":{end},'
            f'"w":{self._wait},"n":{self._loaded or self._seen},"i":{index}}}\n',
            end,
        )
        self._last_end = end
        self._forward_at = self._wait = self._loaded = self._seen = 0
        if self._stop_after:
            self._count(index)

    def _count(self, index: int) -> None:
        """Several optimizers may share a step; it is over when one of them comes round again."""
        if index in self._group or not self._group:
            self._steps += 1
            self._group.clear()
        self._group.add(index)
        self._largest_group = max(self._largest_group, len(self._group))
        if self._steps >= self._stop_after and len(self._group) >= self._largest_group:
            raise StepsDone

    def close(self) -> None:
        """The process ends."""
        if self._training:
            self._close_evaluation(now())
        if self._cuda:
            self._cuda.close()


def samples_in(batch: Any) -> int:
    """Length of the first dimension of the first tensor in a batch; 0 when there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, (list, tuple)):
        for part in batch:
            count = samples_in(part)
            if count:
                return count
    return 0


class _RootHook:
    """The hook on the model: copies and pickles of the model carry a silent stand-in, not the agent."""

    def __init__(self, function: Callable[[Any, Any, Any], None]) -> None:
        self._function = function

    def __call__(self, module: Any, arguments: Any, options: Any) -> None:
        self._function(module, arguments, options)

    def __deepcopy__(self, memo: Any) -> Any:
        return functools.partial(*_SILENT)

    def __reduce__(self) -> Any:
        return functools.partial, _SILENT


_SILENT: Any = (sys.audit, "scalescope.silent")
"""A call from the standard library that takes any further arguments and does nothing."""
