"""Changes knobs of a training while it goes on: a search asks for samples, all ranks switch and measure alike.

Rank 0 hears what is to be done next and tells the others in one broadcast; between two such meetings a step costs
what the step clock costs, and the counting of samples.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from statistics import median
from typing import Any, Protocol

from .between import BetweenSteps, Step, Work
from .knobs import Wrappers, engine_file, refusal_of
from .meeting import TorchMeeting
from .recorder import now
from .steps import StepClock, StepsDone
from .survey import survey

FORMAT_VERSION = 1
_FIRST_MEETING = 2
"""After so many steps it is known how many optimizers make one."""
_PATIENCE_NS, _LOOK_AGAIN_S = 5_000_000, 0.0005
"""So long rank 0 waits for the search before all make another step as they are."""


class Pilot(Protocol):
    """Where rank 0 hears what to do next and tells what came of it."""

    def ask(self) -> dict[str, Any] | None:
        """The next directive; None: not known yet."""

    def tell(self, line: dict[str, Any]) -> None:
        """Something happened."""


class FilePilot:
    """Directives are files in a folder, one after the other; answers are lines of pilot.jsonl there."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._next = 0
        self._broken = False

    def ask(self) -> dict[str, Any] | None:
        """What the next file holds, once it is there."""
        try:
            with open(os.path.join(self._folder, f"directive-{self._next:05d}.json")) as file:  # noqa: PTH118 - cheap
                directive: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return None
        self._next += 1
        return directive

    def tell(self, line: dict[str, Any]) -> None:
        """Append a line at once."""
        try:
            with open(os.path.join(self._folder, "pilot.jsonl"), "a") as file:  # noqa: PTH118
                file.write(json.dumps(line) + "\n")
        except OSError as problem:
            if not self._broken:
                sys.stderr.write(f"scalescope: cannot tell the search what was measured: {problem.strerror}\n")
            self._broken = True


class Conductor:
    """Leads one rank through a search."""

    def __init__(
        self, pilot: Pilot, ddp: Any, clock: StepClock | None = None, wrappers: Wrappers | None = None
    ) -> None:
        self._pilot = pilot
        self._ddp = ddp
        self._wrappers = wrappers
        self._between = BetweenSteps(clock, ddp)
        self._is_first = False
        self._said_hello = False
        self._waited = 0
        self.values: dict[str, Any] = {}
        """What was switched to last; empty: the model is as it was."""
        self._groups: Any = None
        self.is_decided = False
        """Whether the last setting is in force, to stay."""
        self.trouble = ""
        """Why the search cannot go on, once that is so on every rank."""

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
        if self._wrappers is None:
            refused = refusal_of(self._ddp)
            if refused:
                self._hello(refused=refused)
                return
        self._between.start(self._conduct(), _FIRST_MEETING)

    def detach(self) -> None:
        """Take every hook back; the setting that is in force stays."""
        self._between.stop()

    def close(self, why_never: str) -> None:
        """The process ends: the last line, and the first one if the training never came so far."""
        self.detach()
        if not self._said_hello:
            self._tell("hello", **self._about, refused=why_never)
        self._tell("end", steps=self._between.clock.complete)

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._is_first:
            self._pilot.tell({"kind": kind, **fields})

    def _conduct(self) -> Work:
        refused = self._wrappers.refusal() if self._wrappers else ""
        if refused:
            self._hello(refused=refused)
            return
        self._meeting = TorchMeeting(self._ddp.process_group)
        self._hello(refused="", **self._prepare())
        self._between.count_samples(self._ddp)
        while True:
            directive = yield from self._next_directive()
            kind = directive["kind"]
            if kind == "warmup":
                yield directive["steps"]
            elif kind == "survey":
                found = yield from survey(self._between, self._ddp, self._meeting, directive["steps"], self._groups)
                self._tell("survey", id=directive["id"], survey=found)
            elif kind == "sample":
                yield from self._sample(directive)
            elif kind == "free":
                self._switch(directive.get("values", {}))
                self._tell("applied", id=directive["id"])
                self.is_decided = True
                return
            elif kind == "stop":
                raise StepsDone
            elif kind == "trouble":
                self._switch({})
                self._tell("end", steps=self._between.clock.complete, problem=directive["why"])
                return
            else:
                raise ValueError(f"a directive of the unknown kind {kind!r}")

    def _hello(self, **fields: Any) -> None:
        self._said_hello = True
        self._tell("hello", **self._about, **fields)

    def _prepare(self) -> dict[str, Any]:
        """Groups for hierarchical allreduce, and all that the search wants to know at first."""
        groups = engine_file("hierarchical").prepare(self._ddp.process_group)
        current = self._live.current(self._ddp)
        held = {}
        if getattr(self._ddp, "_comm_hooks", None) and not current.get("hierarchical_allreduce"):
            held["hierarchical_allreduce"] = "the script has a communication hook of its own"
        elif isinstance(groups, str):
            held["hierarchical_allreduce"] = groups
        if not isinstance(groups, str):
            self._groups = groups
        return {
            "hosts": self._meeting.hosts,
            "current": current,
            "held": held,
        }

    def _next_directive(self) -> Generator[int, None, dict[str, Any]]:
        """Meet, and meet again after every step until it is known what comes next."""
        self._waited = 0
        while True:
            self._between.take()
            if self.trouble:
                return {"kind": "trouble", "why": self.trouble}
            directive = self._meeting.share((self._ask() if self._is_first else None) or {"kind": "wait"})
            if directive["kind"] != "wait":
                return directive
            self._waited += 1
            yield 1

    def _ask(self) -> dict[str, Any] | None:
        """The next directive, which may be on its way."""
        until = now() + (0 if self._waited else _PATIENCE_NS)
        asked = self._pilot.ask()
        while asked is None and now() < until:
            time.sleep(_LOOK_AGAIN_S)
            asked = self._pilot.ask()
        return asked

    def _switch(self, values: dict[str, Any]) -> int:
        """Nanoseconds that it took; a rank on which it fails ends: it would not fit the others any more."""
        if values == self.values:
            return 0
        began = now()
        try:
            self._live.switch(self._ddp, values)
        except Exception as problem:
            line = (
                f"the switch to {json.dumps(values)} failed: {[*str(problem).splitlines(), type(problem).__name__][0]}"
            )
            sys.stderr.write(f"scalescope: {line}\n")
            self._tell("end", steps=self._between.clock.complete, problem=line)
            raise
        self.values = values
        return now() - began

    def _sample(self, directive: dict[str, Any]) -> Work:
        began, waited = now(), self._waited
        switch_ns = self._switch(directive["values"])
        discard, left, limit_ns = directive["discard"], directive["steps"], directive.get("limit_ns") or 0
        check = min(directive.get("check") or 0, left) if limit_ns else 0
        measured: list[Step] = []
        cut = False
        if discard:
            yield discard
            self._between.take()
        if check:
            yield check
            measured += self._whole_steps()
            left -= check
            cut = self._meeting.share({"cut": bool(left and _typical(measured) > limit_ns)})["cut"]
        if left and not cut:
            yield left
            measured += self._whole_steps()
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
            problem="" if measured else "every step of it was interrupted",
        )

    def _whole_steps(self) -> list[Step]:
        return [step for step in self._between.take() if step.whole]


def _typical(steps: list[Step]) -> float:
    return median(step.nanoseconds for step in steps) if steps else 0.0
