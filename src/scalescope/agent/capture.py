"""Captures steady steps: with torch's profiler, or Horovod's timeline; and marks the parts of every step.

`SCALESCOPE_TRACE=first:steps:compare` asks for it: steps are numbered from 0 and every rank captures the same ones,
`first` up to but not including `first + steps`. With the profiler, steps before and after them run without it; on a GPU
it sees what the GPU does and NCCL sends, and nothing else unless `:full` follows: operators of the CPU make steps of a
compiled model twice as long.
Horovod's timeline is on from the beginning, so that the first negotiation is in it; it is switched off after the
captured steps, on again (into a file of its own) after `compare` more, and off again after as many. So traced and
untraced steps of one run can be compared.
"""

from __future__ import annotations

import functools
import gzip
import os
import socket
import sys
from typing import Any, NamedTuple

from .halves import live_half
from .interruptions import ModelHook
from .marks import Marks
from .network import Network, ask_nccl
from .recorder import guarded, now, reason, say
from .steps import StepClock

_ANEW = 0.5  # Of what a step keeps in memory: a traced one takes about a third of that anew
_BLOCK = 1 << 26
_LONGEST_TOUCH_NS = 4_000_000_000


class Window(NamedTuple):
    """The steps to capture, and the number of steps to compare with them; printed as the environment carries it."""

    first: int
    steps: int
    compare: int
    detail: str = ""  # full: operators of the CPU, too, where a GPU does the work

    @property
    def end(self) -> int:
        """The first step that is not captured any more."""
        return self.first + self.steps

    def __str__(self) -> str:
        return f"{self.first}:{self.steps}:{self.compare}" + (f":{self.detail}" if self.detail else "")


def window_from_environment() -> Window | None:
    """The window that the parent asks for; None: nothing is captured."""
    words = (os.environ.get("SCALESCOPE_TRACE") or "").split(":")
    return Window(*map(int, words[:3]), *words[3:]) if len(words) in (3, 4) else None  # type: ignore[arg-type]


class Capture:
    """Capture of one rank: its tracer, marks and network logs."""

    def __init__(self, folder: str, clock: StepClock, window: Window) -> None:
        self.folder, self._clock, self._window = folder, clock, window
        self._marks = Marks(folder, from_start=not window.first)
        self._network = Network(folder)
        ask_nccl(folder)
        self.timed = self._marks.timed
        clock.on_step = self._on_step
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child, which has no trace of its own yet."""
        self._tracer: Any = None
        self._root: Any = None
        self._hooks: list[Any] = []
        self._began = self._done = self._starting_ns = 0
        self._between_steps = False
        self._marks.reset()
        self._network.reset()

    # What is watched, each as soon as its module has been imported

    def watch_optimizers(self, module: Any) -> None:
        """Between steps means after the optimizer's step as the profiler records it, so not in its hook."""
        original = module.Optimizer.profile_hook_step

        def profile_hook_step(function: Any) -> Any:
            stepping = original(function)

            @functools.wraps(stepping)
            def step(*arguments: Any, **options: Any) -> Any:
                result = stepping(*arguments, **options)
                if self._between_steps:
                    self._between_steps = False
                    self._switch()
                return result

            return step

        module.Optimizer.profile_hook_step = staticmethod(profile_hook_step)

    def watch_loaders(self, module: Any) -> None:
        """A fetch is a wait for input."""
        iterator = module._BaseDataLoaderIter
        iterator.__next__ = self._marks.timed("input", iterator.__next__)

    def on_training(self, root: Any, identity: dict[str, Any]) -> None:
        """The first training forward, or without one the first optimizer step, is about to happen."""
        import torch

        identity = {**identity, "rank": identity["rank"] or 0}
        parameter = None if root is None else next(root.parameters(), None)
        device = "cpu" if parameter is None else parameter.device.type
        self._marks.open(host=socket.gethostname(), pid=os.getpid(), device=device, **identity)
        self._network.begin(host=socket.gethostname(), pid=os.getpid(), rank=identity["rank"])
        own = getattr(live_half(identity["engine"]), "Tracer", None)
        if own is not None:
            self._tracer = own(self.folder, self._window)
        else:
            light = device == "cuda" and self._window.detail != "full" and _sends_on_device()
            self._tracer = _Profiler(self.folder, self._window, identity["rank"], light=light)
            if not self._window.first:
                self._starting_ns = self._tracer.begin()
                self._marks.shift(self._starting_ns)
        autograd: Any = torch.autograd
        autograd.backward = self._marks.timed("backward", autograd.backward)
        if root is not None and getattr(root, "_compiled_call_impl", None) is None:
            self._root = root
            self.listen(True)
            self._marks.forward_begins(root, (), {})

    def listen(self, wanted: bool) -> None:
        """Put hooks on the model, or take them away: a model that does not train has none."""
        if wanted and self._root is not None and not self._hooks:
            begins, ends = ModelHook(self._marks.forward_begins), ModelHook(self._marks.forward_ends)
            self._hooks.append(self._root.register_forward_pre_hook(begins, with_kwargs=True))
            self._hooks.append(self._root.register_forward_hook(ends))
        elif not wanted:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()

    def _on_step(self, began: int, optimizer_began: int, ended: int, done: int) -> None:
        """An optimizer's step has ended; `done` steps are over."""
        self._marks.optimizer(optimizer_began, ended)
        self._began = self._began or began + self._starting_ns  # to start the tracer is no part of the first step
        self._starting_ns = 0
        if done > self._done:
            traced = self._tracer is not None and self._tracer.is_on
            self._marks.step(self._done, self._began, ended, traced=traced)
            self._done, self._began, self._between_steps = done, 0, True

    def _switch(self) -> None:
        """To start, to stop and to write belong to no step; what a traced step costs belongs to it."""
        try:
            switched = self._tracer is not None and self._tracer.between_steps(self._done)
        except Exception as problem:  # the training must not suffer from its observer
            self._give_up(problem)
            switched = True
        if switched:
            self._clock.resume(now())

    def _give_up(self, problem: Exception) -> None:
        self._tracer = None
        say(f"this rank is not traced: {reason(problem)}")

    def close(self) -> None:
        """The process ends: what there is, is written."""
        self.listen(False)
        if self._tracer is not None:
            try:
                self._tracer.close()
            except Exception as problem:
                self._give_up(problem)
        self._marks.close()
        guarded("this rank's network is not known", self._network.close)()


def _sends_on_device() -> bool:
    """True when all that ranks send is seen on the GPU: gloo sends from the host."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return bool(distributed.get_backend() == "nccl")


def touch(size: int) -> None:
    """Have memory of this size come from the system now, for steps to use: an allocator that keeps it is needed.

    A virtual machine may have to get it from its host first, which takes 2 s for a GB.
    """
    import torch

    room = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16
    until = now() + _LONGEST_TOUCH_NS
    blocks: list[Any] = []
    while len(blocks) * _BLOCK < min(size, room) and now() < until:
        blocks.append(torch.zeros(_BLOCK, dtype=torch.uint8))


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Profiler:
    """torch's profiler over the captured steps, after one to warm it up; none before the first step of all."""

    def __init__(self, folder: str, window: Window, rank: int, *, light: bool = False) -> None:
        self._window, self._light = window, light
        self._path = os.path.join(folder, f"trace-rank{rank}.json")  # noqa: PTH118 - cheap
        self._profiler: Any = None
        self._unfinished = window.end
        self._resident = _resident_bytes()
        self.is_on = False

    def begin(self) -> int:
        """On from the first step of all; how long that took, in nanoseconds."""
        began = now()
        self._begin(0)
        self.is_on = True
        return now() - began

    def between_steps(self, done: int) -> bool:
        """Begin, or go on to the next step, which after the last one writes the file; whether it was switched."""
        first, end = self._window.first, self._window.end
        if done == first - 1:
            self._begin(done)
        elif self._profiler is not None:
            self._profiler.step()
        self.is_on = self._profiler is not None and first <= done < end
        if self._profiler is not None and done == end:
            self._profiler.stop()
            self._profiler = None
        return done in (first - 1, first, end)

    def _begin(self, step: int) -> None:
        import torch
        from torch import profiler
        from torch.profiler import ProfilerAction, ProfilerActivity

        if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
            raise RuntimeError("the script profiles itself")

        def action(number: int) -> Any:
            if number < self._window.first:
                return ProfilerAction.WARMUP
            left = self._window.end - number
            return {0: ProfilerAction.NONE, 1: ProfilerAction.RECORD_AND_SAVE}.get(left, ProfilerAction.RECORD)

        kinds = [] if self._light else [ProfilerActivity.CPU]
        kinds += [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profiler = profiler.profile(
            activities=kinds, schedule=action, on_trace_ready=self._write, record_shapes=not self._light
        )
        self._make_way()
        if os.environ.get("SCALESCOPE_ROOM"):
            touch(int(_ANEW * self._window.steps * (_resident_bytes() - self._resident)))
        self._profiler.step_num = step  # marks bear the numbers of the run's steps
        self._profiler.current_action = action(step)
        self._profiler.start()

    def _make_way(self) -> None:
        """A profiler of the script's own, begun while ours is on, would fail: ours ends first."""
        import torch

        their: Any = torch.autograd.profiler.profile
        original = their._prepare_trace

        @functools.wraps(original)
        def prepare(profiler: Any) -> Any:
            if self._profiler is not None and profiler is not self._profiler.profiler:
                self.close()
            return original(profiler)

        their._prepare_trace = prepare

    def _write(self, profiler: Any) -> None:
        unfinished = b'"ProfilerStep#%d"' % self._unfinished
        profiler.export_chrome_trace(self._path)
        try:
            with open(self._path, "rb") as plain, gzip.open(self._path + ".gz", "wb", compresslevel=4) as packed:
                for line in plain:
                    packed.write(line.replace(unfinished, b'"unfinished step"'))
        finally:
            os.unlink(self._path)  # noqa: PTH108

    def close(self) -> None:
        """Write the steps that were captured so far; the one that is not over is none."""
        if self._profiler is not None:
            self._unfinished, self.is_on = self._profiler.step_num, False
            self._profiler.stop()
            self._profiler = None
