"""The log of a search for people and spreadsheets: CSV, one row per sample, on disk as soon as it is there."""

import csv
from collections.abc import Sequence
from pathlib import Path

from scalescope.errors import UsageError
from scalescope.records.store import writing
from scalescope.records.tuning import Sample, SearchedKnob, Values
from scalescope.scaling.text_files import printable
from scalescope.tuner.settings import shown_value

_BEFORE = ("sample", "phase", "pair")
_AFTER = ("step_ms", "error_ms", "speedup", "steps", "seconds", "predicted_ms", "cut", "decision")


class SampleLog:
    """Begins anew, then grows by one row per sample."""

    def __init__(self, path: Path, knobs: Sequence[SearchedKnob], held: Values) -> None:
        check_log_file(path)
        self._path, self._held = path, held
        self._defaults = {knob.name: knob.default for knob in knobs}
        self._knobs = tuple(dict.fromkeys((*self._defaults, *held)))
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._write("w", (*_BEFORE, *self._knobs, *_AFTER))

    def add(self, sample: Sample, default_step_s: float | None) -> None:
        """One more row; it is on disk when this returns."""
        speedup = default_step_s / sample.step_s if default_step_s and sample.step_s else None
        row = (
            str(sample.index),
            sample.phase,
            "" if sample.pair is None else str(sample.pair),
            *(self._value(name, sample.values) for name in self._knobs),
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

    def _value(self, name: str, values: Values) -> str:
        """What was in force: the setting's, what is held, or what the training does by itself."""
        value = values.get(name, self._held.get(name, self._defaults.get(name)))
        return "default" if value is None else shown_value(value)

    def _write(self, mode: str, row: Sequence[str]) -> None:
        with writing(self._path), open(self._path, mode, newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow([printable(text) for text in row])


def check_log_file(path: Path) -> None:
    """A log of an earlier search may be replaced, anything else not."""
    shown = printable(str(path))
    if not path.exists():
        return
    if not path.is_file():
        raise UsageError(f"--log-file '{shown}' is no regular file: name one such as tune.csv")
    try:
        with open(path, "rb") as file:
            head = file.read(100)
    except OSError as problem:
        raise UsageError(f"cannot write --log-file '{shown}': {problem.strerror}: choose another name") from None
    if head and not head.startswith((",".join(_BEFORE) + ",").encode()):
        raise UsageError(f"--log-file '{shown}' exists and is no log of scalescope tune: choose another name")


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.6g}"
