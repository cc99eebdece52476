"""`tune --watch`: goes on after the decision, looks for a change of the training or its links, and tunes again."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev

import msgspec

from scalescope.records.store import save
from scalescope.tuner.blocks import Block, midmean
from scalescope.tuner.controller_files import Hello
from scalescope.tuner.journal import RECORD, Journal
from scalescope.tuner.online import OnlineSearch
from scalescope.tuner.tuner import Tuner

LOOK_STEPS = 10
_REFERENCE = 3  # Looks after a decision that later ones are compared with
_LEAST = math.log(1.1)  # A smaller change of step times is none
_DEVIATIONS = 4.0  # Of the first looks
_IN_A_ROW = 2  # Looks that must say so


class Change:
    """Compares looks at a training with the first ones after a decision."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._batch: float | None = None
        self._slower, self._faster = 0, 0

    def look(self, block: Block) -> str:
        """What has changed, in words; empty: nothing so far."""
        if not block.step_s:
            return ""
        batch = median(block.samples) if block.samples and min(block.samples) > 0 else None
        if self._batch is None:
            self._batch = batch
        elif batch and batch != self._batch and not _varies(block.samples):
            return f"the batch changed from {self._batch:g} to {batch:g}"
        log_s = math.log(midmean(block.step_s))
        if len(self._first) < _REFERENCE:
            self._first.append(log_s)
            return ""
        away = log_s - fmean(self._first)
        enough = max(_LEAST, _DEVIATIONS * stdev(self._first))
        self._slower = self._slower + 1 if away > enough else 0
        self._faster = self._faster + 1 if away < -enough else 0
        if max(self._slower, self._faster) < _IN_A_ROW:
            return ""
        return f"steps take {math.exp(away):.2f} times as long as after the last decision"


def _varies(samples: Sequence[int]) -> bool:
    return len(set(samples)) > 1


class WatchingSearch(OnlineSearch):
    """A search that begins again when the training has changed."""

    def _tune(self, hello: Hello) -> None:
        first, times = self._folder, 0
        notes: list[str] = []
        while True:
            super()._tune(hello)
            if self.tuning is None or not self.tuning.complete:
                return
            self.tuning = msgspec.structs.replace(self.tuning, notes=(*notes, *self.tuning.notes))
            save(self.tuning, first / RECORD)
            why = self._until_change({**self._fixed, **self.tuning.values})
            times += 1
            notes.append(f"tuned again: {why}; see again-{times}")
            self._listener.planned(f"Tuning again: {why}.")
            self._folder = _made(first / f"again-{times}")
            self._request = msgspec.structs.replace(self._request, log_file="")

    def _settle(self, tuner: Tuner, journal: Journal) -> None:
        """The winner stays in force, and under watch."""
        self.tuning = journal.close(complete=True)
        self._listener.decided(
            f"Decided; the training continues with it, with a look every {self._request.watch} steps."
        )

    def _until_change(self, values: dict[str, object]) -> str:
        """Let the training run, with a look now and then; ends with the training, or with what has changed."""
        change, why = Change(), ""
        while not why:
            self._files.send("warmup", steps=self._request.watch)
            report = self._measured(values=values, discard=self._options.discard, steps=LOOK_STEPS)
            why = change.look(self._block(report))
        return why


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder
