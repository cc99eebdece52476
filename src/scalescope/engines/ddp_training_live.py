"""DistributedDataParallel under a search: models that scripts wrap, knobs set as they do, and switches of them.

`SCALESCOPE_KNOBS` holds the knobs, as a JSON object; they go before what the script says itself. Standard library and
torch only.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import weakref
from collections.abc import Callable
from typing import Any

from . import ddp_live, ddp_refusal_live, sharded_live
from .group_live import ControlGroup, as_tensor, objection
from .room_live import no_room_for

_VIEW = "gradient_as_bucket_view"


class Wrappers:
    """The models that a script has wrapped in DistributedDataParallel, and what else speaks against a switch."""

    def __init__(self, tuned: Any) -> None:
        self._tuned = tuned
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self._values: dict[str, Any] = json.loads(os.environ.get("SCALESCOPE_KNOBS") or "{}")
        self._made: list[weakref.ref[Any]] = []
        self._with_our_hook: weakref.WeakSet[Any] = weakref.WeakSet()
        self._in_switch = False
        self._compiled = False
        self._sharded = ""  # Why the model cannot be tuned, if it is sharded

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
        if self._sharded:
            return self._sharded
        if len(wrappers) != 1:
            return f"the script has {len(wrappers)} models in DistributedDataParallel: one can be tuned"
        if self._compiled:
            return "the script uses torch.compile, under which knobs are not switched yet: leave it out while tuning"
        return refusal_of(wrappers[0])

    def note_root(self, root: Any) -> None:
        """See what kind of model is trained."""
        is_sharded = sharded_live.engine_of(root) not in ("", ddp_live.NAME)
        self._sharded = self._sharded or (sharded_live.NOT_TUNED if is_sharded else "")
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
        later = ddp_live.SET_AFTERWARDS if self._values else ()
        values = {name: self._values[name] for name in later if name in self._values}
        if values:
            self._in_switch = True
            try:
                self._switch(wrapper, values)
            finally:
                self._in_switch = False
        if self._tuned.waits:
            late = "the model was wrapped in DistributedDataParallel after the first steps"
            self._tuned.begin_search(DdpTraining(wrapper, self), late)
        else:
            self._tuned.trouble("the script wrapped another model in DistributedDataParallel")

    def _switch(self, wrapper: Any, values: dict[str, Any]) -> None:
        refused = ddp_refusal_live.refusal(wrapper)
        if refused:
            self._say(f"{' and '.join(values)} cannot be set: {refused}")
            return
        if why_not := ddp_live.switch_prepared(wrapper, values):
            self._say(f"hierarchical_allreduce is not used: {why_not}")
        elif values.get("hierarchical_allreduce"):
            self._with_our_hook.add(wrapper)

    def _with_way_made(self, original: Any) -> Any:
        """A communication hook of the script's own: ours goes, a wrapper has one only."""

        @functools.wraps(original)
        def register(wrapper: Any, *arguments: Any, **options: Any) -> Any:
            if wrapper in self._with_our_hook and not self._in_switch:
                self._with_our_hook.discard(wrapper)
                ddp_live.switch(
                    wrapper, {name: self._values[name] for name in ("first_bucket_mb",) if name in self._values}
                )
                self._say("hierarchical_allreduce is not used: the script has a communication hook of its own")
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

    def _say(self, line: str) -> None:
        if os.environ.get("RANK", "0") == "0":
            self._tuned.say(line)

    def _is_kin(self, model: Any) -> bool:
        """True if this is a wrapper or a model inside one."""
        made = [wrapper for wrapper in (reference() for reference in self._made) if wrapper is not None]
        return model is not None and any(model is wrapper or model is wrapper.module for wrapper in made)


def cannot_agree(ddp: Any) -> str:
    """Why ranks cannot agree on anything between steps: alike on every rank, so that none waits for the others."""
    import torch.distributed as dist

    if not dist.is_gloo_available():
        return "this torch has no gloo, over which ranks agree: install one that has it"
    if dist.get_world_size(ddp.process_group) != dist.get_world_size():
        return "the model's process group does not hold all ranks: leave process_group out"
    return ddp_refusal_live.UNEVEN_INPUTS if ddp._join_config.enable else ""


def refusal_of(ddp: Any) -> str:
    """Why this wrapper's knobs cannot be switched; empty: nothing is in the way."""
    return cannot_agree(ddp) or ddp_refusal_live.refusal(ddp)


class TorchControlGroup(ControlGroup):
    """The ranks of a process group that holds all of them, on a gloo group of their own."""

    engine = "ddp"

    def __init__(self, process_group: Any) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._training = process_group
        self._group: Any = dist.new_group(backend="gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.backend = str(dist.get_backend(process_group))
        super().__init__()

    def _gather(self, data: bytes) -> list[bytes]:
        import torch

        own = as_tensor(data)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self._dist.all_gather(rows, own, group=self._group)
        return [bytes(row.tolist()) for row in rows]

    def allreduce(self, tensor: Any, name: str) -> None:
        """Sum a tensor over the ranks as the training does."""
        self._dist.all_reduce(tensor, group=self._training)

    def close(self) -> None:
        """Close the connections of the group."""
        group, self._group = self._group, None
        self._dist.destroy_process_group(group)


class DdpTraining:
    """A model in DistributedDataParallel; `wrappers` knows what else the script has wrapped."""

    engine = "ddp"
    made = "a model was wrapped in DistributedDataParallel"

    def __init__(self, ddp: Any, wrappers: Wrappers | None = None) -> None:
        self.model, self._wrappers = ddp, wrappers
        self.hierarchical: Any = None
        self._default: dict[str, Any] = {}  # What was in force before the first switch; empty: there was none

    @functools.cached_property  # A script may end its process group before the last line is shown
    def is_first(self) -> bool:
        """True if this is rank 0."""
        import torch.distributed as dist

        return dist.get_rank() == 0

    def about(self) -> dict[str, Any]:
        """Describe its process group: world size, backend, device."""
        import torch.distributed as dist

        return {
            "world_size": dist.get_world_size(),
            "backend": str(dist.get_backend(self.model.process_group)),
            "device": next(self.model.parameters()).device.type,
        }

    def meet(self) -> tuple[ControlGroup | None, str]:
        """A gloo group of its own."""
        refused = cannot_agree(self.model)
        return (None, refused) if refused else (TorchControlGroup(self.model.process_group), "")

    def refusal(self) -> str:
        """Reason against a switch; empty: none."""
        return self._wrappers.refusal() if self._wrappers else refusal_of(self.model)

    def prepare(self, group: Any) -> dict[str, Any]:
        """Groups for hierarchical allreduce."""
        groups = ddp_live.groups_by_hosts(self.model)
        self.hierarchical = None if isinstance(groups, str) else groups
        self._default = ddp_live.current(self.model)
        return {"current": self._default, "fixed": ddp_refusal_live.fixed(self.model)}

    def is_busy(self) -> bool:
        """A finished step leaves nothing open."""
        return False

    def switch(self, values: dict[str, Any], variables: dict[str, str], group: Any) -> str:
        """A new reducer; no variable matters to it."""
        problem: str = group.agree(objection(lambda: self._obstacle(values, group)))
        if not problem:
            problem = group.agree(objection(lambda: ddp_live.switch(self.model, values)))
        if problem:
            self.restore(group)
        return problem

    def restore(self, group: Any) -> None:
        """The knobs as they were at first."""
        if self._default:
            ddp_live.switch(self.model, self._default)

    def fixed_by(self, values: dict[str, Any], problem: str) -> dict[str, str]:
        """Views of buckets may not be possible."""
        return {_VIEW: problem} if self._changes_view(values) else {}

    def finish(self) -> None:
        """Groups stay: the winner may need them."""

    @property
    def cannot_train(self) -> bool:
        """True for a model without a reducer."""
        return self.model.reducer is None

    def _obstacle(self, values: dict[str, Any], group: ControlGroup) -> str:
        """Why gradients cannot become views of buckets here, if that is asked for; the way back is always open."""
        if not self._changes_view(values) or ddp_live.current(self.model)[_VIEW] != self._default[_VIEW]:
            return ""
        parameters = list(self.model.parameters())
        needed = sum(each.numel() * each.element_size() for each in parameters if each.requires_grad)
        fixed: str = ddp_refusal_live.fixed(self.model).get(_VIEW, "")
        return fixed or no_room_for(needed, parameters[0].device, group.ranks_here)

    def _changes_view(self, values: dict[str, Any]) -> bool:
        return bool(values.get(_VIEW, self._default[_VIEW]) != self._default[_VIEW])

    def watch_leaving(self, client: Any) -> Callable[[], None]:
        """Ranks that join early make no more steps: all let go as they enter the context, which they do alike."""
        join: Any = importlib.import_module("torch.distributed.algorithms.join").Join
        construct = join.__init__

        @functools.wraps(construct)
        def constructor(context: Any, *arguments: Any, **options: Any) -> None:
            construct(context, *arguments, **options)
            if self.model._join_config.enable and any(each is self.model for each in context._joinables):
                client.detach()
                client.let_go(cannot_agree(self.model))

        def restore() -> None:
            if join.__init__ is constructor:
                join.__init__ = construct

        join.__init__ = constructor
        return restore
