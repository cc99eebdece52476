"""DistributedDataParallel as scripts use it: which models they wrap, knobs set as they do, and what forbids a switch.

`SCALESCOPE_KNOBS` holds the knobs, as a JSON object; they go before what the script says itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import weakref
from collections.abc import Callable
from typing import Any

from .halves import engine_file
from .recorder import say


class Wrappers:
    """The models that a script has wrapped in DistributedDataParallel, and what else speaks against a switch."""

    def __init__(self, on_wrapped: Callable[[Any], None]) -> None:
        self._on_wrapped = on_wrapped
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self._values: dict[str, Any] = json.loads(os.environ.get("SCALESCOPE_KNOBS") or "{}")
        self._made: list[weakref.ref[Any]] = []
        self._with_our_hook: weakref.WeakSet[Any] = weakref.WeakSet()
        self._in_switch = False
        self._compiled = False
        self.sharded = ""  # Why the model cannot be tuned, if it is sharded

    @property
    def alive(self) -> list[Any]:
        """The wrappers that are still there, alike on every rank."""
        if len(self._made) > 1:
            import gc

            gc.collect()
        return [wrapper for wrapper in (reference() for reference in self._made) if wrapper is not None]

    def refusal(self) -> str:
        """Why the knobs of what was wrapped cannot be switched; empty: nothing is in the way."""
        wrappers = self.alive
        if self.sharded:
            return self.sharded
        if len(wrappers) != 1:
            return f"the script has {len(wrappers)} models in DistributedDataParallel: one can be tuned"
        if self._compiled:
            return "the script uses torch.compile, under which knobs are not switched yet: leave it out while tuning"
        return refusal_of(wrappers[0])

    def note_root(self, root: Any) -> None:
        """See what kind of model is trained."""
        sharded = engine_file("sharded_live")
        self.sharded = self.sharded or (sharded.NOT_TUNED if sharded.engine_of(root) else "")
        for part in () if root is None else root.modules():
            self._compiled |= self._is_kin(getattr(part, "_orig_mod", None))

    # What is watched, as soon as its module has been imported

    def watch(self, module: Any) -> None:
        """See every wrapper, and give it the knobs."""
        kind = module.DistributedDataParallel
        construct = kind.__init__
        signature = inspect.signature(construct)

        @functools.wraps(construct)
        def constructor(wrapper: Any, *arguments: Any, **options: Any) -> None:
            given = signature.bind(wrapper, *arguments, **options)
            for name in self._values.keys() & signature.parameters.keys():
                given.arguments[name] = self._values[name]
            if "bucket_cap_mb" in self._values and "bucket_cap_mb_list" in given.arguments:
                given.arguments["bucket_cap_mb_list"] = None
            construct(*given.args, **given.kwargs)
            self._has_wrapped(wrapper)

        kind.__init__ = constructor
        for name in ("register_comm_hook", "_register_builtin_comm_hook"):
            if hasattr(kind, name):
                setattr(kind, name, self._with_way_made(getattr(kind, name)))

    def _has_wrapped(self, wrapper: Any) -> None:
        if not self._made:
            self._watch_compile()
        self._made.append(weakref.ref(wrapper))
        later = engine_file("ddp_live").SET_AFTERWARDS if self._values else ()
        values = {name: self._values[name] for name in later if name in self._values}
        if values:
            self._in_switch = True
            try:
                self._switch(wrapper, values)
            finally:
                self._in_switch = False
        self._on_wrapped(wrapper)

    def _switch(self, wrapper: Any, values: dict[str, Any]) -> None:
        live = engine_file("ddp_live")
        refused = live.refusal(wrapper)
        if refused:
            _say_once(f"{' and '.join(values)} cannot be set: {refused}")
            return
        if values.get("hierarchical_allreduce"):
            groups = engine_file("hierarchical").prepare(wrapper.process_group)
            if isinstance(groups, str):
                _say_once(f"hierarchical_allreduce is not used: {groups}")
                del values["hierarchical_allreduce"]
            else:
                self._with_our_hook.add(wrapper)
        live.switch(wrapper, values)

    def _with_way_made(self, original: Any) -> Any:
        """A communication hook of the script's own: ours goes, a wrapper has one only."""

        @functools.wraps(original)
        def register(wrapper: Any, *arguments: Any, **options: Any) -> Any:
            if wrapper in self._with_our_hook and not self._in_switch:
                self._with_our_hook.discard(wrapper)
                engine_file("ddp_live").switch(
                    wrapper, {name: self._values[name] for name in ("first_bucket_mb",) if name in self._values}
                )
                _say_once("hierarchical_allreduce is not used: the script has a communication hook of its own")
            return original(wrapper, *arguments, **options)

        return register

    def _watch_compile(self) -> None:
        """Whatever is compiled after the model was wrapped may call it, unless it is another model."""
        import torch

        namespace: Any = torch
        original = namespace.compile
        if hasattr(original, "scalescope_original"):
            return

        @functools.wraps(original)
        def compile_(model: Any = None, *arguments: Any, **options: Any) -> Any:
            subject = getattr(model, "__self__", model)
            self._compiled |= not isinstance(subject, torch.nn.Module) or self._is_kin(subject)
            return original(model, *arguments, **options)

        compile_.scalescope_original = original  # type: ignore[attr-defined]
        namespace.compile = compile_

    def _is_kin(self, model: Any) -> bool:
        """Whether this is a wrapper or a model inside one."""
        made = [wrapper for wrapper in (reference() for reference in self._made) if wrapper is not None]
        return model is not None and any(model is wrapper or model is wrapper.module for wrapper in made)


def cannot_agree(ddp: Any) -> str:
    """Why ranks cannot agree on anything between steps: alike on every rank, so that none waits for the others."""
    import torch.distributed as dist

    if not dist.is_gloo_available():
        return "this torch has no gloo, over which ranks agree: install one that has it"
    if dist.get_world_size(ddp.process_group) != dist.get_world_size():
        return "the model's process group does not hold all ranks: leave process_group out"
    return str(engine_file("ddp_refusal_live").UNEVEN_INPUTS) if ddp._join_config.enable else ""


def refusal_of(ddp: Any) -> str:
    """Why this wrapper's knobs cannot be switched; empty: nothing is in the way."""
    return cannot_agree(ddp) or str(engine_file("ddp_live").refusal(ddp))


def no_room_for(
    needed: int, device: Any, ranks_here: int, *, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup"
) -> str:
    """Why `needed` bytes are too many, in one line: they are more than half of what is free; empty: they are not.

    Args:
        needed: Bytes that this rank is about to take.
        device: The torch.device that is to hold them.
        ranks_here: Ranks of this host, each of which takes as much.
        proc: The folder in which the kernel accounts for memory.
        cgroup: The folder in which it does so for this container.
    """
    free = _free_on_gpu(device) if device.type == "cuda" else _free_on_host(proc, cgroup) // max(ranks_here, 1)
    return f"{needed >> 20} MiB are needed and {free >> 20} MiB are free" if 2 * needed > free else ""


def _free_on_gpu(device: Any) -> int:
    """What nobody has, and what this process holds in reserve."""
    import torch

    cuda: Any = torch.cuda
    free, _ = cuda.mem_get_info(device)
    return int(free + cuda.memory_reserved(device) - cuda.memory_allocated(device))


def _free_on_host(proc: str, cgroup: str) -> int:
    """Of the machine, or of the container where that has less; where neither tells, any amount."""
    free = [_named(f"{proc}/meminfo", "MemAvailable:", 1 << 50) << 10]
    with contextlib.suppress(OSError, ValueError), open(f"{cgroup}/memory.max") as limit:
        with open(f"{cgroup}/memory.current") as current:
            used = int(current.read()) - _named(f"{cgroup}/memory.stat", "inactive_file", 0)  # a cache gives way
        free.append(int(limit.read()) - used)
    return max(min(free), 0)


def _named(path: str, name: str, otherwise: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(name)), otherwise)
    return otherwise


def _say_once(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        say(line)
