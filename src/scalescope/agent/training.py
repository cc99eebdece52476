"""What a search can switch in a rank: the contract of every engine, and DistributedDataParallel's side of it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

from .control_group import ControlGroup, TorchControlGroup, objection
from .halves import engine_file
from .knobs import Wrappers, cannot_agree, no_room_for, refusal_of

_VIEW = "gradient_as_bucket_view"


class Training(Protocol):
    """What can be switched in this rank: one kind per engine."""

    engine: str
    made: str  # What the script did to be tuned
    model: Any  # None: nobody has seen it
    hierarchical: Any  # What has an `allreduce` by hosts, or None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""

    def about(self) -> dict[str, Any]:
        """For the first line to the search: world_size, backend, device."""

    def meet(self) -> tuple[ControlGroup | None, str]:
        """The group in which ranks agree, or why there is none: alike on every rank."""

    def refusal(self) -> str:
        """Why knobs cannot change, as far as this rank knows; empty: they can."""

    def prepare(self, group: Any) -> dict[str, Any]:
        """Everything that switches need; what the search wants to know: current, fixed and so on."""

    def is_busy(self) -> bool:
        """Whether the script is in the middle of something: the switch has to wait for another step."""

    def switch(self, values: dict[str, Any], variables: dict[str, str], group: Any) -> str:
        """On every rank: to these values, changed from those at first; or to those at first, and why."""

    def fixed_by(self, values: dict[str, Any], problem: str) -> dict[str, str]:
        """Knobs that a problem with these values shows to be unchangeable, and why."""

    def restore(self, group: Any) -> None:
        """On every rank: the knobs as they were at first."""

    def finish(self) -> None:
        """The search is over in this rank: what only switches need can go."""

    def watch_leaving(self, conductor: Any) -> Callable[[], None]:
        """See when ranks stop to make steps together; returns how to see it no more."""

    @property
    def cannot_train(self) -> bool:
        """Whether a switch went so wrong that there is no exchange any more."""


class DdpTraining:
    """A model in DistributedDataParallel; `wrappers` knows what else the script has wrapped."""

    engine = "ddp"
    made = "a model was wrapped in DistributedDataParallel"

    def __init__(self, ddp: Any, wrappers: Wrappers | None = None) -> None:
        self.model, self._wrappers = ddp, wrappers
        self.hierarchical: Any = None
        self._live = engine_file("ddp_live")
        self._default: dict[str, Any] = {}  # What was in force before the first switch; empty: there was none

    @functools.cached_property  # A script may end its process group before the last line is told
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        import torch.distributed as dist

        return dist.get_rank() == 0

    def about(self) -> dict[str, Any]:
        """Of its process group."""
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
        """What speaks against a switch."""
        return self._wrappers.refusal() if self._wrappers else refusal_of(self.model)

    def prepare(self, group: Any) -> dict[str, Any]:
        """Groups for hierarchical allreduce."""
        groups = engine_file("hierarchical").prepare(self.model.process_group)
        self.hierarchical = None if isinstance(groups, str) else groups
        self._default = self._live.current(self.model)
        return {"current": self._default, "fixed": self._live.held(self.model)}

    def is_busy(self) -> bool:
        """A finished step leaves nothing open."""
        return False

    def switch(self, values: dict[str, Any], variables: dict[str, str], group: Any) -> str:
        """A new reducer; no variable matters to it."""
        problem: str = group.agree(objection(lambda: self._obstacle(values, group)))
        if not problem:
            problem = group.agree(objection(lambda: self._live.switch(self.model, values)))
        if problem:
            self.restore(group)
        return problem

    def restore(self, group: Any) -> None:
        """The knobs as they were at first."""
        if self._default:
            self._live.switch(self.model, self._default)

    def fixed_by(self, values: dict[str, Any], problem: str) -> dict[str, str]:
        """Views of buckets may not be possible."""
        return {_VIEW: problem} if self._changes_view(values) else {}

    def finish(self) -> None:
        """Groups stay: the winner may need them."""

    @property
    def cannot_train(self) -> bool:
        """Without a reducer."""
        return self.model.reducer is None

    def _obstacle(self, values: dict[str, Any], group: ControlGroup) -> str:
        """Why gradients cannot become views of buckets here, if that is asked for; the way back is always open."""
        if not self._changes_view(values) or self._live.current(self.model)[_VIEW] != self._default[_VIEW]:
            return ""
        parameters = list(self.model.parameters())
        needed = sum(each.numel() * each.element_size() for each in parameters if each.requires_grad)
        fixed: str = self._live.held(self.model).get(_VIEW, "")
        return fixed or no_room_for(needed, parameters[0].device, group.ranks_here)

    def _changes_view(self, values: dict[str, Any]) -> bool:
        return bool(values.get(_VIEW, self._default[_VIEW]) != self._default[_VIEW])

    def watch_leaving(self, conductor: Any) -> Callable[[], None]:
        """Ranks that join early make no more steps: all let go as they enter the context, which they do alike."""
        join: Any = importlib.import_module("torch.distributed.algorithms.join").Join
        construct = join.__init__

        @functools.wraps(construct)
        def constructor(context: Any, *arguments: Any, **options: Any) -> None:
            construct(context, *arguments, **options)
            if self.model._join_config.enable and any(each is self.model for each in context._joinables):
                conductor.detach()
                conductor.let_go(cannot_agree(self.model))

        def restore() -> None:
            if join.__init__ is constructor:
                join.__init__ = construct

        join.__init__ = constructor
        return restore
