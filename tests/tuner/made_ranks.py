"""The other end of a search's files: ranks whose steps take as long as is said, on a clock of their own."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalescope.agent.search_files import DIRECTIVE, REPORTS
from scalescope.progress import Progress
from scalescope.records.tuning import TuneRequest, Values
from scalescope.tuner.online import OnlineSearch

HELLO: dict[str, Any] = {"engine": "ddp", "world_size": 2, "hosts": ["a", "a"], "backend": "gloo"}


class MadeRanks(threading.Thread):
    """Answers every directive at once; ends after `steps`, or when it is told to stop or let go."""

    def __init__(
        self,
        folder: Path,
        step_s: Callable[[Values], float],
        *,
        steps: int = 100_000,
        hello: dict[str, Any] | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._step_s, self._left = folder, step_s, steps
        self._hello, self._report = {**HELLO, **(hello or {})}, report or {}
        self._clock_ns = self.made = 0
        self.on_sample: Callable[[dict[str, Any]], object] = lambda directive: None
        self.heard: list[dict[str, Any]] = []
        self.over = threading.Event()

    def run(self) -> None:
        """Until the end."""
        self._say("hello", **self._hello)
        number = 0
        while self._left > 0:
            path = self._folder / DIRECTIVE.format(number)
            if not path.exists():
                time.sleep(0.001)
                continue
            number += 1
            self.heard.append(json.loads(path.read_text()))
            self._obey(self.heard[-1])
        self._say("end", steps=self.made)
        self.over.set()

    def _obey(self, directive: dict[str, Any]) -> None:
        match directive["kind"]:
            case "stop" | "free" | "let_go":
                self._left = 0
            case "survey":
                self._say("survey", survey={})
            case "warmup":
                self._pass(directive["steps"], {})
            case "sample":
                self._sample(directive)

    def _pass(self, steps: int, values: Values) -> None:
        self._clock_ns += round(steps * self._step_s(values) * 1e9)
        self.made += steps
        self._left -= steps

    def _sample(self, directive: dict[str, Any]) -> None:
        self.on_sample(directive)
        began = self._clock_ns + 1
        self._pass(directive["discard"] + directive["steps"], directive["values"])
        if self._left <= 0:
            return
        report: dict[str, Any] = {
            "id": directive["id"],
            "step_ns": [round(self._step_s(directive["values"]) * 1e9)] * directive["steps"],
            "discarded": directive["discard"],
            "began_ns": began,
            "ended_ns": self._clock_ns + 1,
        }
        self._say("sample", **{**report, **self._report})

    def _say(self, kind: str, **fields: object) -> None:
        with open(self._folder / REPORTS, "a") as file:
            file.write(json.dumps({"kind": kind, **fields}) + "\n")


def searched(
    folder: Path,
    ranks: MadeRanks,
    request: TuneRequest,
    kind: type[OnlineSearch] = OnlineSearch,
    fixed: Values | None = None,
    told: Progress | None = None,
) -> OnlineSearch:
    """A search with these ranks at its other end, to its end."""
    search = kind(request, folder, folder / "training", fixed or {}, told or Progress(), ranks.over.is_set)
    ranks.start()
    search.run()
    ranks.join()
    return search
