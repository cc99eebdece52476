"""Changes knobs of a training while it goes on: a search asks for samples, all ranks switch and measure alike.

Rank 0 hears what is to be done next, and the ranks gather what each of them says. Whatever fails in a rank it keeps
until they next agree: there all let go alike, the knobs are what they were at first, and the training goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from statistics import median
from typing import Any, Protocol

from .between import BetweenSteps, Step, Work
from .halves import group_live
from .recorder import now, say
from .search_files import FORMAT_VERSION, let_go
from .steps import StepClock, StepsDone
from .survey import survey

_FIRST_STEPS = 2  # After these it is known how many optimizers make a step
# How long rank 0 waits for the search before all ranks make another step as they are.
_PATIENCE_NS, _LOOK_AGAIN_S = 5_000_000, 0.0005
_LONGEST_BUSY = 50  # Steps for which a switch is put off


class Controller(Protocol):
    """The search as rank 0 sees it: directives in, reports out."""

    def ask(self) -> dict[str, Any] | None:
        """The next directive; None: not known yet."""

    def tell(self, line: dict[str, Any]) -> None:
        """Something happened."""


class Training(Protocol):
    """A training whose knobs can be switched in this rank; the live half of every engine has its own side of it."""

    engine: str
    made: str  # What the script did to be tuned
    model: Any  # None: nobody has seen it
    hierarchical: Any  # What has an `allreduce` by hosts, or None

    @property
    def is_first(self) -> bool:
        """True on rank 0."""

    def about(self) -> dict[str, Any]:
        """For the first line to the search: world_size, backend, device."""

    def meet(self) -> tuple[Any, str]:
        """The group in which ranks agree, or why there is none: alike on every rank."""

    def refusal(self) -> str:
        """Why knobs cannot change, as far as this rank knows; empty: they can."""

    def prepare(self, group: Any) -> dict[str, Any]:
        """Prepare switches; returns what the search wants to know: current values, fixed knobs and so on."""

    def is_busy(self) -> bool:
        """True while the script is in the middle of something: the switch has to wait for another step."""

    def switch(self, values: dict[str, Any], variables: dict[str, str], group: Any) -> str:
        """On every rank: to these values, changed from those at first; or to those at first, and why."""

    def fixed_by(self, values: dict[str, Any], problem: str) -> dict[str, str]:
        """Knobs that a problem with these values shows to be unchangeable, and why."""

    def restore(self, group: Any) -> None:
        """On every rank: the knobs as they were at first."""

    def finish(self) -> None:
        """The search is over in this rank: what only switches need can go."""

    def watch_leaving(self, client: Any) -> Callable[[], None]:
        """See when ranks stop to make steps together; returns how to see it no more."""

    @property
    def cannot_train(self) -> bool:
        """True when a switch went so wrong that there is no exchange any more."""


class SearchClient:
    """Leads one rank through a search."""

    def __init__(self, controller: Controller, training: Training, clock: StepClock | None = None) -> None:
        self._controller = controller
        self._training = training
        self.made = training.made
        self._between = BetweenSteps(clock, training.model)
        self._said_hello = False
        self._waited = 0
        self.values: dict[str, Any] = {}  # What was switched to last; empty: the training is as it was
        self._variables: dict[str, str] = {}
        self._group: Any = None
        self._stop_watching: Callable[[], None] = lambda: None
        self._left = ""  # Why ranks make no steps together for now
        self.is_over = False  # Whether the search has ended here, in whatever way
        self.is_decided = False  # Whether the last setting is in force, to stay
        # Why the search cannot go on, as far as this rank knows; the others hear it when they next agree.
        self.trouble = ""

    def attach(self) -> None:
        """Begin with the next steps; every rank does this between the same two steps."""
        self._about = {"version": FORMAT_VERSION, "engine": self._training.engine, **self._training.about()}
        self._stop_watching = self._training.watch_leaving(self)
        self._between.start(self._conduct(), _FIRST_STEPS)

    def detach(self) -> None:
        """Take every hook back; the setting that is in force stays."""
        self._stop_watching()
        self._between.stop()

    def restore(self) -> None:
        """The knobs as they were at first; every rank does this between the same two steps."""
        if self.values or self._variables:
            self._training.restore(self._group)
        self.values, self._variables = {}, {}

    def close(self, why_never: str) -> None:
        """The process ends: the last line, and the first one if the training never came so far."""
        self.detach()
        if not self._said_hello:
            self._hello(refused=why_never)
        self._tell("end", steps=self._between.clock.complete)

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._training.is_first:
            problem = group_live.objection(lambda: self._controller.tell({"kind": kind, **fields}))
            self.trouble = self.trouble or problem

    def _hello(self, **fields: Any) -> None:
        self._said_hello = True
        self._tell("hello", **self._about, **fields)

    # The ends that a search may come to before it is decided

    def let_go(self, why: str) -> None:
        """Every rank does this between the same two steps."""
        if not self.is_over:
            self.restore()
            self._end(why, "as it was before")

    def leave(self, why: str) -> None:
        """This rank makes no more steps together with the others, who may be about to agree on something."""
        self.detach()
        if self._group is not None and not self.is_over and not self._left:
            self._group.leave(why)

    def give_up(self, why: str) -> None:
        """The exchange ends here, and with it the search; no knob changes any more."""
        if not self.is_over:
            self.leave(why)
            self._end(why, "as it is")

    def _end(self, why: str, setting: str) -> None:
        self.is_over = True
        group_live.objection(self._training.finish)
        if self._training.is_first:
            say(f"not tuned: {why}; the training goes on {setting}")
        if self._said_hello:
            self._tell("end", steps=self._between.clock.complete, problem=why)
        else:
            self._hello(refused=why)

    # The search

    def _conduct(self) -> Work:
        try:
            yield from self._search()
        except group_live.RankLeft as left:  # where all ranks meet again they let go
            self._left = str(left)
        except Exception as problem:
            # The ranks cannot agree any more, or there is an error here. The others get an error when they next try. No
            # knob changes now: those in force are the same on all ranks, and ranks with unlike knobs would hang.
            if self._group:
                group_live.objection(self._group.close)
            self._end(f"the search failed ({group_live.one_line(problem)})", "as it is")
            if self._training.cannot_train:  # neither a switch nor the way back succeeded
                raise
        finally:
            if not self._left:
                self._stop_watching()

    def _search(self) -> Work:
        self._group, refused = self._training.meet()
        if self._group is not None:
            refused = refused or self._group.agree(group_live.objection(self._training.refusal) or self.trouble)
        if refused or self._group is None:
            self._end(refused, "as it is")
            return
        group = self._group
        found: dict[str, Any] = {}
        refused = group.agree(group_live.objection(lambda: found.update(self._training.prepare(group))))
        if refused:
            self._end(refused, "as it is")
            return
        self._hello(refused="", hosts=group.hosts, **found)
        if self._training.model is not None:
            self._between.count_samples(self._training.model)
        while True:
            directive = yield from self._next_directive(group)
            kind = directive["kind"]
            if kind == "warmup":
                yield directive["steps"]
            elif kind == "survey":
                found, model = {}, self._training.model  # None where no rank has seen it: the survey is empty
                if not group.agree("" if model is not None else "no model"):
                    by_hosts = self._training.hierarchical
                    found = yield from survey(self._between, model, group, directive["steps"], by_hosts)
                self._tell("survey", id=directive["id"], survey=found)
            elif kind == "sample":
                yield from self._sample(directive, group)
            elif kind == "free":
                _, problem = yield from self._switch(directive, group)
                if problem:
                    self.let_go(problem)
                else:
                    self._tell("applied", id=directive["id"])
                    self.is_over = self.is_decided = True
                    self._training.finish()
                return
            elif kind == "stop":
                raise StepsDone
            else:
                self.let_go(directive.get("why") or f"a directive of the unknown kind {kind!r}")
                return

    def _next_directive(self, group: Any) -> Generator[int, None, dict[str, Any]]:
        """Ask, and ask again after every step until it is known what comes next."""
        self._waited = 0
        while True:
            self._taken()
            if self.trouble:
                said = group.gather(group_live.in_trouble(self.trouble))
            else:
                said = group.gather((self._ask() if self._training.is_first else None) or {"kind": "wait"})
            trouble = group_live.first_trouble(said)
            if trouble:
                return let_go(trouble)
            if said[0]["kind"] != "wait":
                directive: dict[str, Any] = said[0]
                return directive
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
            return let_go(group_live.one_line(problem))
        return asked

    def _switch(self, directive: dict[str, Any], group: Any) -> Generator[int, None, tuple[int, str]]:
        """Nanoseconds that it took, or why it was not done: all ranks switch, or none does."""
        values, variables = directive.get("values") or {}, directive.get("variables") or {}
        if (values, variables) == (self.values, self._variables):
            return 0, ""
        for _ in range(_LONGEST_BUSY):
            if not any(each["busy"] for each in group.gather({"busy": self._training.is_busy()})):
                break
            yield 1
        else:
            self.trouble = self.trouble or "the script always has an asynchronous operation open between two steps"
            return 0, self.trouble
        began = now()
        refused = group.agree(group_live.objection(self._training.refusal))
        self.trouble = self.trouble or refused
        problem = refused or self._training.switch(values, variables, group)
        if problem:
            if not refused:
                self.values, self._variables = {}, {}
            return 0, f"no switch to {values}: {problem}"
        self.values, self._variables = values, variables
        return now() - began, ""

    def _sample(self, directive: dict[str, Any], group: Any) -> Work:
        began, waited = now(), self._waited
        switch_ns, problem = yield from self._switch(directive, group)
        fixed = self._training.fixed_by(directive["values"], problem) if problem else {}
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
        self.trouble = self.trouble or group_live.objection(lambda: taken.extend(self._between.take()))
        return [step for step in taken if step.whole]
