"""Detects the kind of each path that a user names, and reads it."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from scalescope.errors import UsageError
from scalescope.logs.curves import read_logs
from scalescope.logs.files import UNDERSTOOD, head, record_kind
from scalescope.logs.rows import is_heading
from scalescope.logs.tables import read_table
from scalescope.logs.trainers import is_trainer_file
from scalescope.measurement.scaling import scaling_of
from scalescope.records.files import MEASUREMENT, SCALING
from scalescope.records.run import Measurement
from scalescope.records.scaling import Scaling
from scalescope.records.store import load
from scalescope.text import plain

_RECORDS = (MEASUREMENT, SCALING)  # What a result folder holds, the more telling first
_OF_REPORT = ("prediction", "explanation", "tuning", "autotune")  # Answers, of which nothing is left to explain
_RECORD_ENDINGS = (".json", ".jsonl")
_TABLE_ENDINGS = (".csv", ".tsv")


def explain(paths: Sequence[str | Path], np: Sequence[int] = (), pattern: str = "") -> Scaling:
    """Read tables, logs or measurements as scaling curves; `np` and `pattern` tell how logs are to be read."""
    files = [_record_in(Path(path)) for path in paths]
    if not files:
        raise UsageError(f"name something to explain: {UNDERSTOOD}")
    kinds = ["log" if pattern and path.name not in _RECORDS else recognise(path) for path in files]
    kind = kinds[0]
    if len(set(kinds)) > 1:
        told = ", ".join(f"'{plain(path.name)}' is a {each}" for path, each in zip(files, kinds, strict=True))
        raise UsageError(f"{plain(told)}: explain one kind at a time")
    if kind == "log":
        return read_logs(files, np, pattern)
    if len(files) > 1:
        raise UsageError(
            f"{len(files)} files, each a {kind}: explain one at a time, or see what changed with scalescope compare"
        )
    if np or pattern:
        raise UsageError(f"--np and --pattern go with logs, '{plain(files[0].name)}' is a {kind}: leave them out")
    if kind == "table":
        return read_table(files[0])
    return load(files[0], Scaling) if kind == "scaling" else scaling_of(load(files[0], Measurement))


def recognise(path: Path) -> str:
    """Detect a measurement, scaling, table or log by the contents of a file; one line says what else is understood."""
    beginning = head(path)
    if is_trainer_file(path):
        return "log"
    if path.suffix.lower() in _RECORD_ENDINGS:
        kind = record_kind(path)
        if kind in ("measurement", "scaling"):
            return kind
        if kind in _OF_REPORT:
            shown = f"scalescope report {shlex.quote(plain(str(path)))}"
            raise UsageError(f"'{plain(path.name)}' is a scalescope {kind} already: {shown} shows it")
        holds = f"holds a scalescope '{plain(kind, 30)}'" if kind else "is JSON of another program"
        raise UsageError(f"'{plain(path.name)}' {holds}: name {UNDERSTOOD}")
    is_table = path.suffix.lower() in _TABLE_ENDINGS or any(map(is_heading, beginning.splitlines()))
    return "table" if is_table else "log"


def _record_in(path: Path) -> Path:
    """The record of a result folder; any other path as it is."""
    if not path.is_dir():
        return path
    for name in _RECORDS:
        if (path / name).is_file():
            return path / name
    raise UsageError(
        f"the folder '{plain(str(path))}' holds no measurement.json: "
        "name one that scalescope measure wrote, or a table or logs in it"
    )
