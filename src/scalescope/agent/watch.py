"""The agent's beginning: waits for torch and the engines, then joins clock, recorder and hooks."""

from __future__ import annotations

import atexit
import faulthandler
import functools
import os
import signal
import sys
from typing import Any

from .capture import Capture, window_from_environment
from .exchanged import Exchanged
from .halves import engine_file, group_live
from .imports import ImportWatch, StaleReads
from .interruptions import Interruptions
from .recorder import Recorder, guarded, now, rank_from_environment
from .steps import StepClock

# Asks a rank for its Python stacks; a number that scripts and schedulers leave alone.
STACK_SIGNAL = int(signal.SIGRTMIN) + 7


def begin(folder: str) -> None:
    """Watch this process, if it becomes a rank."""
    Agent(folder)


class Agent:
    """Agent of one process: its recorder, step clock, hooks and capture."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._recorder = Recorder(folder)
        self.exchanged = Exchanged()
        self.clock = StepClock(self._recorder, int(os.environ.get("SCALESCOPE_STEPS") or 0), self.exchanged)
        self._interruptions = Interruptions(self._recorder, self.clock, self.exchanged, self._on_training)
        window = window_from_environment()
        self.capture = Capture(folder, self.clock, window) if window else None
        if self.capture:
            self._interruptions.on_mode = self.capture.listen
        self.tuned: Any = None  # Knobs, search and survey; as of rank zero, nothing is imported if nobody asks for it
        if any(os.environ.get(f"SCALESCOPE_{name}") for name in ("TUNE", "SURVEY", "KNOBS")):
            from .tuned import Tuned

            self.tuned = Tuned(folder, self.clock)
        self.rank_zero: Any = None  # Makes this process rank 0 of N
        if os.environ.get("SCALESCOPE_RANK_ZERO"):
            from .rank_zero import begin as begin_as_rank_zero

            self.rank_zero = begin_as_rank_zero(folder, self.clock, self._recorder.line, self._end)
        self._identity: dict[str, Any] = {"rank": rank_from_environment(), "world_size": 1}
        self._engine = group_live.NO_ENGINE
        self._halves = engine_file("halves_live")
        self._has_left = False
        since = int(os.environ.get("SCALESCOPE_SINCE_NS") or 0)
        self._stale_reads = StaleReads(since, folder) if since else None
        watches: dict[str, Any] = {
            "torch.distributed.checkpoint.state_dict": self._watch_states,
            "torch.distributed.distributed_c10d": self._watch_process_group,
            "torch.jit._recursive": self._interruptions.watch_scripting,
            "torch.nn.modules.module": self._interruptions.watch_modules,
            "torch.optim.optimizer": self._watch_optimizers,
            "torch.serialization": self._interruptions.watch_saving,
            "torch.utils.data._utils.worker": self._watch_workers,
            "torch.utils.data.dataloader": self._watch_loaders,
            "multiprocessing.util": self._watch_multiprocessing,
            **{module: self._watch_with(half) for module, half in self._halves.WATCHES.items()},
        }
        for name, replace in self.rank_zero.watches.items() if self.rank_zero else ():
            watches[name] = functools.partial(_both, replace, watches.get(name))  # what it replaces comes first
        self._imports = ImportWatch(watches)
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._end)

    def _after_fork(self) -> None:
        self._recorder.after_fork()
        parts: tuple[Any, ...] = (self.exchanged, self.clock, self._interruptions)
        for part in (*parts, self.tuned, self.capture, self.rank_zero):
            if part is not None:
                part.reset()

    def _watch_optimizers(self, module: Any) -> None:
        self.clock.watch_optimizers(module)
        if self.capture:
            self.capture.watch_optimizers(module)

    def _watch_states(self, module: Any) -> None:
        """An optimizer without state is stepped once, with gradients of zero, before a checkpoint is loaded into it."""
        if hasattr(module, "_init_optim_state"):
            module._init_optim_state = self.clock.no_step_inside(module._init_optim_state)

    def _watch_loaders(self, module: Any) -> None:
        self._interruptions.watch_loaders(module)
        if self.capture:
            self.capture.watch_loaders(module)

    def _watch_with(self, half: str) -> Any:
        return lambda module: engine_file(half).watch(module, self)

    def _watch_workers(self, module: Any) -> None:
        """A data-loader worker trains nothing, whatever its dataset does."""
        original = module._worker_loop
        leave = guarded("this data-loader worker is watched", self._leave)

        @functools.wraps(original)
        def loop(*arguments: Any, **options: Any) -> Any:
            leave()
            return original(*arguments, **options)

        module._worker_loop = loop

    def _leave(self) -> None:
        self._has_left = True
        if self._stale_reads:
            self._stale_reads.stop()
        self._imports.stop()
        self._interruptions.let_go()
        self.clock.unwatch_optimizers()

    def _watch_multiprocessing(self, module: Any) -> None:
        """See the end of its forked children, which end without atexit."""
        module.register_after_fork(self, lambda agent: module.Finalize(None, agent._end, exitpriority=0))

    def _become_rank(self) -> None:
        if self._recorder.is_rank or self._recorder.is_broken or self._has_left:
            return
        self._recorder.become_rank(STACK_SIGNAL)
        if self._recorder.is_broken:
            return
        try:
            self._stacks: Any = open(self._recorder.stack_path, "w")  # noqa: SIM115 - stays open for the signal handler
            faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=True)
        except OSError:
            self._stacks = None  # a full disk: the recorder has said so

    def _on_training(self, root: Any) -> None:
        """The first training forward (or, without one, the first optimizer step) is about to happen."""
        self._become_rank()
        if self.rank_zero:
            self._imports.pause()  # what saves is often imported when it saves
        else:
            self._imports.stop()
        self._recorder.line("import", ns=self._imports.seconds_ns)
        if self._engine == group_live.NO_ENGINE:
            self._engine = guarded("the engine is not known", self._engine_of)(root) or group_live.NO_ENGINE
        self._recorder.line("engine", name=self._engine)
        if self._stale_reads:
            self._stale_reads.stop()
            for path in self._stale_reads.found:
                self._recorder.line("read_changed_file", path=path)
        if self.capture:
            guarded("this rank is not traced", self.capture.on_training)(
                root, {**self._identity, "engine": self._engine}
            )
        if self.tuned:
            self.tuned.on_training(root, self._engine)
        if self.rank_zero:
            self.rank_zero.on_training(root)

    def _engine_of(self, root: Any) -> str:
        shown = (engine_file(half).engine_of(root) for half in self._halves.LOOKS_AT_MODELS)
        return self.exchanged.engine or next(filter(None, shown), "")

    def _watch_process_group(self, module: Any) -> None:
        if hasattr(module, "init_process_group"):
            module.init_process_group = self.timed_init(module.init_process_group, self._torch_identity)
            destroy = module.destroy_process_group

            @functools.wraps(destroy)
            def destroy_process_group(*arguments: Any, **options: Any) -> Any:
                _record_collectives(self._recorder)  # a group that is destroyed cannot be asked any more
                return destroy(*arguments, **options)

            module.destroy_process_group = destroy_process_group

    def timed_init(self, original: Any, identity: Any) -> Any:
        """A function that starts a process group, timed; `identity` is called after it."""
        begins = guarded("the start of the process group is not seen", self._init_begins)
        is_over = guarded("the process group is not seen", self._init_is_over)
        known = guarded("the rank is not known", identity)

        @functools.wraps(original)
        def init(*arguments: Any, **options: Any) -> Any:
            started = now()
            begins(started)
            try:
                result = original(*arguments, **options)
            finally:  # a script may go on without a group that could not be made
                is_over(started)
            known()
            return result

        return init

    def _init_begins(self, started: int) -> None:
        self._imports.pause()
        self._become_rank()
        self._recorder.line("init_begin", s=started)

    def _init_is_over(self, started: int) -> None:
        self._recorder.line("init", s=started, t=now())

    def _torch_identity(self) -> None:
        distributed = sys.modules["torch.distributed"]
        self.is_rank(distributed.get_rank(), distributed.get_world_size(), str(distributed.get_backend()))

    def is_rank(self, rank: int, world_size: int, backend: str, engine: str = "") -> None:
        """Record rank, number of processes and backend, and the engine if that is known by now."""
        self._engine = engine or self._engine
        self._identity = {"rank": rank, "world_size": world_size}
        self._recorder.line("rank", rank=rank, world_size=world_size, backend=backend)

    def _end(self) -> None:
        if self._has_left:
            return
        closing = [self.clock.close, self._interruptions.close]
        if self.capture:
            closing.append(self.capture.close)
        if self.rank_zero and self._recorder.is_rank:
            closing.append(self.rank_zero.close)
        if self.tuned and (self._recorder.is_rank or self._recorder.is_broken):
            closing.append(functools.partial(self.tuned.close, self._identity["rank"] or 0, self._engine))
        for close in closing:
            guarded("the end of the training is not recorded", close)()
        if self._recorder.is_rank:
            guarded("collectives are not counted", _record_collectives)(self._recorder)
            self._recorder.line("end", t=now())


def _both(first: Any, then: Any, module: Any) -> None:
    first(module)
    if then:
        then(module)


def _record_collectives(recorder: Recorder) -> None:
    """Ask all groups of this process, which count their collectives anyway."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        groups = list(distributed._world.pg_map)
        count = sum(group._get_sequence_number_for_group() for group in groups)
    except Exception:  # there is no torch.distributed, or this torch or backend does not count
        return
    if groups and recorder.is_rank:
        recorder.line("collectives", n=count)
