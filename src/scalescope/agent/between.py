"""Work that is done between steps: after a number of complete steps, alike on every rank, and in no step's time.

The samples of a step are those of the steps that the clock looks at closely. Only where they vary is every call of
the model seen: one more function in every step costs more than all the rest.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from .cuda import GpuTimes
from .exchanged import Exchanged
from .interruptions import samples_in
from .recorder import Recorder, now
from .steps import StepClock

Work = Generator[int, None, None]  # Yields how many steps may pass before it wants to go on


# Begin, ends, how many steps are complete, and samples, as the clock gives them; no ends: it was resumed.
_Batch = tuple[int, list[int], int, int]


class Step(NamedTuple):
    """One complete step."""

    begin: int
    end: int
    nanoseconds: int  # On a GPU its own time, not when Python was done with it
    samples: int  # Of this rank; 0: unknown
    whole: bool  # False: an evaluation, a checkpoint or the like lay before it, or its time is not known


class BetweenSteps:
    """Lets work go on between steps of a clock, and hands it the steps that were made meanwhile."""

    def __init__(self, clock: StepClock | None = None, ddp: Any = None) -> None:
        self._has_own_clock = clock is None
        if clock is None:  # one that writes nothing, for the steps of optimizers of this wrapper
            exchanged = Exchanged()
            clock = StepClock(_Silence(""), 0, exchanged)
            exchanged.add(() if ddp is None else ddp.parameters())
        self.clock = clock
        self._work: Work | None = None
        self._batches: list[_Batch] = []
        self._steps: list[Step] = []
        self._samples = 0  # of the step that is not complete yet
        self._usual_samples = 0
        self._ddp: Any = None
        self._calls: list[tuple[int, int]] = []  # when the model was called to train, on how many samples
        self._restore_forward: Callable[[], None] | None = None
        self._gpu: GpuTimes | None = None
        self._is_watching = self._is_awake = False

    def start(self, work: Work, after: int) -> None:
        """Begin the work after this many more steps."""
        if self._has_own_clock:
            self.clock.watch_optimizers(optimizers())
            self._is_watching = True
        self._work = work
        self._done, self._open, self._expected = self.clock.complete, 0, -1
        self.clock.on_steps, self.clock.on_wake = lambda *batch: self._batches.append(batch), self._on_wake
        self.clock.wake_after(after)

    def stop(self) -> None:
        """Take every hook back; those on optimizers not from inside one, but with the model's next call."""
        if self._work is not None:
            self._work.close()
            self._work = None
            self.clock.on_steps = None
            self.clock.on_wake = lambda: None
        if self._has_own_clock and self._is_awake:
            return
        if self._has_own_clock and self._is_watching:
            self.clock.unwatch_optimizers()
            self._is_watching = False
        if self._restore_forward:
            self._restore_forward()
            self._restore_forward = None

    def take(self) -> list[Step]:
        """The steps that were completed since this was last asked."""
        for batch in self._batches:
            self._read(*batch)
        self._batches.clear()
        steps, self._steps = self._steps, []
        if self._gpu:
            steps = self._gpu.timed(steps)
        if self._restore_forward:
            calls, self._calls[:] = list(self._calls), []
            taken, at = [], 0
            for step in steps:
                samples = 0
                while at < len(calls) and calls[at][0] <= step.end:
                    samples += calls[at][1]
                    at += 1
                taken.append(step._replace(samples=samples))
            return taken
        known = {step.samples for step in steps} - {0}
        self._usual_samples = self._usual_samples or max(known, default=0)
        if self._ddp is not None and known - {self._usual_samples}:
            self._see_calls(self._ddp)
        return [step if step.samples else step._replace(samples=self._usual_samples) for step in steps]

    def count_samples(self, ddp: Any) -> None:
        """From now on steps are handed out with the samples on which this wrapper was trained."""
        self.take()
        self._ddp = ddp
        if self._has_own_clock or next(ddp.parameters()).is_cuda:
            self._see_calls(ddp)

    def _see_calls(self, ddp: Any) -> None:
        """See every call of the wrapper.

        The class's own function is replaced: a hook on the module would make every call take torch's slow path.
        """
        kind: Any = next((each for each in type(ddp).__mro__ if each.__name__ == "DistributedDataParallel"), type(ddp))
        original, calls = kind.forward, self._calls
        gpu = self._gpu = GpuTimes() if next(ddp.parameters()).is_cuda else None
        own_clock = self._has_own_clock

        @functools.wraps(original)
        def forward(model: Any, *inputs: Any, **options: Any) -> Any:
            if model is not ddp:  # another of its kind: not every model has a wrapper of its own
                return original(model, *inputs, **options)
            if gpu:
                gpu.mark()
            if own_clock:
                self._on_call(model)
            if model.training:
                try:
                    samples = inputs[0].shape[0]
                except (AttributeError, IndexError, TypeError):
                    samples = samples_in(inputs) or samples_in(options)
                calls.append((now(), samples))
            return original(model, *inputs, **options)

        def restore() -> None:
            if kind.forward is forward:
                kind.forward = original

        kind.forward = forward
        self._restore_forward = restore

    def _on_call(self, model: Any) -> None:
        """Pause a clock of our own during evaluation; nothing else does."""
        if self._work is None:
            self.stop()
        elif not model.training:
            self.clock.interrupt()
        elif self.clock.interrupted:
            self.clock.resume(now())

    def _read(self, begin: int, ends: list[int], complete: int, samples: int) -> None:
        """Ends of optimizer steps: each a step of its own, or, with several optimizers, a part of one."""
        if not ends:
            self._expected = begin
            return
        whole = begin == self._expected and self._open >= 0
        self._expected = ends[-1]
        self._samples += samples
        new, self._done = complete - self._done, complete
        if new == 0:
            self._open = (self._open or begin) if whole else -1
            return
        if new == len(ends):
            begins = [self._open if self._open > 0 else begin, *ends[:-1]]
            for at, end in enumerate(ends):
                self._steps.append(Step(begins[at], end, end - begins[at], self._samples, whole or at > 0))
        else:  # optimizers that alternate unevenly
            self._steps += [Step(begin, ends[-1], 0, 0, whole=False)] * new
        self._open = self._samples = 0

    def _on_wake(self) -> None:
        assert self._work is not None
        if self._gpu:
            self._gpu.mark()
        self._is_awake = True
        try:
            steps = next(self._work, None)
            if steps is None:
                self.stop()
        except BaseException:
            self.stop()
            raise
        finally:
            self._is_awake = False
        if self._gpu:
            self._gpu.restart()
        self.clock.resume(now())
        self._batches.append((self.clock.begin, [], 0, 0))
        if steps is not None:
            self.clock.wake_after(steps)


def optimizers() -> Any:
    """torch's module of optimizers; torch takes its name away after the import."""
    return importlib.import_module("torch.optim.optimizer")


class _Silence(Recorder):
    """For a clock that writes nothing."""

    def line(self, kind: str, **fields: Any) -> None:
        """Forget it."""

    def text(self, lines: str) -> None:
        """Forget them."""
