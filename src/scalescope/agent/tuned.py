"""Requests of the environment beyond watching: a search (SCALESCOPE_TUNE), a survey (SCALESCOPE_SURVEY), knobs."""

from __future__ import annotations

import os
import sys
from typing import Any

from .between import BetweenSteps, Work
from .halves import group_live, live_half
from .recorder import guarded, rank_from_environment, say
from .search_client import SearchClient, Training
from .search_files import FORMAT_VERSION, FileController
from .steps import StepClock
from .survey import survey_once

_WITHOUT_WRAPPER = 5  # Steps after which a script that has wrapped no model is not expected to wrap one


class Tuned:
    """Knobs, search and survey of one process."""

    say, guarded = staticmethod(say), staticmethod(guarded)  # for the engines, which import nothing of the agent

    def __init__(self, folder: str, clock: StepClock) -> None:
        self._folder, self._clock = folder, clock
        self.sides: list[Any] = []  # What each engine that a script has imported sees and switches
        self.reset()

    def reset(self) -> None:
        """Begin anew, as in a forked child."""
        self._searches = os.environ.get("SCALESCOPE_TUNE") == "1"
        self._survey_after = int(os.environ.get("SCALESCOPE_SURVEY") or 0)
        self._client: SearchClient | None = None
        self._first_steps: BetweenSteps | None = None
        self._has_refused = False
        for side in self.sides:
            side.reset()

    @property
    def waits(self) -> bool:
        """True when a search is to begin with whatever can be switched first."""
        return self._searches and self._client is None

    def trouble(self, why: str) -> None:
        """End the search, if there is one, where ranks next agree."""
        if self._client is not None:
            self._client.trouble = why

    def begin_search(self, training: Training, too_late: str) -> None:
        """Switch this from now on; `too_late` is the reason given where a rank has given up before."""
        if self._first_steps:
            self._first_steps.stop()
        client = SearchClient(FileController(self._folder), training, self._clock)
        if self._has_refused:  # perhaps this rank alone: the others have to hear it
            client.trouble = too_late
        problem = group_live.objection(client.attach)  # the script is about to get its wrapper, and shall
        if problem:
            self._searches = False
            self._refuse(_rank(), training.engine, problem)
        else:
            self._client = client

    def on_training(self, root: Any, engine: str) -> None:
        """The first training forward, or without one the first optimizer step, is about to happen."""
        for side in self.sides:
            side.note_root(root)
        if self._survey_after and root is not None:
            between, half = BetweenSteps(self._clock), live_half(engine)
            model, group = half.surveyed(root) if hasattr(half, "surveyed") else (root, group_live.ControlGroup)
            path = os.path.join(self._folder, "survey.json")  # noqa: PTH118 - pathlib is slow to import
            between.start(survey_once(between, model, group, path), self._survey_after)
        if self.waits:
            self._first_steps = BetweenSteps(self._clock)
            self._first_steps.start(self._without_wrapper(engine), _WITHOUT_WRAPPER)

    def _without_wrapper(self, engine: str) -> Work:
        self._refuse(_rank(), engine)
        yield from ()

    def close(self, rank: int, engine: str) -> None:
        """The process, a rank, ends: say why nothing was tuned, if so."""
        if not self._searches:
            return
        if self._client is not None:
            steps = self._clock.complete
            self._client.close(f"{self._client.made}, but only {steps} steps were made")
        elif not self._has_refused:
            self._refuse(rank, engine)

    def _refuse(self, rank: int, engine: str, why: str = "") -> None:
        """Say why there is nothing to tune, to the search and to people."""
        self._has_refused = True
        if rank:
            return
        steps = self._clock.complete
        why = why or getattr(live_half(engine), "NOT_TUNED", "")
        if not why:
            why = "no optimizer made a step, and no model was wrapped in DistributedDataParallel"
            if steps:
                why = (
                    f"the script made {steps} steps without DistributedDataParallel, with its own exchange or none: "
                    "wrap the model in DistributedDataParallel"
                )
        controller = FileController(self._folder)
        controller.tell({"kind": "hello", "version": FORMAT_VERSION, "engine": engine, "refused": why})
        controller.tell({"kind": "end", "steps": steps})
        say(f"not tuned: {why}")


def _rank() -> int:
    """Rank in the process group; without one, as the launcher has it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return rank_from_environment() or 0
