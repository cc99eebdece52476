"""Whatever a user has: traces, run folders, tables, logs; the kind is recognised, read and explained."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from scalescope.diagnosis.comparison import beside_estimate
from scalescope.diagnosis.epochs import with_epochs
from scalescope.diagnosis.explanation import explained
from scalescope.diagnosis.findings import find
from scalescope.diagnosis.findings.case import Case
from scalescope.diagnosis.material import material, traces_in
from scalescope.diagnosis.replay import replay_of
from scalescope.errors import UsageError
from scalescope.records.autotune import Autotune
from scalescope.records.explanation import Explanation
from scalescope.records.scaling import Scaling
from scalescope.records.trace_folder import TRACE_RECORD
from scalescope.scaling.autotune import is_autotune_log, read_autotune
from scalescope.scaling.sources import explain as explain_scaling
from scalescope.scaling.text_files import printable


def explain(
    paths: Sequence[Path], *, np: Sequence[int] = (), pattern: str = "", estimate: Path | None = None
) -> Scaling | Explanation | Autotune:
    """What these files say; traces may come with the log of the same run, which tells its epochs."""
    traced = [path for path in paths if _holds_traces(path)]
    others = [path for path in paths if path not in traced]
    if not traced:
        if estimate is not None:
            raise UsageError("--estimate goes with traces: name a trace or a folder of scalescope explain -- COMMAND")
        if len(paths) == 1 and paths[0].is_file() and is_autotune_log(_beginning(paths[0])):
            return read_autotune(paths[0])
        return explain_scaling(paths, np=np, pattern=pattern)
    if len(others) > 1:
        names = ", ".join(printable(path.name) for path in others)
        raise UsageError(f"beside traces one log of the same run is understood, not {len(others)} ({names})")
    return explain_traces(traced, log=others[0] if others else None, pattern=pattern, estimate=estimate)


def explain_traces(
    paths: Sequence[Path], *, log: Path | None = None, pattern: str = "", estimate: Path | None = None
) -> Explanation:
    """Traces of one job, with findings."""
    read = material(paths)
    explanation = explained(read)
    if log is not None:
        explanation = with_epochs(explanation, read, log, pattern)
    if estimate is not None:
        explanation = beside_estimate(explanation, read, estimate)
    case = Case(explanation, read, replay_of(read, explanation))
    return msgspec.structs.replace(explanation, findings=find(case))


def _beginning(path: Path) -> str:
    """The first lines, whatever follows them: a killed job may leave zeros."""
    with open(path, "rb") as file:
        return file.read(4096).decode("utf-8", "replace")


def _holds_traces(path: Path) -> bool:
    if path.is_dir():
        known = any((path / name).is_file() for name in ("measurement.json", "scaling.json"))
        return (path / TRACE_RECORD).is_file() or (not known and bool(traces_in(path)))
    return bool(traces_in(path))
