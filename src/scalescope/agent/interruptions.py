"""Interruptions that are no step: evaluation, checkpoints, the start of an epoch; and the samples of a step.

After an interruption a step begins when its first batch is fetched or, without a loader, when the model is first
called. The hook that sees the call is on the model only until then, and never on a model in evaluation: a hook that
stays costs every step, and is in the way of a script that exports its model.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .cuda import CudaClock
from .exchanged import Exchanged
from .recorder import Recorder, guarded, now
from .script_hooks import (
    Fetch,
    Fetches,
    never_compile,
    watch_calls,
    watch_fetches,
    watch_modes,
    watch_scripting,
    wrapped_in,
)
from .steps import StepClock


class Interruptions:
    """Finds the model, and keeps what is no step out of the clock."""

    def __init__(
        self, recorder: Recorder, clock: StepClock, exchanged: Exchanged, on_training: Callable[[Any], None]
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._exchanged = exchanged
        self._on_training = on_training
        # Called when hooks may be on the model, and when they must be gone.
        self.on_mode: Callable[[bool], None] = lambda training: None
        self._hook: Any = None
        self._stop_finding: Callable[[], None] = lambda: None
        self._see_train: Callable[[bool], None] = lambda wanted: None
        clock.on_unseen_begin = self._on_unseen_call
        clock.on_closer_look = self._on_closer_look
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self._root: Any = None
        self._kin: list[Any] = []
        self._listen(False)
        self._has_loader = False
        self._fetch_at = self._evaluating_since = self._evaluated_until = 0
        self._fetches = Fetches()

    # What is watched, each as soon as its module of torch has been imported

    def watch_modules(self, module: Any) -> None:
        """Find the model in its first training call, and see when it is switched to evaluation and back."""
        self._stop_finding = watch_calls(module, guarded("the model is not seen", self._on_any_call))
        missing = "evaluations are not seen"
        self._see_train = watch_modes(module, guarded(missing, self._on_eval), guarded(missing, self._on_train))

    def watch_saving(self, module: Any) -> None:
        """A checkpoint is a pause."""
        original = module.save
        paused = guarded("checkpoints are not seen", self._paused)

        @functools.wraps(original)
        def save(*arguments: Any, **options: Any) -> Any:
            started = now()
            try:
                return original(*arguments, **options)
            finally:
                paused(started)

        module.save = save

    def watch_scripting(self, module: Any) -> None:
        """TorchScript compiles the hooks of a model, too, and cannot compile ours."""
        watch_scripting(module, guarded("a hook may be in the way of TorchScript", self._make_way))

    def watch_loaders(self, module: Any) -> None:
        """A new pass over a loader is no part of a step; a fetch is, and its time and samples are noted."""
        pass_begins = guarded("passes over a loader are not seen", self._pass_begins)
        fetched = guarded("samples are not counted as they should be", self._on_fetch)
        watch_fetches(module, self._clock, pass_begins, fetched)

    # The model

    def _on_any_call(self, module: Any, arguments: Any, options: Any = None) -> None:
        if self._clock.training:
            self._stop_finding()
        elif module.training and self._is_trained(module):
            self._stop_finding()
            self._adopt(module)
            self._on_call(module, arguments, options)
        elif "_orig_mod" in module._modules:  # torch.compile would guard on a hook of all modules, so it goes before
            self._stop_finding()
            self._stop_finding = module.register_forward_pre_hook(ModelHook(self._on_any_call), with_kwargs=True).remove

    def _is_trained(self, module: Any) -> bool:
        """Not a transformation of data, and not what this rank trains on its own."""
        parameters = [each for each in module.parameters() if each.requires_grad]
        return bool(parameters) and self._exchanged.holds(parameters)

    def _adopt(self, root: Any) -> None:
        """The training begins, with this model (None: with an optimizer's step and no model seen)."""
        self._clock.training = True
        self._root, self._kin = root, wrapped_in(root)
        self._on_training(root)
        parameter = None if root is None else next(root.parameters(), None)
        if parameter is not None and parameter.is_cuda:
            self._clock.cuda = CudaClock(self._recorder)
        self._listen(True)

    def _listen(self, wanted: bool) -> None:
        """See the model's calls, or no longer; not those of one that compiled itself: the hook would be traced."""
        if self._hook and not wanted:
            self._hook.remove()
            self._hook = None
        elif wanted and not self._hook and self._is_hookable():
            self._hook = self._root.register_forward_pre_hook(ModelHook(self._on_call), with_kwargs=True)

    def _make_way(self) -> None:
        if self._hook and not self._has_loader:
            self._clock.unsure = True
        self._listen(False)
        self.on_mode(False)

    def _is_hookable(self) -> bool:
        return getattr(self._root, "_compiled_call_impl", 0) is None and self._is_training()

    def _is_training(self) -> bool:
        return all(each.training for each in self._kin)

    def _on_eval(self, model: Any) -> None:
        """The model, what it wraps, or what wraps it; not one of its layers."""
        if self._root is not None and (
            any(model is each for each in self._kin) or any(part is self._root for part in model.modules())
        ):
            self._evaluation_begins()

    def _on_train(self, model: Any) -> None:
        if any(model is each for each in self._kin):
            self._training_may_go_on()

    def _on_call(self, module: Any, arguments: Any, options: Any) -> None:
        clock = self._clock
        if not self._is_training():
            self._evaluation_begins()
            self._evaluated_until = 0
            return
        if clock.interrupted:
            clock.forward_at = now()
            self._training_goes_on(clock.forward_at)
        elif not clock.forward_at:
            clock.forward_at = now()
        if self._has_loader:
            self._listen(False)
        else:
            clock.samples += samples_in(arguments) or samples_in(options)

    def _on_unseen_call(self, optimizer_at: int) -> None:
        """A step is over whose model nobody saw: all that is known is its fetch, or when the optimizer began."""
        if not self._clock.training:
            self._adopt(None)
        self._training_goes_on(max(self._clock.begin, optimizer_at))

    def _training_goes_on(self, at: int) -> None:
        """The first training call after something else: what lay between is no part of the step."""
        clock, fetches = self._clock, self._fetches.pending
        start = fetches[0].at if fetches and clock.begin < fetches[0].at <= at else at
        self._close_evaluation(start)
        clock.resume(start)
        clock.input_wait = sum(fetch.wait for fetch in fetches)
        clock.samples += sum(fetch.samples for fetch in fetches)
        clock.fetches += len(fetches)
        clock.unsure |= self._fetches.too_many
        self._fetches.clear()

    def _on_closer_look(self, wanted: bool) -> None:
        """Without a loader the model shows the samples."""
        if not self._has_loader or self._clock.interrupted or not wanted:
            self._listen(wanted)

    # Fetches

    def _on_fetch(self, iterator: Any, batch: Any, started: int, ended: int) -> None:
        """Count a batch for this step or, after an interruption, for the next one, also where it is fetched ahead."""
        clock = self._clock
        if not clock.interrupted:
            clock.input_wait += ended - started
            clock.samples += samples_in(batch)
            clock.fetches += 1
            self._fetches.in_step(iterator, clock.fetches)
            return
        self._training_may_go_on()
        # the first fetch of a pass with workers waits for them to start: part of the pause
        self._fetch_at = ended if iterator._num_workers else started
        if self._is_training() or not self._fetches.is_for_evaluation(iterator):
            self._fetches.add(Fetch(self._fetch_at, ended - started, samples_in(batch)))

    # What is no step

    def _pass_begins(self) -> None:
        self._something_else(now())
        self._has_loader = True
        self._fetches.clear()

    def _paused(self, started: int) -> None:
        self._something_else(started)
        if self._recorder.is_rank:
            self._recorder.line("save", s=started, t=now())

    def _something_else(self, at: int) -> None:
        self._clock.interrupt()
        self._training_may_go_on()
        # an evaluation ends with the first other event after its last fetch
        if self._evaluating_since and self._fetch_at > max(self._evaluating_since, self._evaluated_until):
            self._evaluated_until = at

    def _evaluation_begins(self) -> None:
        self._clock.interrupt()
        self._listen(False)
        self.on_mode(False)
        self._see_train(True)
        self._fetches.clear()
        if not self._evaluating_since:
            self._evaluating_since = now()
            self._evaluated_until = 0

    def _training_may_go_on(self) -> None:
        """The model has been switched back, or has not been switched at all; its next call will tell."""
        if self._root is not None and self._is_training():
            self._see_train(False)
            self._listen(True)  # before other hooks: a step begins no later than its forward
            self.on_mode(True)

    def _close_evaluation(self, at: int) -> None:
        if self._evaluating_since:
            self._recorder.line("evaluation", s=self._evaluating_since, t=self._evaluated_until or at)
            self._evaluating_since = self._evaluated_until = 0

    def close(self) -> None:
        """The process ends."""
        if self._clock.training:
            self._close_evaluation(now())

    def let_go(self) -> None:
        """This process is none that trains."""
        self._stop_finding()


def samples_in(batch: Any) -> int:
    """Length of the first dimension of the first tensor in a batch; 0 when there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if isinstance(batch, Mapping):  # such as the UserDict that tokenizers give
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
        import torch

        never_compile(ModelHook.__call__)
        self._torch: Any = torch
        self._function = guarded("calls of the model are not seen", function)

    def __call__(self, module: Any, arguments: Any, options: Any) -> None:
        """Called by torch before or after the model; torch.compile traces through it and must find nothing."""
        if not self._torch.compiler.is_compiling():
            self._function(module, arguments, options)

    def __deepcopy__(self, memo: Any) -> Any:
        return functools.partial(*_SILENT)

    def __reduce__(self) -> Any:
        return functools.partial, _SILENT


# A call from the standard library that takes any further arguments and does nothing.
_SILENT: Any = (sys.audit, "scalescope.silent")
