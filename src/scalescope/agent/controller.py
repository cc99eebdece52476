"""Changes knobs of a training while it goes on: a search asks for samples, all ranks switch and measure alike.

Rank 0 hears what is to be done next, and the ranks gather what each of them says. Whatever fails in a rank it keeps
until they next agree: there all let go alike, the knobs are what they were at first, and the training goes on.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Generator
from statistics import median
from typing import Any

from .between import BetweenSteps, Step, Work
from .control_group import (
    FORMAT_VERSION,
    Controller,
    TorchControlGroup,
    first_trouble,
    in_trouble,
    let_go,
    objection,
    one_line,
)
from .knobs import Wrappers, cannot_agree, engine_file, no_room_for, refusal_of
from .recorder import now, say
from .steps import StepClock, StepsDone
from .survey import survey

_FIRST_STEPS = 2  # After these it is known how many optimizers make a step
# How long rank 0 waits for the search before all ranks make another step as they are.
_PATIENCE_NS, _LOOK_AGAIN_S = 5_000_000, 0.0005
_VIEW = "gradient_as_bucket_view"


class Conductor:
    """Leads one rank through a search."""

    def __init__(
        self, controller: Controller, ddp: Any, clock: StepClock | None = None, wrappers: Wrappers | None = None
    ) -> None:
        self._controller = controller
        self._ddp = ddp
        self._wrappers = wrappers
        self._between = BetweenSteps(clock, ddp)
        self._is_first = False
        self._said_hello = False
        self._waited = 0
        self.values: dict[str, Any] = {}  # What was switched to last; empty: the model is as it was
        self._default: dict[str, Any] = {}  # What was in force before the first switch; empty: there was none
        self._hierarchical: Any = None
        self._group: TorchControlGroup | None = None
        self._restore_join: Callable[[], None] = lambda: None
        self.is_decided = False  # Whether the last setting is in force, to stay
        # Why the search cannot go on, as far as this rank knows; the others hear it when they next agree.
        self.trouble = ""

    def attach(self) -> None:
        """Begin with the next steps; every rank does this between the same two steps."""
        import torch.distributed as dist

        self._is_first = dist.get_rank() == 0
        self._about = {
            "version": FORMAT_VERSION,
            "engine": "ddp",
            "world_size": dist.get_world_size(),
            "backend": str(dist.get_backend(self._ddp.process_group)),
            "device": next(self._ddp.parameters()).device.type,
        }
        self._live = engine_file("ddp_live")
        self._restore_join = self._watch_join()
        self._between.start(self._conduct(), _FIRST_STEPS)

    def detach(self) -> None:
        """Take every hook back; the setting that is in force stays."""
        self._restore_join()
        self._between.stop()

    def restore(self) -> None:
        """The knobs as they were at first; every rank does this between the same two steps."""
        if self._default:
            self._live.switch(self._ddp, self._default)
        self.values = {}

    def close(self, why_never: str) -> None:
        """The process ends: the last line, and the first one if the training never came so far."""
        self.detach()
        if not self._said_hello:
            self._hello(refused=why_never)
        self._tell("end", steps=self._between.clock.complete)

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._is_first:
            problem = objection(lambda: self._controller.tell({"kind": kind, **fields}))
            self.trouble = self.trouble or problem

    def _hello(self, **fields: Any) -> None:
        self._said_hello = True
        self._tell("hello", **self._about, **fields)

    # The ends that a search may come to before it is decided

    def _let_go(self, why: str) -> None:
        """Every rank does this between the same two steps."""
        self.restore()
        self._end(why, "as it was before")

    def _end(self, why: str, setting: str) -> None:
        if self._is_first:
            say(f"not tuned: {why}; the training goes on {setting}")
        if self._said_hello:
            self._tell("end", steps=self._between.clock.complete, problem=why)
        else:
            self._hello(refused=why)

    def _watch_join(self) -> Callable[[], None]:
        """Ranks that join early make no more steps: all let go as they enter the context, which they do alike."""
        join: Any = importlib.import_module("torch.distributed.algorithms.join").Join
        construct = join.__init__

        @functools.wraps(construct)
        def constructor(context: Any, *arguments: Any, **options: Any) -> None:
            construct(context, *arguments, **options)
            if self._ddp._join_config.enable and any(each is self._ddp for each in context._joinables):
                self.detach()
                self._let_go(cannot_agree(self._ddp))

        def restore() -> None:
            if join.__init__ is constructor:
                join.__init__ = construct

        join.__init__ = constructor
        return restore

    # The search

    def _conduct(self) -> Work:
        try:
            yield from self._search()
        except Exception as problem:
            # The ranks cannot agree any more, or there is an error here. The others get an error when they next try. No
            # knob changes now: those in force are the same on all ranks, and ranks with unlike buckets would hang.
            if self._group:
                objection(self._group.close)
            self._end(f"the search failed ({one_line(problem)})", "as it is")
            if self._ddp.reducer is None:  # neither a switch nor the way back succeeded: this rank cannot train
                raise
        finally:
            self._restore_join()

    def _search(self) -> Work:
        refused = cannot_agree(self._ddp)
        if not refused:
            self._group = TorchControlGroup(self._ddp.process_group)
            refused = self._group.agree(objection(self._refusal) or self.trouble)
        if refused:
            self._end(refused, "as it is")
            return
        assert self._group
        self._hello(refused="", **self._prepare())
        self._between.count_samples(self._ddp)
        while True:
            directive = yield from self._next_directive(self._group)
            kind = directive["kind"]
            if kind == "warmup":
                yield directive["steps"]
            elif kind == "survey":
                found = yield from survey(self._between, self._ddp, self._group, directive["steps"], self._hierarchical)
                self._tell("survey", id=directive["id"], survey=found)
            elif kind == "sample":
                yield from self._sample(directive, self._group)
            elif kind == "free":
                _, problem = self._switch(directive.get("values", {}), self._group)
                if problem:
                    self._let_go(problem)
                else:
                    self._tell("applied", id=directive["id"])
                    self.is_decided = True
                return
            elif kind == "stop":
                raise StepsDone
            else:
                self._let_go(directive.get("why") or f"a directive of the unknown kind {kind!r}")
                return

    def _refusal(self) -> str:
        return self._wrappers.refusal() if self._wrappers else refusal_of(self._ddp)

    def _prepare(self) -> dict[str, Any]:
        """Groups for hierarchical allreduce, and all that the search wants to know at first."""
        assert self._group
        groups = engine_file("hierarchical").prepare(self._ddp.process_group)
        self._hierarchical = None if isinstance(groups, str) else groups
        self._default = self._live.current(self._ddp)
        return {"hosts": self._group.hosts, "current": self._default, "fixed": self._live.held(self._ddp)}

    def _next_directive(self, group: TorchControlGroup) -> Generator[int, None, dict[str, Any]]:
        """Ask, and ask again after every step until it is known what comes next."""
        self._waited = 0
        while True:
            self._taken()
            if self.trouble:
                said = group.gather(in_trouble(self.trouble))
            else:
                said = group.gather((self._ask() if self._is_first else None) or {"kind": "wait"})
            trouble = first_trouble(said)
            if trouble:
                return let_go(trouble)
            if said[0]["kind"] != "wait":
                return said[0]
            self._waited += 1
            yield 1

    def _ask(self) -> dict[str, Any] | None:
        """The next directive, which may be on its way."""
        try:
            until = now() + (0 if self._waited else _PATIENCE_NS)
            asked = self._controller.ask()
            while asked is None and now() < until:
                time.sleep(_LOOK_AGAIN_S)
                asked = self._controller.ask()
        except Exception as problem:
            return let_go(one_line(problem))
        return asked

    def _switch(self, values: dict[str, Any], group: TorchControlGroup) -> tuple[int, str]:
        """Nanoseconds that it took, or why it was not done: all ranks switch, or none does."""
        if values == self.values:
            return 0, ""
        began = now()
        refused = group.agree(objection(self._refusal))
        self.trouble = self.trouble or refused
        problem = refused or group.agree(objection(lambda: self._obstacle(values, group)))
        if not problem:
            problem = group.agree(objection(lambda: self._live.switch(self._ddp, values)))
            if problem:
                self.restore()
        if problem:
            return 0, f"no switch to {values}: {problem}"
        self.values = values
        return now() - began, ""

    def _obstacle(self, values: dict[str, Any], group: TorchControlGroup) -> str:
        """Why gradients cannot become views of buckets here, if that is asked for; the way back is always open."""
        if not self._changes_view(values) or self._live.current(self._ddp)[_VIEW] != self._default[_VIEW]:
            return ""
        parameters = list(self._ddp.parameters())
        needed = sum(each.numel() * each.element_size() for each in parameters if each.requires_grad)
        fixed: str = self._live.held(self._ddp).get(_VIEW, "")
        return fixed or no_room_for(needed, parameters[0].device, group.ranks_here)

    def _changes_view(self, values: dict[str, Any]) -> bool:
        return bool(values.get(_VIEW, self._default[_VIEW]) != self._default[_VIEW])

    def _sample(self, directive: dict[str, Any], group: TorchControlGroup) -> Work:
        began, waited = now(), self._waited
        switch_ns, problem = self._switch(directive["values"], group)
        fixed = {_VIEW: problem} if problem and self._changes_view(directive["values"]) else {}
        measured: list[Step] = []
        cut, discard = False, 0
        if not problem:
            discard, left, limit_ns = directive["discard"], directive["steps"], directive.get("limit_ns") or 0
            check = min(directive.get("check") or 0, left) if limit_ns else 0
            if discard:
                yield discard
                self._taken()
            if check:
                yield check
                measured += self._taken()
                left -= check
                typical_ns = median(step.nanoseconds for step in measured) if measured else 0
                cut = group.share({"cut": bool(left and typical_ns > limit_ns)})["cut"]
            if left and not cut:
                yield left
                measured += self._taken()
            problem = "" if measured else "every step of it was interrupted"
        self._tell(
            "sample",
            id=directive["id"],
            step_ns=[step.nanoseconds for step in measured],
            samples=[step.samples for step in measured],
            cut=cut,
            switch_ns=switch_ns,
            discarded=discard,
            waited=waited,
            began_ns=began,
            ended_ns=now(),
            problem=problem,
            fixed=fixed,
        )

    def _taken(self) -> list[Step]:
        """The whole steps since this was last asked."""
        taken: list[Step] = []
        self.trouble = self.trouble or objection(lambda: taken.extend(self._between.take()))
        return [step for step in taken if step.whole]
