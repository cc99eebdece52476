"""Files of many ranks are read by several processes, with the same result."""

import os
from pathlib import Path

import msgspec
import pytest

from scalescope.diagnosis import traces
from scalescope.diagnosis.sources import explain_traces
from scalescope.errors import UsageError
from scalescope.traces.marks import RankMarks
from scalescope.traces.readers import read_trace
from scalescope.traces.trace import Trace

GLOO = Path(__file__).parents[1] / "data" / "traces" / "kineto" / "gloo_small"


@pytest.mark.launches
def test_processes_read_the_same_as_one_and_errors_reach_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = explain_traces([GLOO])
    monkeypatch.setattr(traces, "_WORTH_PROCESSES", 1)
    monkeypatch.setattr(traces.host, "cores", lambda: _TwoCores)
    monkeypatch.setattr(traces.threading, "active_count", lambda: 1)  # pytest-xdist has threads of its own
    monkeypatch.setattr(traces, "read_trace", noting_who_reads)
    monkeypatch.setenv("READERS", str(tmp_path / "readers"))
    apart = explain_traces([GLOO])
    readers = (tmp_path / "readers").read_text().split()
    assert len(readers) == 2
    assert str(os.getpid()) not in readers
    (tmp_path / "readers").unlink()
    assert msgspec.to_builtins(apart) == msgspec.to_builtins(here), "the drawn step too, which is read again"
    assert apart.shown_step is not None
    assert apart.shown_step.spans
    empty = '{"schemaVersion": 1, "traceEvents": [], "traceName": "x"}'
    for name in ("rank0.json", "rank1.json"):
        (tmp_path / name).write_text(empty)
    with pytest.raises(UsageError, match="holds no events of a training"):
        explain_traces([tmp_path])


class _TwoCores:
    logical = 2


def noting_who_reads(path: Path, marks: RankMarks | None = None, *, may_be_empty: bool = False) -> Trace:
    with open(os.environ["READERS"], "a") as file:
        file.write(f"{os.getpid()}\n")
    return read_trace(path, marks, may_be_empty=may_be_empty)
