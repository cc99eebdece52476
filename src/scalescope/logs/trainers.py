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
    try:
        log = _read_history(path, name) if path.suffix.lower() == ".json" else _read_metrics(path, name)
    except csv.Error as problem:
        raise UsageError(f"'{name}' is damaged ({problem}): name another copy") from None
    count = np or count_in_name(path, folders=True)
    windows = tuple((seconds, count * samples) for seconds, samples in log.windows)
    return msgspec.structs.replace(
        log,
        np=count,
        counted_by="" if np else "the file names",
        windows=windows,
        samples=log.samples or sum(samples for _, samples in windows) or None,
    )


def _history(path: Path) -> list[dict[str, object]] | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_TrainerState).log_history
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _read_history(path: Path, name: str) -> Reading:
    """The time of a whole training, evaluation included: nothing else in trainer_state.json has a time."""
    history = _history(path) or []
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
        name=name, np=1, train_s=train_s, samples=rate * train_s or None, evaluation_s=sum(evaluations) or None
    )


def _read_metrics(path: Path, name: str) -> Reading:
    """Windows of one process that Lightning's ThroughputMonitor logged; its clock stops during validation."""
    told = [(0.0, 0.0)]
    with reading(path), open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        separator = next((each for each in "/|" if f"train{each}time" in (rows.fieldnames or ())), None)
        if separator is None:
            raise UsageError(
                f"'{name}' has no times: train with the callback ThroughputMonitor of lightning.pytorch.callbacks, or "
                "name the log with the progress bars"
            )
        for row in rows:
            seconds, samples = row[f"train{separator}time"], row.get(f"train{separator}samples")
            if seconds and samples:
                told.append((_number(seconds, "train time", name), _number(samples, "train samples", name)))
    windows = [(later[0] - sooner[0], later[1] - sooner[1]) for sooner, later in pairwise(told)]
    if not windows:
        raise UsageError(
            f"'{name}' has no row with train time and samples: give ThroughputMonitor a smaller window_size"
        )
    if not all(is_possible(seconds) and is_possible(samples) for seconds, samples in windows):
        raise UsageError(f"'{name}' does not tell one training, whose time and samples grow: name the file of one")
    return Reading(name=name, np=1, windows=tuple(windows))


def _number(told: object, what: str, name: str) -> float:
    """A number that a training can have, or 0."""
    try:
        value = float(told)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = -1.0
    if value and not is_possible(value):
        raise UsageError(f"'{name}' says {plain(str(told), 40)} for {what}, which no training has: correct the file")
    return value
