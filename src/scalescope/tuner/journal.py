"""Files of a search: every sample as a line of JSON and a row of CSV, and the record at its end."""

import csv
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import msgspec

from scalescope import __version__
from scalescope.errors import UsageError
from scalescope.logs.autotune_log import is_autotune_log
from scalescope.progress import Progress
from scalescope.records.files import TUNING
from scalescope.records.request import Fingerprint
from scalescope.records.store import Record, append, save, writing
from scalescope.records.tuning import (
    Method,
    More,
    Sample,
    SearchedKnob,
    TuneRequest,
    Tuning,
    TuningCost,
    Values,
    setting_words,
)
from scalescope.text import plain
from scalescope.tuner.blocks import SampleRequest
from scalescope.tuner.search import Options
from scalescope.tuner.settings import shown_value
from scalescope.tuner.space import Space
from scalescope.tuner.tuner import Tuner
from scalescope.units import times, with_error

SAMPLES, LOG = "samples.jsonl", "tune.csv"
_BEFORE = ("sample", "phase", "pair")
_HEAD = [name.encode() for name in _BEFORE]
_AFTER = ("step_ms", "error_ms", "speedup", "steps", "seconds", "predicted_ms", "cut", "decision")


class TunePlan(Record, frozen=True, kw_only=True, tag="tune_plan"):
    """Request and place of a search; written before its first launch."""

    current_version: ClassVar[int] = 2

    request: TuneRequest
    cwd: str
    # Machine it was begun on; None: by version 1, or by a script that tunes itself, which cannot be resumed.
    fingerprint: Fingerprint | None = None
    notes: tuple[str, ...] = ()  # What happened on the way that a reader of the result should know


class Journal:
    """Keeps every sample as soon as it is there.

    Args:
        folder: Of the results.
        request: What was asked for.
        space: Knobs and settings of the search.
        tuner: The search.
        method: How samples are made.
        nodes: On which the ranks run.
        prior: Where predictions come from, or why there are none.
        notes: What a reader of the result should know.
    """

    def __init__(
        self,
        folder: Path,
        request: TuneRequest,
        space: Space,
        tuner: Tuner,
        *,
        method: Method,
        nodes: int = 1,
        prior: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        self._folder, self._request, self._space, self._tuner = folder, request, space, tuner
        self._method, self._nodes, self._prior = method, nodes, prior
        asked = request.log_file if method != "native" else ""  # that gets Horovod's own
        self._log = SampleLog(Path(asked or folder / LOG), space.knobs, space.fixed)
        self._samples: list[Sample] = []
        self.warmup_steps = 0
        self.notes = list(notes)

    def take_up(self, samples: Sequence[Sample]) -> None:
        """Samples of an interrupted search: they are on disk already."""
        for sample in samples:
            self._log.add(sample, self._tuner.default_step_s)
        self._samples += samples

    def begin(self, asked: SampleRequest, most: int, progress: Progress) -> None:
        """Show which sample is made now, of at most how many, and about how long the search still takes."""
        what, seconds = f"sample {asked.index} of at most {most}", None
        if asked.pair is not None:
            what = f"confirming: pair {asked.pair + 1}"
        elif self._samples:
            seconds = fmean(sample.seconds for sample in self._samples) * (most - asked.index)
        so_far = f" · best so far {times(self._tuner.best[1])}" if self._samples else ""
        progress.stage(f"{what}{so_far} · now {setting_words(asked.values)}", seconds)

    def add(self, sample: Sample, progress: Progress) -> None:
        """Keep a sample and show it."""
        self._samples.append(sample)
        append(sample, self._folder / SAMPLES)
        self._log.add(sample, self._tuner.default_step_s)
        default_s, text = self._tuner.default_step_s, f"sample {sample.index}: {setting_words(sample.values)}: "
        if sample.step_s is None:
            text += f"failed: {plain(sample.problem, 200) or 'no step was measured'}"
        else:
            text += with_error(sample.step_s, sample.error_s)
            if default_s and sample.values != self._space.settings[0]:
                text += f", {times(default_s / sample.step_s)} the default's speed"
            text += f"; {plain(sample.decision, 100)}" if sample.decision else ""
        progress.note(text, "detail")

    def close(self, *, complete: bool, why_not: str = "") -> Tuning:
        """Save the record; of an incomplete search with what is known so far."""
        outcome = self._tuner.outcome()
        default_s, winner_s = outcome.default_step_s, outcome.winner_step_s
        decision = outcome.decision if complete else "undecided"
        decided = decision == "use"
        more, pairs_s = None, [sample.seconds for sample in self._samples if sample.phase == "confirm"]
        if outcome.more and pairs_s:
            seconds = outcome.more.pairs * 2 * fmean(pairs_s)
            more = More(pairs=outcome.more.pairs, seconds=seconds, gain=outcome.more.tells)
        record = Tuning(
            what=self._request.what,
            command=self._request.command,
            engine=self._space.engine,
            np=self._request.np,
            nodes=self._nodes,
            method=self._method,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            scalescope=__version__,
            knobs=self._space.knobs,
            held=self._space.fixed,
            left_out=self._space.left_out,
            prior=self._prior,
            cells=outcome.cells,
            samples=tuple(self._samples),
            default_step_s=default_s,
            winner_step_s=winner_s if decided else None,
            decision=decision,
            values=outcome.values if decided else {},
            finalist=outcome.finalist,
            gain=outcome.gain,
            reason=outcome.reason if complete else why_not,
            cost=self._cost(default_s, winner_s if decided else None),
            more=more,
            complete=complete,
            notes=tuple(self.notes),
        )
        save(record, self._folder / TUNING)
        return record

    def _cost(self, default_s: float | None, winner_s: float | None) -> TuningCost:
        counts = dict.fromkeys(("default", "search", "confirm"), 0)
        for sample in self._samples:
            counts[sample.phase] += sample.steps + sample.other_steps
        seconds = sum(sample.seconds for sample in self._samples)
        lost_s, worst, break_even = seconds, None, None
        if default_s:
            steps_s = [sample.step_s for sample in self._samples if sample.step_s]
            worst = max(steps_s) / default_s if steps_s else None
            if self._method != "offline":
                lost_s -= sum(counts.values()) * default_s
            if winner_s and winner_s < default_s:  # steps with the winner that make good what the search lost
                break_even = max(round(lost_s / (default_s - winner_s)), 0)
        return TuningCost(
            warmup_steps=self.warmup_steps,
            search_steps=counts["default"] + counts["search"],
            confirm_steps=counts["confirm"],
            seconds=seconds,
            lost_s=lost_s,
            worst=worst,
            break_even_steps=break_even,
        )


def begin_search(
    folder: Path,
    request: TuneRequest,
    space: Space,
    survey: Mapping[str, Any] | None,
    options: Options,
    *,
    method: Method,
    nodes: int,
    notes: Sequence[str] = (),
) -> tuple[Tuner, Journal]:
    """Make the search, with predictions where there is a survey, and its journal."""
    if request.confirm and request.confirm not in space.settings:
        space = msgspec.structs.replace(space, settings=(*space.settings, request.confirm))
    predicted = space.predict(survey) if survey else None
    tuner = Tuner(space, predicted, options, request.confirm)
    prior = "a survey of this training" if predicted else "none: the search goes by samples alone"
    return tuner, Journal(folder, request, space, tuner, method=method, nodes=nodes, prior=prior, notes=notes)


class SampleLog:
    """CSV file with one row per sample; an earlier one is begun anew."""

    def __init__(self, path: Path, knobs: Sequence[SearchedKnob], fixed: Values) -> None:
        check_log_file(path)
        self._path, self._fixed = path, fixed
        self._defaults = {knob.name: knob.default for knob in knobs}
        self._knobs = tuple(dict.fromkeys((*self._defaults, *fixed)))
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._write("w", (*_BEFORE, *self._knobs, *_AFTER))

    def add(self, sample: Sample, default_step_s: float | None) -> None:
        """One more row; it is on disk when this returns."""
        speedup = default_step_s / sample.step_s if default_step_s and sample.step_s else None
        values = {**self._defaults, **self._fixed, **sample.values}
        shown = ["default" if (value := values[name]) is None else shown_value(value) for name in self._knobs]
        row = (
            str(sample.index),
            sample.phase,
            "" if sample.pair is None else str(sample.pair),
            *shown,
            _milliseconds(sample.step_s),
            _milliseconds(sample.error_s),
            "" if speedup is None else f"{speedup:.4f}",
            str(sample.steps),
            f"{sample.seconds:.3f}",
            _milliseconds(sample.predicted_s),
            "yes" if sample.cut else "no",
            "; ".join(text for text in (sample.decision, sample.problem) if text),
        )
        self._write("a", row)

    def _write(self, mode: str, row: Sequence[str]) -> None:
        with writing(self._path), open(self._path, mode, newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow([plain(text) for text in row])


def check_log_file(path: Path, *, of_autotune: bool = False) -> None:
    """Refuse a file that is not the log of an earlier search, or of Horovod's autotune, to replace it."""
    shown = plain(str(path))
    if not path.exists():
        return
    if not path.is_file():
        raise UsageError(f"--log-file '{shown}' is not a regular file: name one such as tune.csv")
    try:
        with open(path, "rb") as file:
            head = file.read(200)
    except OSError as problem:
        raise UsageError(f"cannot write --log-file '{shown}': {problem.strerror}: choose another name") from None
    is_log = is_autotune_log(head.decode(errors="replace")) if of_autotune else head.startswith(b",".join(_HEAD) + b",")
    if head and not is_log:
        whose = "Horovod's autotune" if of_autotune else "scalescope tune"
        raise UsageError(f"--log-file '{shown}' exists and is not a log of {whose}: choose another name")


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.6g}"
