"""Files that trainers of others leave: Hugging Face's trainer_state.json and metrics.csv of Lightning's CSVLogger."""

import csv
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec

from scalescope.errors import UsageError
from scalescope.logs.files import head, whole
from scalescope.logs.lines import Reading
from scalescope.text import plain
from scalescope.units import is_possible


class _TrainerState(msgspec.Struct):
    log_history: list[dict[str, object]] | None = None


def trainer_reader(path: Path) -> Callable[[Path, int], Reading] | None:
    """Recognises a trainer's file by what it holds, and returns what reads it."""
    suffix = path.suffix.lower()
    if suffix == ".json" and path.is_file() and _history(path) is not None:
        return read_trainer_state
    if suffix == ".csv" and path.is_file():
        columns = {cell.strip() for cell in head(path).splitlines()[0].split(",")}
        return read_metrics if {"epoch", "step"} <= columns else None  # nobody's processes, other than in a table
    return None


def _history(path: Path) -> list[dict[str, object]] | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_TrainerState).log_history
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_trainer_state(path: Path, np: int) -> Reading:
    """The time of a whole training, evaluation included: nothing else in the file has a time.

    Raises:
        UsageError: The training has not ended in it, as in the file of a checkpoint.
    """
    name, history = _shown(path), _history(path) or []
    ended = next((entry for entry in reversed(history) if "train_runtime" in entry), None)
    if ended is None:
        raise UsageError(
            f"'{name}' has no train_runtime, as in a checkpoint: call trainer.save_state() after trainer.train() and "
            "name the file in its output folder"
        )
    train_s = _number(ended["train_runtime"], "train_runtime", name)
    rate = _number(ended.get("train_samples_per_second", 0.0), "train_samples_per_second", name)
    if not train_s:
        raise UsageError(f"'{name}' has a train_runtime of 0: train longer")
    evaluations = [_number(entry.get("eval_runtime", 0.0), "eval_runtime", name) for entry in history]
    return Reading(
        name=name, np=np, train_s=train_s, samples=rate * train_s or None, evaluation_s=sum(evaluations) or None
    )


def read_metrics(path: Path, np: int) -> Reading:
    """Windows that Lightning's ThroughputMonitor logged; its clock stops during validation.

    Raises:
        UsageError: There are none, as nothing else in the file has a time; or they are of several trainings.
    """
    name = _shown(path)
    rows = csv.DictReader(whole(path).splitlines())
    separator = next((each for each in "/|" if f"train{each}time" in (rows.fieldnames or ())), None)
    if separator is None:
        raise UsageError(
            f"'{name}' has no times: train with the callback ThroughputMonitor of lightning.pytorch.callbacks, or "
            "name the log with the progress bars"
        )
    told = [(0.0, 0.0)]
    for row in rows:
        seconds, samples = row[f"train{separator}time"], row.get(f"train{separator}samples")
        if seconds and samples:  # of one process
            told.append((_number(seconds, "train time", name), np * _number(samples, "train samples", name)))
    windows = [(later[0] - sooner[0], later[1] - sooner[1]) for sooner, later in pairwise(told)]
    if not windows:
        raise UsageError(
            f"'{name}' has no row with train time and samples: give ThroughputMonitor a smaller window_size"
        )
    if any(not is_possible(seconds) or not is_possible(samples) for seconds, samples in windows):
        raise UsageError(f"'{name}' does not tell one training, whose time and samples grow: name the file of one")
    return Reading(name=name, np=np, windows=tuple(windows), samples=told[-1][1])


def _shown(path: Path) -> str:
    """The file with its folder, which tells it from others of the same name."""
    return plain(str(Path(path.absolute().parent.name) / path.name))


def _number(told: object, what: str, name: str) -> float:
    """A number that a training can have, or 0."""
    try:
        value = float(told)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = -1.0
    if value and not is_possible(value):
        raise UsageError(f"'{name}' says {plain(str(told), 40)} for {what}, which no training has: correct the file")
    return value
