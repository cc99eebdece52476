"""Runs an unchanged script as rank 0 of N, of which no other rank exists, and ends it once enough steps were seen.

`SCALESCOPE_RANK_ZERO=N:PER_NODE:SECONDS` asks for it; `:writes` after it lets the script save. Steps that are timed and
steps that are recorded take turns: what recording costs is in none of the times that count.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .between import BetweenSteps, Work
from .interruptions import ModelHook
from .rank_zero_group import Seams
from .rank_zero_recording import Recording
from .rank_zero_writes import Writes
from .recorder import RANK_VARIABLES, guarded, now, reason, say
from .script_hooks import never_compile
from .steps import StepClock

EXIT_CODE = 86  # Of a process that we end, for the parent to know
REFUSED = "not run as rank 0 of N: "  # Before the reason, in a line for the parent
LAUNCHED_AS = (*RANK_VARIABLES, "LOCAL_RANK")
_WARM_UP = 3  # DDP makes its buckets anew in the second step, in the third with a static graph
_AFTER_RECORDING = 1  # Steps after a recorded one that do not count; on a GPU one more, for the host's head start
_FEWEST, _MOST = 4, 200  # Steps of a block that are timed
_BLOCK_S = 0.25
_FEWEST_ROUNDS, _MOST_ROUNDS = 2, 20
_ATTEMPTS = 3
_BETWEEN = "scalescope: between two steps"


class Asked(NamedTuple):
    """A request of the parent."""

    ranks: int
    per_node: int
    seconds: float  # After which no further block of steps begins
    may_write: bool


def begin(folder: str, clock: StepClock, line: Callable[..., None], end: Callable[[], None]) -> RankZero | None:
    """Pretend in this process; None where nobody asks for it. Other ranks of a launch line end here.

    Args:
        folder: That of the launch.
        clock: Counts the steps.
        line: Writes a line into this process's record.
        end: Closes the record.
    """
    words = os.environ.get("SCALESCOPE_RANK_ZERO", "").split(":")
    if len(words) < 3:
        return None
    if any(os.environ.get(name, "").isdigit() and int(os.environ[name]) > 0 for name in LAUNCHED_AS):
        os._exit(0)
    asked = Asked(int(words[0]), int(words[1]), float(words[2]), "writes" in words[3:])
    return RankZero(folder, asked, clock, line, end)


class RankZero:
    """One process that runs as rank 0 of N, and what is seen of it."""

    never_compile = staticmethod(never_compile)  # for the engines, which import nothing of the agent

    def __init__(
        self, folder: str, asked: Asked, clock: StepClock, line: Callable[..., None], end: Callable[[], None]
    ) -> None:
        self._asked, self._clock, self._line, self._end = asked, clock, line, end
        self._warned: list[str] = []
        self.recording = Recording()
        self._seams = Seams(asked.ranks, self.recording, self._warn, self._miss, self._refuse)
        self._writes = None if asked.may_write else Writes(folder, self._saved, self._warn)
        self.reset()
        os.environ.update(_variables(asked))
        self.watches: dict[str, Callable[[Any], None]] = {
            "torch.distributed.distributed_c10d": self._take_over,
            "torch.utils.data.dataloader": self._watch_loaders,
            **(self._writes.watches if self._writes else {}),
            **dict.fromkeys(
                ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"), self._lightning
            ),
        }

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self._pid = os.getpid()
        self._closed = False
        self._between: BetweenSteps | None = None
        self._root: Any = None
        self._is_gpu = False
        self._losses: list[Any] = []
        self._loaders: list[list[int]] = []
        self._build_bytes = self._weighed = 0

    # What a script shows

    def _warn(self, sentence: str, kind: str = "rank_zero_warning") -> None:
        if sentence not in self._warned and len(self._warned) < 50:
            self._warned.append(sentence)
            self._line(kind, text=sentence)

    def _miss(self, sentence: str) -> None:
        """Warn of what only another rank could have told: a script that fails later may have needed it."""
        self._warn(sentence, "rank_zero_peer")

    def _saved(self, what: str) -> None:
        self._line("rank_zero_save", text=what)

    def _refuse(self, why: str) -> None:
        """End this process, which cannot be rank 0 of ranks that do not exist."""
        say(f"{REFUSED}{why}")
        os._exit(EXIT_CODE)

    def _take_over(self, module: Any) -> None:
        try:
            self._seams.replace(module)
        except Exception as problem:
            version = getattr(sys.modules.get("torch.version"), "__version__", "?")
            self._refuse(f"no process group without other ranks could be made in torch {version}: {reason(problem)}")

    def _lightning(self, module: Any) -> None:
        """Set Lightning's devices to 1 and its num_nodes to N: its Trainer compares them with the number of ranks."""
        original, nodes = module.Trainer.__init__, self._asked.ranks

        @functools.wraps(original)
        def construct(trainer: Any, *arguments: Any, **options: Any) -> None:
            options.update(devices=1, num_nodes=nodes)
            original(trainer, *arguments, **options)

        module.Trainer.__init__ = construct

    def _watch_loaders(self, module: Any) -> None:
        """An epoch of N ranks may have no batch, or a short one only."""
        original = module.DataLoader.__iter__

        @functools.wraps(original)
        def passes(loader: Any) -> Any:
            guarded("batches of an epoch are not counted", self._note_loader)(loader)
            return original(loader)

        module.DataLoader.__iter__ = passes

    def _note_loader(self, loader: Any) -> None:
        try:
            batches = len(loader)
        except TypeError:  # nobody knows
            return
        found = [getattr(loader, "batch_size", None) or 0, batches]
        if found not in self._loaders and len(self._loaders) < 10:
            self._loaders.append(found)
            self._line("rank_zero_loader", batch=found[0], batches=batches)

    # Steps

    def on_training(self, root: Any) -> None:
        """The first training forward is about to happen."""
        self._root = root
        parameter = None if root is None else next(root.parameters(), None)
        self._is_gpu = (parameter is not None and parameter.is_cuda) or _has_used_gpu()  # FSDP2 may offload parameters
        if self._is_gpu:
            self.recording.use_gpu()
        guarded("phases of a step are not seen", self._watch_phases)(root)
        self._build_bytes = self._peak_bytes()
        self._forget_peak()
        self._between = between = BetweenSteps(self._clock)
        between.start(self._conduct(between), _WARM_UP)

    def _watch_phases(self, root: Any) -> None:
        """Inert but for recorded steps."""
        import torch

        recording, autograd = self.recording, torch.autograd
        original: Any = autograd.backward

        def backward(*arguments: Any, **options: Any) -> Any:
            if not recording.is_on:
                return original(*arguments, **options)
            recording.enter("backward")
            try:
                return original(*arguments, **options)
            finally:
                recording.leave("backward")
                guarded("the loss is not looked at", self._look_at_loss)(*arguments, **options)

        autograd.backward = backward

        def around(mark: Callable[[str], None]) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                if not torch.compiler.is_dynamo_compiling():  # what torch.compile makes of a step must not depend on us
                    mark("optimizer")

            return hook

        optimizers: Any = sys.modules.get("torch.optim.optimizer")
        if optimizers is not None:
            optimizers.register_optimizer_step_pre_hook(around(recording.enter))
            optimizers.register_optimizer_step_post_hook(around(recording.leave))
        if root is not None and getattr(root, "_compiled_call_impl", None) is None:
            enter, leave = lambda *_: recording.enter("forward"), lambda *_: recording.leave("forward")
            root.register_forward_pre_hook(ModelHook(enter), prepend=True, with_kwargs=True)
            root.register_forward_hook(ModelHook(leave))

    def _look_at_loss(self, *arguments: Any, **options: Any) -> None:
        tensors = arguments[0] if arguments else options.get("tensors")
        for each in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
            self._losses.append(each.detach().isfinite().all())

    def _conduct(self, between: BetweenSteps) -> Work:
        """Timed and recorded steps in turns, until enough of both were seen; then the process ends."""
        began = time.monotonic()
        after = _AFTER_RECORDING + self._is_gpu
        steps = _FEWEST
        for number in range(_MOST_ROUNDS):
            if number >= _FEWEST_ROUNDS and time.monotonic() - began > self._asked.seconds:
                break
            yield after
            between.take()
            # Nothing waits for a GPU here: its clock is in the stream, and a host without its head start delays steps.
            first, cpu, wall = self._clock.complete, time.process_time(), now()
            yield steps
            seconds, cpu = (now() - wall) * 1e-9, time.process_time() - cpu
            self._line("rank_zero_timed", first=first, steps=steps, cpu=cpu, seconds=seconds)
            taken = between.take()
            steps = max(_FEWEST, min(_MOST, round(_BLOCK_S * len(taken) / max(seconds, 1e-6))))
            yield from self._record(between)
            if not number and not self._is_gpu:
                yield from self._weigh()
        self._finish()
        yield 1

    def _record(self, between: BetweenSteps) -> Work:
        """Record the next step; where an evaluation or the start of an epoch lay before it, rather one after it."""
        for attempt in range(_ATTEMPTS):
            self._clock.interrupt()  # looks closely at the step that is recorded
            self.recording.begin()
            yield 1
            self.recording.end()
            step, finite = between.take()[-1], all(bool(each) for each in self._losses)
            self._losses.clear()
            if step.whole or attempt == _ATTEMPTS - 1:
                groups = [list(each) for each in self.recording.groups]
                summary = self.recording.summary(0 if step.whole else step.begin)
                self._line("rank_zero_step", samples=step.samples, finite=finite, groups=groups, **summary)
                break

    # Memory

    def _weigh(self) -> Work:
        """Over two steps: what is resident between them, and how much more the second one allocates at its peak.

        The first makes known what the second frees. Memory that the allocator keeps for later is not what a step needs:
        it is given back before it is looked at.
        """
        import torch

        profiler: Any = torch.autograd.profiler
        if getattr(profiler, "_is_profiler_enabled", False):  # the script profiles itself
            return
        profile = profiler.profile(profile_memory=True)
        profile.__enter__()
        try:
            yield 1
            _give_back()
            resident = _status("VmRSS:")
            between_steps()
            yield 1
        finally:
            profile.__exit__(None, None, None)
        self._weighed = resident + risen_bytes(profile) if resident else 0

    def _forget_peak(self) -> None:
        """Reset the peak of memory: building the model may take more than a step does."""
        if self._is_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats()
            return
        _give_back()
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")

    def _peak_bytes(self) -> int:
        """The most that torch allocated on its GPU, that a step of this process needed, or that was resident of it."""
        if self._is_gpu:
            import torch

            return int(torch.cuda.max_memory_allocated())
        return self._weighed or _status("VmHWM:")

    # The end

    def _finish(self) -> None:
        """End this process here: neither what the script does at its end nor its `finally` may save anything."""
        self.close("enough")
        self._end()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        if os.getppid() != 1 and os.getsid(0) != os.getpid():  # what started this process would notice and go on
            time.sleep(5.0)  # The parent ends all of them as soon as it has read the last line
        os._exit(EXIT_CODE)

    def close(self, why: str = "ended") -> None:
        """Write what is known at the end; once, and only in the process that trains."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self.recording.is_on = False
        if self._between and why == "ended":  # in the middle of something: a profiler that is left open breaks the exit
            self._between.stop()
        import torch

        trained = self._root is not None
        facts: dict[str, Any] = {}
        if trained:
            with contextlib.suppress(Exception):
                facts["finite"] = _is_finite(self._root)
            facts.update(memory=self._peak_bytes(), build=self._build_bytes, gpu="")
            if self._is_gpu:
                facts["gpu"] = torch.cuda.get_device_name()
                facts["limit"] = int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
        self._line(
            "rank_zero_end",
            why=why,
            steps=self._clock.complete,
            backend=self._seams.backend or ("nccl" if self._is_gpu else "gloo") if self.recording.groups else "",
            torch=torch.__version__,
            threads=torch.get_num_threads(),
            **facts,
        )


def between_steps() -> None:
    """Mark the point in a profile of torch's from which `risen_bytes` counts."""
    import torch

    with torch.autograd.profiler.record_function(_BETWEEN):
        pass


def risen_bytes(profile: Any) -> int:
    """Bytes by which allocations rose, at their peak, above what was allocated between two steps."""
    events = sorted(profile.kineto_results.events(), key=lambda each: each.start_ns())
    level = start = most = 0
    for each in events:
        if each.name() == _BETWEEN:
            start = most = level
        elif each.name() == "[memory]":
            level += each.nbytes()
            most = max(most, level)
    return most - start


def _give_back() -> None:
    """Let the allocator return what is free."""
    with contextlib.suppress(Exception):  # another libc
        ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    """Bytes of this process, as Linux tells; 0: it does not."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def _has_used_gpu() -> bool:
    import torch

    cuda: Any = torch.cuda
    return bool(cuda.is_available() and cuda.is_initialized() and cuda.memory_allocated() > 0)


def _is_finite(root: Any) -> bool:
    """True if all parameters are finite; of sharded ones the shards that this rank holds."""
    import torch

    for each in root.parameters():
        own = each.detach()
        own = own.to_local() if hasattr(own, "to_local") else own
        if own.is_floating_point() and not bool(torch.isfinite(own).all()):
            return False
    return True


def _variables(asked: Asked) -> dict[str, str]:
    """Environment variables that torchrun would set for rank 0."""
    per_node = min(asked.per_node, asked.ranks)
    nodes = max(asked.ranks // per_node, 1)
    given = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in os.environ}
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(asked.ranks),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": "0",
        "ROLE_WORLD_SIZE": str(asked.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "scalescope",
        **given,
        # Fabric takes them from here, where `fabric run` writes them.
        "LT_DEVICES": "1",
        "LT_NUM_NODES": str(asked.ranks),
        "WANDB_MODE": "disabled",
    }
