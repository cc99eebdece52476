"""Nobody is told anything."""

from pathlib import Path
from typing import Any

from scalescope.records.prediction import Prediction
from scalescope.records.run import Failure, Run
from scalescope.records.tuning import Sample


class Silent:
    """An audience that is told everything and says nothing."""

    def planned(self, *_: Any) -> None:
        """Before the first launch."""

    def begins(self, *_: Any) -> None:
        """A launch or a sample begins."""

    def steps(self, count: int) -> None:
        """Steps done in this launch."""

    def line(self, source: str, text: str) -> None:
        """A line of output."""

    def ends(self, outcome: Run | Failure) -> None:
        """A launch has ended."""

    def stage(self, what: str, seconds: float | None) -> None:
        """A part of an estimate or a probe begins."""

    def tick(self, done: int) -> None:
        """So much of it is done."""

    def remark(self, text: str) -> None:
        """Something that a reader of the result should know."""

    def continues(self, folder: Path) -> None:
        """An interrupted estimate is continued."""

    def mapped(self, prediction: Prediction) -> None:
        """A map is there, before its checks."""

    def sampled(self, sample: Sample, best: float, default_step_s: float | None) -> None:
        """A sample of a search is there."""

    def decided(self, text: str) -> None:
        """A search is over."""
