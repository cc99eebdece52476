"""The step clock: when every step began and ended.

A step ends with an optimizer's step and begins where the one before it ended, unless something else lay between
(see interruptions.py). Steps longer than 20 ms are each looked at closely (when the optimizer began, the input wait,
the samples) and written at once. Of shorter ones only the end is kept; they are written every 20 ms, and every 640 ms
32 in a row are looked at: one alone may miss how steps alternate, as with a GradScaler that skips some. So a
short step pays less than 5 microseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .cuda import CudaClock
from .exchanged import Exchanged
from .recorder import Recorder, now, say_once

_ATTEND_EVERY_NS = 20_000_000
_IN_A_ROW = 32  # Steps that are looked at together, and how many times as long nobody looks afterwards
_DEEPEST = 32  # This many begins and ends without a match are no optimizers inside optimizers


def _closed_by_the_last(times: list[int]) -> int:
    """Number of begins between the last end and its own begin; 0 when ends elsewhere close more: an inner end."""
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
    """Sees the steps of optimizers of this process."""

    def __init__(self, recorder: Recorder, stop_after: int, exchanged: Exchanged | None = None) -> None:
        self._recorder = recorder
        self._asked_for = stop_after
        self._exchanged = exchanged or Exchanged()
        self._exchanged.on_first = self._count_anew
        self._times: list[int] = []  # ends of optimizer steps; negative: begins, while looking closely
        self._register_before: Callable[[], Any] = lambda: None
        self._before: Any = None
        self.looks_closely = True
        self.on_unseen_begin: Callable[[int], None] = lambda optimizer_at: self.resume(max(self.begin, optimizer_at))
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
        self._attend_at, self._blind = 0, False
        self._looks, self._look_at = _IN_A_ROW, 0  # how many more steps are looked at, and when again
        self._stop_after = self._asked_for
        self.begin = 0  # of the first step not yet written
        self.training, self.interrupted = False, True
        if not self.looks_closely:
            self._before = self._register_before()
        self.looks_closely = True
        self.input_wait = self.samples = self.fetches = self.forward_at = 0  # of the step that is looked at
        self.unsure = False  # whether its samples are not all known
        self.cuda: CudaClock | None = None
        self._optimizers: dict[int, int] = {}
        self._group: set[int] = set()
        self._largest_group = 1
        self._steps = self._written = 0
        self._wake_at = 0  # the step after which someone wants to be called; 0: nobody does
        self._most_times = 0  # how many short steps are left until something is due; 0: nothing is

    def watch_optimizers(self, module: Any) -> None:
        """Every step of every optimizer, as soon as torch's optimizers have been imported."""
        times, append, torch = self._times, self._times.append, module.torch

        def account(optimizer: Any, end: int) -> bool:
            try:
                return self._account(optimizer, end)
            except Exception as problem:
                say_once("steps are not recorded as they should be", problem)
                times.clear()
                return False

        def before(optimizer: Any, arguments: Any, options: Any) -> None:
            """Only while looking closely: a second hook in every step costs too much."""
            if not torch.compiler.is_dynamo_compiling() and self._exchanged.counts(optimizer):
                append(-now())

        def after(optimizer: Any, arguments: Any, options: Any) -> None:
            if torch.compiler.is_dynamo_compiling():
                return  # what torch.compile makes of a step must not depend on us
            end = now()
            append(end)
            is_due = end > self._attend_at or id(optimizer) != self._identity or len(times) == self._most_times
            if is_due and account(optimizer, end):
                self._stop_when_done()

        self._register_before = functools.partial(module.register_optimizer_step_pre_hook, before)
        self._before = self._register_before()
        self._after = module.register_optimizer_step_post_hook(after)

    def unwatch_optimizers(self) -> None:
        """Take the hooks back."""
        self._before.remove()
        self._after.remove()

    def wake_after(self, steps: int) -> None:
        """Call `on_wake` once this many more steps are complete: between two steps, alike on every rank."""
        if not self.looks_closely:
            self._write_short_steps()
        self._wake_at = self._steps + steps
        self._plan_next_stop()

    @property
    def complete(self) -> int:
        """Number of steps that are over, with all their optimizers, as far as they were written."""
        return max(self._steps - (len(self._group) < self._largest_group), 0)

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

    def _count_anew(self) -> None:
        """From here on ranks train together; what one of them stepped before, it stepped alone."""
        if self.looks_closely:
            self._times.clear()
        self._write_short_steps()
        self._identity = 0
        self._group.clear()
        self._largest_group = 1
        if self._stop_after:
            self._stop_after = self._steps + self._asked_for
        self._plan_next_stop()

    def interrupt(self) -> None:
        """End the step here: what comes now is none, and the next one is looked at closely."""
        if not self.interrupted:
            self._write_short_steps()
        self.interrupted = True
        self.unsure |= not self.looks_closely  # nobody looked at what was begun and is not over
        self._attend_at, self._looks = 0, _IN_A_ROW
        self._look_closely(True)

    def resume(self, at: int) -> None:
        """The next step begins at this time."""
        self.begin = at
        self.interrupted = False
        if self.cuda:
            self.cuda.mark("begin", self._written)

    def _account(self, optimizer: Any, end: int) -> bool:
        """Write what there is, and decide whether the next step is looked at closely; whether steps were written."""
        if self._blind:
            return False
        identity = id(optimizer)
        if identity != self._identity and not self._exchanged.counts(optimizer):
            self._times.pop()
            return False
        if self.looks_closely or identity != self._identity:
            times = self._take_last_step()
            if times:  # otherwise an outer optimizer's step is not over yet
                self._write_step(identity, -min(times[0], 0), end)
            return bool(times)
        if len(self._times) % self._ends_per_step:
            return False
        self._write_short_steps()
        self._plan_next_look(end, is_long=False)
        return True

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
        if self.interrupted:
            self.on_unseen_begin(optimizer_at)
        self._write_short_steps()
        self._identity = identity
        index = self._optimizers.setdefault(identity, len(self._optimizers))
        samples = 0 if self.unsure else self.samples
        self._recorder.text(
            f'{{"kind":"step","s":{self.begin},"f":{self.forward_at},"o":{optimizer_at},"t":{end},'
            f'"w":{self.input_wait},"n":{samples},"i":{index}}}\n'
        )
        begin, is_long = self.begin, self.on_step is not None or end - self.begin > _ATTEND_EVERY_NS
        self._has_written(1, end, index)
        if self.on_step:
            self.on_step(begin, optimizer_at or end, end, self.complete)
        if self.on_steps:
            self.on_steps(begin, [end], self.complete, samples)
        self.input_wait = self.samples = self.fetches = self.forward_at = 0
        self.unsure = False
        self._plan_next_look(end, is_long=is_long)

    def _plan_next_look(self, end: int, *, is_long: bool) -> None:
        if is_long or (not self._looks and end > self._look_at):
            self._looks = _IN_A_ROW
        elif self._looks:
            self._looks -= 1
            self._look_at = end + _IN_A_ROW * _ATTEND_EVERY_NS
        self._attend_at = 0 if self._looks else end + _ATTEND_EVERY_NS
        self._look_closely(self._looks > 0)

    def _look_closely(self, wanted: bool) -> None:
        if wanted == self.looks_closely:
            return
        self.looks_closely = wanted
        if wanted:
            self._before = self._register_before()
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
