"""Remembers what was decided, per training, cluster and number of processes, for `--start-from last`."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from scalescope.errors import ScalescopeError
from scalescope.records.store import append, complete_lines, decode, drop_torn_line
from scalescope.records.tuning import Remembered, TuneRequest, Tuning

LAST = "last"  # What --start-from takes instead of a path


def file() -> Path:
    """Where they are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "scalescope" / "tuned-v1.jsonl"


def remember(request: TuneRequest, tuning: Tuning) -> str:
    """Remember a decision, the default's among them; a warning when that fails, otherwise ""."""
    if not tuning.complete or not tuning.samples or tuning.decision == "undecided":
        return ""
    one = Remembered(
        training=_training(request),
        engine=tuning.engine,
        cluster=_cluster(request),
        np=request.np,
        held=tuning.held,
        values=tuning.values,
        gain=tuning.gain.value if tuning.gain and tuning.decision == "use" else 0.0,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        drop_torn_line(file())
        append(one, file())
    except (OSError, ScalescopeError):
        return f"the decision could not be remembered for --start-from last: {file()} cannot be written"
    return ""


def recall(request: TuneRequest, engine: str) -> Remembered | None:
    """The latest decision about the same training here; None: there is none, or the default was kept."""
    key = _training(request), engine, _cluster(request), request.np
    found: Remembered | None = None
    try:
        for line in complete_lines(file()):
            try:
                one = decode(line, Remembered, str(file()))
            except ScalescopeError:
                continue
            if (one.training, one.engine, one.cluster, one.np) == key:
                found = one
    except OSError:
        return None
    return found if found and found.values else None


def _training(request: TuneRequest) -> str:
    """A model with its arguments, or a command; and the batch."""
    what = msgspec.json.encode(request.workload or request.command).decode()
    return f"{what} batch {request.batch}" if request.batch else what


def _cluster(request: TuneRequest) -> str:
    return ",".join(f"{host.name}:{host.slots}" for host in request.hosts) or platform.node()
