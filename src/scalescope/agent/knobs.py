"""Where rank 0 hears what the search wants next, and tells it what came of that.
DistributedDataParallel as scripts use it: which models they wrap, and knobs that are set as they do.

`SCALESCOPE_KNOBS` holds the knobs, as a JSON object; they go before what the script says itself.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import inspect
import json
import os
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from .recorder import now, say

FORMAT_VERSION = 1
PATIENCE_S = 120.0  # A search that does not answer for so long is believed to be gone


class Pilot(Protocol):
    """Where rank 0 hears what to do next and tells what came of it."""

    def ask(self) -> dict[str, Any] | None:
        """The next directive; None: not known yet."""

    def tell(self, line: dict[str, Any]) -> None:
        """Something happened."""


class FilePilot:
    """Directives are files in a folder, one after the other; answers are lines of pilot.jsonl there.

    A search that is gone, or that can be told nothing any more, is one that wants to let go.
    """

    def __init__(
        self, folder: str, is_alive: Callable[[], bool] = lambda: True, patience_s: float = PATIENCE_S
    ) -> None:
        self._folder, self._is_alive, self._patience_ns = folder, is_alive, int(patience_s * 1e9)
        self._next = self._waits_since = 0
        self._problem = ""

    def ask(self) -> dict[str, Any] | None:
        """What the next file holds, once it is there."""
        if self._problem:
            return let_go(self._problem)
        alive = self._is_alive()  # before the look: the last thing that a search writes still counts
        try:
            with open(os.path.join(self._folder, f"directive-{self._next:05d}.json")) as file:  # noqa: PTH118 - cheap
                directive: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            self._waits_since = self._waits_since or now()
            if not alive:
                return let_go("the process of the search has ended")
            if now() - self._waits_since > self._patience_ns:
                return let_go(f"the search has not answered for {self._patience_ns * 1e-9:.0f} s")
            return None
        except (OSError, ValueError) as problem:
            return let_go(f"what the search wants next cannot be read: {problem}")
        self._next += 1
        self._waits_since = 0
        return directive

    def tell(self, line: dict[str, Any]) -> None:
        """Append a line at once."""
        try:
            with open(os.path.join(self._folder, "pilot.jsonl"), "a") as file:  # noqa: PTH118
                file.write(json.dumps(line) + "\n")
        except OSError as problem:
            self._problem = f"the search cannot be told what was measured: {problem.strerror}"


def let_go(why: str) -> dict[str, Any]:
    """The directive to end the search and to leave the training as it was."""
    return {"kind": "let_go", "why": why}


_ENGINES = "scalescope_engines"
SHARDED = "the model is sharded by FSDP, whose knobs cannot be switched: wrap it in DistributedDataParallel if it fits"


def engine_file(name: str) -> Any:
    """A file of the engines that needs nothing but torch; where scalescope is not installed, by its path."""
    if __name__.startswith("scalescope."):
        return importlib.import_module(f"scalescope.engines.{name}")
    if _ENGINES not in sys.modules:
        home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - as in the hook
        package = types.ModuleType(_ENGINES)
        package.__path__ = [os.path.join(home, "engines")]  # noqa: PTH118
        package.__spec__ = importlib.machinery.ModuleSpec(_ENGINES, None, is_package=True)
        sys.modules[_ENGINES] = package
    return importlib.import_module(f"{_ENGINES}.{name}")


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
        self.sharded = False  # Whether the model is one of FSDP's

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
            return SHARDED
        if len(wrappers) != 1:
            return f"the script has {len(wrappers)} models in DistributedDataParallel: one can be tuned"
        if self._compiled:
            return "the script uses torch.compile, under which knobs are not switched yet: leave it out while tuning"
        return refusal_of(wrappers[0])

    def note_root(self, root: Any) -> None:
        """See what kind of model is trained."""
        for part in () if root is None else root.modules():
            names = {kind.__name__ for kind in type(part).__mro__}
            self.sharded |= bool(names & {"FullyShardedDataParallel", "FSDPModule"})
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


def cannot_meet(ddp: Any) -> str:
    """Why ranks cannot agree on anything between steps: alike on every rank, so that none waits for the others."""
    import torch.distributed as dist

    if not dist.is_gloo_available():
        return "this torch has no gloo, over which ranks agree: install one that has it"
    if dist.get_world_size(ddp.process_group) != dist.get_world_size():
        return "the model's process group does not hold all ranks: leave process_group out"
    return str(engine_file("ddp_refusal_live").UNEVEN_INPUTS) if ddp._join_config.enable else ""


def refusal_of(ddp: Any) -> str:
    """Why this wrapper's knobs cannot be switched; empty: nothing is in the way."""
    return cannot_meet(ddp) or str(engine_file("ddp_live").refusal(ddp))


def _say_once(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        say(line)
