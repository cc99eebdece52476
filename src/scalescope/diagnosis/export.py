"""All steps of a job's traces as one trace for Perfetto, all ranks on one clock."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from scalescope.diagnosis.material import material, traces_in
from scalescope.errors import UsageError
from scalescope.records.store import writing
from scalescope.records.timeline import Span
from scalescope.records.trace_folder import TRACE_RECORD
from scalescope.timelines.export import HEAD, export


def check_export(path: Path) -> None:
    """An earlier export may be replaced, anything else not: a user's traces look much the same."""
    if not path.is_file():
        return
    try:
        with open(path, "rb") as file:
            head = file.read(len(HEAD))
    except OSError as problem:
        raise UsageError(f"cannot write --export '{path}': {problem.strerror}: choose another name") from None
    if head and head != HEAD:
        raise UsageError(f"--export '{path}' exists and is no export of scalescope explain: choose another name")


def export_job(paths: Sequence[Path], path: Path) -> int:
    """Write the traced steps of every rank; how many spans they are."""
    check_export(path)
    read = material([each for each in paths if (each / TRACE_RECORD).is_file() or traces_in(each)])
    if not any(len(trace.starts_s) for trace in read.traces):
        raise UsageError("there are no steps to export: the traces have none")

    def spans() -> Iterator[Span]:
        for at, trace in enumerate(read.traces):
            if len(trace.starts_s):
                yield from read.spans(at, float(trace.starts_s[0]), float(trace.ends_s[-1]))

    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        return export(spans(), path, read.clocks)
