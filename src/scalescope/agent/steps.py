"""The step clock: when every step began and ended.

A step ends with an optimizer's step and begins where the one before it ended, unless something else lay between
(see interruptions.py). Steps longer than 20 ms are each looked at closely (when the optimizer began, the input wait,
the samples) and written at once. Of shorter ones only the end is kept; they are written together, and one is looked
at closely, every 20 ms. That keeps what a short step pays below 5 microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cuda import CudaClock
from .recorder import Recorder, now

_ATTEND_EVERY_NS = 20_000_000
_DEEPEST = 32
"""So many begins and ends without a match are no optimizers inside optimizers."""


def _closed_by_the_last(times: list[int]) -> int:
    """How many begins lie between the last end and its own begin; 0 when ends elsewhere close more: an inner end."""
    open_at: list[int] = []
    largest = last = 0
    for place, time in enumerate(times):
        if time < 0:
            open_at.append(place)
        elif open_at:
            last = (place - open_at.pop() + 1) // 2
            largest = max(largest, last)
    return last if last == largest else 0


class StepsDone(SystemExit):
    """Ends a rank cleanly after the number of steps that was asked for."""

    def __init__(self) -> None:
        super().__init__(0)


class StepClock:
    """Sees every optimizer's step of this process."""

    def __init__(self, recorder: Recorder, stop_after: int) -> None:
        self._recorder = recorder
        self._stop_after = stop_after
        self._times: list[int] = []  # ends of optimizer steps; negative: begins, while looking closely
        self._register_before: Callable[[Any], Any] = lambda hook: None
        self._before: Any = None
        self.on_first_without_model: Callable[[], None] = lambda: None
        self.on_closer_look: Callable[[bool], None] = lambda wanted: None
        self.on_step: Callable[[int, int, int, int], None] | None = None  # then every step is looked at closely
        self.on_steps: Callable[[int, list[int], int, int], None] | None = None  # begin, ends, complete, samples
        self.on_wake: Callable[[], None] = lambda: None
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self._times.clear()
        self._identity = 0  # of the optimizer that made them
        self._ends_per_step = 1  # 2 for an optimizer that steps another one inside its own step, like Horovod's
        self._attend_at = 0
        self._blind = False
        self.begin = 0  # of the first step not yet written
        self.training = False
        self.interrupted = True
        self.looks_closely = True
        self.input_wait = self.samples = self.forward_at = 0  # of the step that is looked at
        self.cuda: CudaClock | None = None
        self._optimizers: dict[int, int] = {}
        self._group: set[int] = set()
        self._largest_group = 1
        self._steps = self._written = 0
        self._wake_at = 0  # after so many steps someone wants to be called; 0: nobody does
        self._most_times = 0  # so many short steps are left until something is due; 0: nothing is

    def watch_optimizers(self, module: Any) -> None:
        """Every step of every optimizer, as soon as torch's optimizers have been imported."""
        times, append = self._times, self._times.append

        def after(optimizer: Any, arguments: Any, options: Any) -> None:
            end = now()
            append(end)
            if end > self._attend_at or id(optimizer) != self._identity or len(times) == self._most_times:
                self._attend(id(optimizer), end)

        self._register_before = module.register_optimizer_step_pre_hook
        self._before = self._register_before(self._on_begin)
        self._after = module.register_optimizer_step_post_hook(after)

    def unwatch_optimizers(self) -> None:
        """Take the hooks back."""
        self._before.remove()
        self._after.remove()

    def wake_after(self, steps: int) -> None:
        """Call `on_wake` once so many more steps are complete: between two steps, alike on every rank."""
        if not self.looks_closely:
            self._write_short_steps()
        self._wake_at = self._steps + steps
        self._plan_next_stop()

    @property
    def complete(self) -> int:
        """How many steps are over, with all their optimizers, as far as they have been written."""
        return max(self._steps - (len(self._group) < self._largest_group), 0)

    def _on_begin(self, optimizer: Any, arguments: Any, options: Any) -> None:
        """Only while looking closely: a second hook in every step costs too much."""
        self._times.append(-now())

    def no_step_inside(self, original: Any) -> Any:
        """The function, with the optimizer steps that it makes for its own ends left out."""

        def call(*arguments: Any, **options: Any) -> Any:
            kept = len(self._times)
            self._blind = True
            try:
                return original(*arguments, **options)
            finally:
                self._blind = False
                del self._times[kept:]

        return call

    def interrupt(self) -> None:
        """What comes now is no step; the next one is looked at."""
        if not self.interrupted:
            self._write_short_steps()
        self.interrupted = True
        self._attend_at = 0
        self._look_closely(True)

    def resume(self, at: int) -> None:
        """The next step begins at this time."""
        self.begin = at
        self.interrupted = False
        if self.cuda:
            self.cuda.mark("begin", self._written)

    def _attend(self, identity: int, end: int) -> None:
        """Write what there is, and decide whether the next step is looked at closely."""
        if self._blind:
            return
        if not self.looks_closely and identity == self._identity:
            if len(self._times) % self._ends_per_step == 0:
                self._write_short_steps()
                self._attend_at = 0
                self._look_closely(True)
                self._stop_when_done()
            return
        times = self._take_last_step()
        if times:  # otherwise an outer optimizer's step is not over yet
            self._write_step(identity, -min(times[0], 0), end)

    def _take_last_step(self) -> list[int]:
        """Take the times of the step that just ended: begins, then ends; without begins when nobody looked closely."""
        begins = sum(time < 0 for time in self._times)
        ends = len(self._times) - begins
        if not self.looks_closely:
            return [self._times.pop()]
        if ends < begins and len(self._times) < _DEEPEST:
            return []
        times = self._times[-2 * begins :]
        if ends != begins:  # a step that raised left its begin behind
            begins = _closed_by_the_last(self._times)
            if not begins and len(self._times) < 2 * _DEEPEST:
                return []
            begins = begins or 1
            times = self._times[-2 * begins :]
        self._times[:] = [time for time in self._times[: -2 * begins] if time > 0]
        self._ends_per_step = begins
        return times

    def _write_step(self, identity: int, optimizer_at: int, end: int) -> None:
        if self.interrupted:  # no model was called since: all that is known is when the optimizer began
            if not self.training:
                self.on_first_without_model()
            self.resume(max(self.begin, optimizer_at))
        self._write_short_steps()
        self._identity = identity
        index = self._optimizers.setdefault(identity, len(self._optimizers))
        self._recorder.text(
            f'{{"kind":"step","s":{self.begin},"f":{self.forward_at},"o":{optimizer_at},"t":{end},'
            f'"w":{self.input_wait},"n":{self.samples},"i":{index}}}\n'
        )
        begin, is_long = self.begin, self.on_step is not None or end - self.begin > _ATTEND_EVERY_NS
        self._has_written(1, end, index)
        if self.on_step:
            self.on_step(begin, optimizer_at or end, end, self.complete)
        if self.on_steps:
            self.on_steps(begin, [end], self.complete, self.samples)
        self.input_wait = self.samples = self.forward_at = 0
        self._attend_at = 0 if is_long else end + _ATTEND_EVERY_NS
        self._look_closely(is_long)
        self._stop_when_done()

    def _look_closely(self, wanted: bool) -> None:
        if wanted == self.looks_closely:
            return
        self.looks_closely = wanted
        if wanted:
            self._before = self._register_before(self._on_begin)
        else:
            self._before.remove()
        self.on_closer_look(wanted)

    def _write_short_steps(self) -> None:
        """Steps of one optimizer, nobody looked at: one line with their ends."""
        ends = self._times[self._ends_per_step - 1 :: self._ends_per_step]
        if ends:
            index = self._optimizers[self._identity]
            begin = self.begin
            self._recorder.text(f'{{"kind":"steps","s":{begin},"i":{index},"ends":{ends}}}\n')
            self._has_written(len(ends), ends[-1], index)
            if self.on_steps:
                self.on_steps(begin, ends, self.complete, 0)
        self._times.clear()

    def _has_written(self, count: int, end: int, index: int) -> None:
        self.begin = end
        self._written += count
        if self.cuda:
            self.cuda.mark("end", self._written)
        # several optimizers may share a step; it is over when one of them comes round again
        if index in self._group or not self._group:
            self._steps += count
            self._group.clear()
        self._group.add(index)
        self._largest_group = max(self._largest_group, len(self._group))

    def _stop_when_done(self) -> None:
        if len(self._group) >= self._largest_group:
            if self._stop_after and self._steps >= self._stop_after:
                raise StepsDone
            if self._wake_at and self._steps >= self._wake_at:
                self._wake_at = 0
                self.on_wake()
        self._plan_next_stop()

    def _plan_next_stop(self) -> None:
        due = [steps for steps in (self._stop_after, self._wake_at) if steps]
        self._most_times = (min(due) - self._steps) * self._ends_per_step if due else 0

    def close(self) -> None:
        """The process ends."""
        self._times[:] = [time for time in self._times if time > 0]
        self._write_short_steps()
        if self.cuda:
            self.cuda.close()
