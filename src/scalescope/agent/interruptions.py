"""What is no step: evaluation, checkpoints, the start of an epoch; and which model is trained on how many samples.

After an interruption a step begins when its first batch is fetched or, without a loader, when the model is first
called. The hook that sees the call is on the model only until then: a hook that stays costs every step.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .cuda import CudaClock
from .recorder import Recorder, now
from .steps import StepClock


class Interruptions:
    """Finds the model, and keeps what is no step out of the clock."""

    def __init__(self, recorder: Recorder, clock: StepClock, on_training: Callable[[Any], None]) -> None:
        self._recorder = recorder
        self._clock = clock
        self._on_training = on_training
        self._first_call: Any = None
        clock.on_first_without_model = lambda: self._adopt(None)
        clock.on_closer_look = self._on_closer_look
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self._root: Any = None
        self._hook: Any = None
        self._has_loader = False
        self._fetch_at = self._evaluating_since = self._evaluated_until = 0

    # What is watched, each as soon as its module of torch has been imported

    def watch_modules(self, module: Any) -> None:
        """Find the model in its first training call, and see when it is switched to evaluation."""
        self._first_call = module.register_module_forward_pre_hook(self._on_any_call)
        original = module.Module.eval

        @functools.wraps(original)
        def evaluate(model: Any) -> Any:
            if self._root is not None and self._is_kin(model):
                self._evaluation_begins()
            return original(model)

        module.Module.eval = evaluate

    def watch_saving(self, module: Any) -> None:
        """A checkpoint is a pause."""
        original = module.save

        @functools.wraps(original)
        def save(*arguments: Any, **options: Any) -> Any:
            started = now()
            try:
                return original(*arguments, **options)
            finally:
                self._something_else(started)
                if self._recorder.is_rank:
                    self._recorder.line("save", s=started, t=now())

        module.save = save

    def watch_loaders(self, module: Any) -> None:
        """A new pass over a loader is no part of a step; a fetch is, and its time and samples are noted."""
        loader, iterator, clock = module.DataLoader, module._BaseDataLoaderIter, self._clock
        make_iterator, fetch = loader.__iter__, iterator.__next__

        @functools.wraps(make_iterator)
        def begin_pass(self_: Any) -> Any:
            self._something_else(now())
            self._has_loader = True
            return make_iterator(self_)

        @functools.wraps(fetch)
        def timed_fetch(self_: Any) -> Any:
            if not clock.looks_closely:
                return fetch(self_)
            started = now()
            batch = fetch(self_)
            ended = now()
            if clock.interrupted:  # only the last fetch before the model's call belongs to the next step
                clock.input_wait = clock.samples = 0
                # the first fetch of a pass with workers waits for them to start: part of the pause
                self._fetch_at = ended if self_._num_workers else started
            clock.input_wait += ended - started
            clock.samples += samples_in(batch)
            return batch

        loader.__iter__, iterator.__next__ = begin_pass, timed_fetch

    # The model

    def _on_any_call(self, module: Any, arguments: Any) -> None:
        """Only until the first training call: a hook on every module costs too much to keep."""
        import torch

        if self._clock.training:
            self._first_call.remove()
        elif module.training and torch.is_grad_enabled():
            self._first_call.remove()
            self._adopt(module)
            self._on_call(module, arguments, {})

    def _adopt(self, root: Any) -> None:
        """The training begins, with this model (None: with an optimizer's step and no model seen)."""
        self._clock.training = True
        self._root = root
        self._on_training(root)
        parameter = None if root is None else next(root.parameters(), None)
        if parameter is not None and parameter.is_cuda:
            self._clock.cuda = CudaClock(self._recorder)
        self._listen(True)

    def _listen(self, wanted: bool) -> None:
        """See the model's calls, or no longer; not of a compiled one, into which the hook would be traced."""
        if self._hook and not wanted:
            self._hook.remove()
            self._hook = None
        elif wanted and not self._hook and getattr(self._root, "_compiled_call_impl", self._root is None) is None:
            self._hook = self._root.register_forward_pre_hook(ModelHook(self._on_call), with_kwargs=True)

    def _is_kin(self, model: Any) -> bool:
        """Whether this is the model, what it wraps, or what wraps it; not one of its layers."""
        wrapped = getattr(self._root, "module", None)
        return model is self._root or model is wrapped or any(part is self._root for part in model.modules())

    def _on_call(self, module: Any, arguments: Any, options: Any) -> None:
        clock = self._clock
        if not module.training:
            self._evaluation_begins()
            self._evaluated_until = 0
            return
        if not clock.forward_at:
            clock.forward_at = now()
            if clock.interrupted:
                self._training_goes_on()
        if self._has_loader:
            self._listen(False)
        else:
            clock.samples += samples_in(arguments) or samples_in(options)

    def _training_goes_on(self) -> None:
        """The first training call after something else: what lay between is no part of the step."""
        clock = self._clock
        fetched = clock.begin < self._fetch_at <= clock.forward_at
        start = self._fetch_at if fetched else clock.forward_at
        self._close_evaluation(start)
        clock.resume(start)

    def _on_closer_look(self, wanted: bool) -> None:
        """Without a loader the model shows the samples of a step that is looked at closely."""
        if not self._has_loader or self._clock.interrupted or not wanted:
            self._listen(wanted)

    # What is no step

    def _something_else(self, at: int) -> None:
        self._clock.interrupt()
        self._listen(True)
        # an evaluation ends with the first other event after its last fetch
        if self._evaluating_since and self._fetch_at > max(self._evaluating_since, self._evaluated_until):
            self._evaluated_until = at

    def _evaluation_begins(self) -> None:
        self._clock.interrupt()
        self._listen(True)
        if not self._evaluating_since:
            self._evaluating_since = now()
            self._evaluated_until = 0

    def _close_evaluation(self, at: int) -> None:
        if self._evaluating_since:
            self._recorder.line("evaluation", s=self._evaluating_since, t=self._evaluated_until or at)
            self._evaluating_since = self._evaluated_until = 0

    def close(self) -> None:
        """The process ends."""
        if self._clock.training:
            self._close_evaluation(now())


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


class ModelHook:
    """The hook on the model: copies and pickles of the model carry a silent stand-in, not the agent."""

    def __init__(self, function: Callable[[Any, Any, Any], None]) -> None:
        self._function = function

    def __call__(self, module: Any, arguments: Any, options: Any) -> None:
        """What torch calls, before or after the model."""
        self._function(module, arguments, options)

    def __deepcopy__(self, memo: Any) -> Any:
        return functools.partial(*_SILENT)

    def __reduce__(self) -> Any:
        return functools.partial, _SILENT


_SILENT: Any = (sys.audit, "scalescope.silent")
"""A call from the standard library that takes any further arguments and does nothing."""
