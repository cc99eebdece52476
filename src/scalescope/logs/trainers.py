"""Files that trainers of others leave: Hugging Face's trainer_state.json and metrics.csv of Lightning's CSVLogger."""

import csv
from itertools import pairwise
from pathlib import Path

import msgspec

from scalescope.errors import UsageError
from scalescope.logs.counts import count_in_name
from scalescope.logs.files import head
from scalescope.logs.lines import Reading
from scalescope.named_paths import reading
from scalescope.text import plain
from scalescope.units import is_possible


class _TrainerState(msgspec.Struct):
    log_history: list[dict[str, object]] | None = None


def is_trainer_file(path: Path) -> bool:
    """True for a JSON file with a log_history, and for a CSV file with columns epoch and step."""
    if path.suffix.lower() == ".json" and path.is_file():
        return _history(path) is not None
    if path.suffix.lower() == ".csv" and path.is_file():
        columns = {cell.strip() for cell in head(path).splitlines()[0].split(",")}
        return {"epoch", "step"} <= columns  # nobody's processes, other than in a table
    return False


def read_trainer_file(path: Path, np: int | None = None) -> Reading:
    """Read such a file; without `np` the names of its folders tell the processes.

    Raises:
        UsageError: It has no times, or impossible ones, or nothing tells `np`.
    """
    name = plain(str(Path(path.absolute().parent.name) / path.name))  # the folder tells it from others of the same name
    count = np or count_in_name(path, folders=True)
    log = Reading(name=name, np=count, counted_by="" if np else "the file names")
    if path.suffix.lower() == ".json":
        return _with_history(log, _history(path) or [])
    try:
        return _with_metrics(log, path)
    except csv.Error as problem:
        raise UsageError(f"'{name}' is damaged ({problem}): name another copy") from None


def _history(path: Path) -> list[dict[str, object]] | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_TrainerState).log_history
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _with_history(log: Reading, history: list[dict[str, object]]) -> Reading:
    """The time of a whole training, evaluation included: nothing else in trainer_state.json has a time."""
    ended = next((entry for entry in reversed(history) if "train_runtime" in entry), None)
    if ended is None:
        raise UsageError(
            f"'{log.name}' has no train_runtime, as in a checkpoint: call trainer.save_state() after trainer.train() "
            "and name the file in its output folder"
        )
    train_s = _number(ended["train_runtime"], "train_runtime", log.name)
    rate = _number(ended.get("train_samples_per_second", 0.0), "train_samples_per_second", log.name)
    if not train_s:
        raise UsageError(f"'{log.name}' has a train_runtime of 0: train longer")
    is_evaluated = any("eval_runtime" in entry for entry in history)
    return msgspec.structs.replace(
        log,
        train_s=train_s,
        samples=rate * train_s or None,
        notes=("evaluation is part of the train time",) if is_evaluated else (),
    )


def _with_metrics(log: Reading, path: Path) -> Reading:
    """Windows of one process that Lightning's ThroughputMonitor logged; its clock stops during validation."""
    told = [(0.0, 0.0)]
    with reading(path), open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        separator = next((each for each in "/|" if f"train{each}time" in (rows.fieldnames or ())), None)
        for row in rows if separator else ():
            seconds, samples = row[f"train{separator}time"], row.get(f"train{separator}samples")
            if seconds and samples:
                told.append(
                    (_number(seconds, "train time", log.name), _number(samples, "train samples", log.name) * log.np)
                )
    windows = tuple((later[0] - sooner[0], later[1] - sooner[1]) for sooner, later in pairwise(told))
    if not windows:
        raise UsageError(
            f"'{log.name}' has no times: train with the callback ThroughputMonitor of lightning.pytorch.callbacks "
            "and a window_size below the steps of the training, or name the log with the progress bars"
        )
    if not all(is_possible(seconds) and is_possible(samples) for seconds, samples in windows):
        raise UsageError(f"'{log.name}' does not tell one training, whose time and samples grow: name the file of one")
    return msgspec.structs.replace(log, windows=windows, samples=told[-1][1])


def _number(told: object, what: str, name: str) -> float:
    """A number that a training can have, or 0."""
    try:
        value = float(told)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = -1.0
    if value and not is_possible(value):
        raise UsageError(f"'{name}' says {plain(str(told), 40)} for {what}, which no training has: correct the file")
    return value
