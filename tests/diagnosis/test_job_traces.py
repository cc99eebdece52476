"""Traces of a job with its ranks' own marks: what is drawn of them, what belongs together, and where an export goes."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from command_line import CommandLine
from diagnosis.test_findings import horovod, record, trace
from privileges import without_override
from scalescope.diagnosis.explanation import explained, transfers
from scalescope.diagnosis.late_ranks import LateRanks, late_ranks
from scalescope.diagnosis.sources import check_export, explain
from scalescope.diagnosis.traces import JobTraces, read_job, traces_in
from scalescope.errors import UsageError
from scalescope.records.explanation import TRACE_RECORD, Explanation
from scalescope.records.store import load, save
from scalescope.traces.marks import RankMarks, read_marks
from scalescope.traces.trace import Collectives, Parts

TRACES = Path(__file__).parents[1] / "data" / "traces"
EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
GLOO = TRACES / "kineto" / "gloo_small"


def marks(folder: Path, rank: int = 0) -> RankMarks:
    """One step of 1 s from second 10 of the epoch: input, forward, backward, then an optimizer that waits first."""
    spans: dict[str, Any] = {"input": (0.0, 0.1), "forward": (0.1, 0.3), "backward": (0.3, 0.6)}
    spans |= {"synchronize": (0.6, 0.8), "optimizer": (0.6, 0.9)}
    hello = {"kind": "hello", "version": 1, "rank": rank, "world_size": 2, "host": "a", "engine": "horovod"}
    timed = {name: [[int(begin * 1e9), int(end * 1e9)]] for name, (begin, end) in spans.items()}
    lines = [{**hello, "t": 0, "wall_ns": 10 * 10**9}, {"kind": "step", "n": 0, "s": 0, "t": 10**9, **timed}]
    path = folder / f"marks-rank{rank}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_marks(path)


def drawn(made: JobTraces, start_s: float, end_s: float) -> list[tuple[int, str, float, float]]:
    return [
        (span.rank, span.activity, round(span.start_s, 6), round(span.end_s, 6))
        for span in made.spans(0, start_s, end_s)
    ]


def test_marks_of_a_rank_are_drawn_beside_its_timeline_without_the_wait(tmp_path: Path) -> None:
    seen = dataclasses.replace(trace(), rank=1, epoch_s=9.0)
    made = JobTraces("run folder", (seen,), marks=(marks(tmp_path, 0), marks(tmp_path, 1)))
    assert drawn(made, 0.0, 5.0) == [
        (1, "input", 1.0, 1.1),
        (1, "forward", 1.1, 1.3),
        (1, "backward", 1.3, 1.6),
        (1, "optimizer", 1.8, 1.9),
    ]
    assert drawn(made, 1.05, 1.4) == [
        (1, "input", 1.05, 1.1),
        (1, "forward", 1.1, 1.3),
        (1, "backward", 1.3, 1.4),
    ]
    assert drawn(made, 2.0, 5.0) == []
    assert drawn(JobTraces("run folder", (seen,), marks=(marks(tmp_path, 0),)), 0.0, 5.0) == [], "of another rank"


def test_traces_without_a_rank_are_numbered_in_their_order() -> None:
    nameless = dataclasses.replace(trace(), rank=None)
    assert JobTraces("profiler traces", (nameless, nameless)).ranks == (0, 1)
    assert JobTraces("profiler traces", (dataclasses.replace(trace(), rank=4),)).ranks == (4,)


def test_a_trace_that_does_not_say_its_rank_takes_one_that_no_other_has(tmp_path: Path) -> None:
    texts = [gzip.decompress((GLOO / f"rank{rank}.json.gz").read_bytes()) for rank in (1, 0)]
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for path, text in zip(files, (texts[0], texts[1].replace(b'"distributedInfo"', b'"unknown"')), strict=True):
        path.write_bytes(text)
    job = read_job(files)
    assert [(trace.rank, trace.path) for trace in job.traces] == [(0, files[1]), (1, files[0])]


def test_a_folder_holds_those_files_that_are_traces(tmp_path: Path) -> None:
    assert [path.name for path, _ in traces_in(GLOO)] == sorted(path.name for path in GLOO.iterdir())
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "folder.json").mkdir()
    assert traces_in(tmp_path) == traces_in(tmp_path / "notes.json") == traces_in(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read 'rank1.json.gz': Permission denied"),
        (b"", "'rank1.json.gz' is empty"),
        (b"\x1f\x8b\x08\x00", "'rank1.json.gz' is not a trace (the gzip data is cut or damaged"),
        (b"\x1f\x8b\x08\x00" + b"x" * 99, "'rank1.json.gz' is not a trace (the gzip data is cut or damaged"),
        (b"<html>404 Not Found</html>", "'rank1.json.gz' is not a trace"),
    ],
)
def test_rank_of_a_folder_that_cannot_be_read_is_named_with_the_reason(
    scalescope: CommandLine, content: bytes | None, reason: str
) -> None:
    folder = scalescope.folder / "traces"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.json.gz").write_bytes((GLOO / f"rank{rank}.json.gz").read_bytes())
    (folder / "settings.json").write_text('{"lr": 0.1}')  # JSON that never was a trace
    lost = folder / "rank1.json.gz"
    lost.chmod(0) if content is None else lost.write_bytes(content)
    with without_override():
        done = scalescope.in_this_process("explain", "traces", "--json", "-o", "out")
        details = scalescope.in_this_process("explain", "traces", "--details").stdout
        lost.rename(folder / "rank0.json.gz")  # now nothing is left
        refused = scalescope.in_this_process("explain", "traces", code=2).stderr
    assert " ".join(done.stderr.split()).count(f"Warning: not read: {reason}") == 1
    assert f"not read: {reason}" in " ".join(details.split())
    (named,) = json.loads(done.stdout)["lost"]["files"]
    assert named.startswith(reason)
    assert load(scalescope.folder / "out" / "explanation.json", Explanation).lost.files == (named,)
    assert reason.replace("rank1", "rank0") in refused
    assert refused.count("\n") == 1


def test_a_run_folder_that_lacks_a_file_is_told(tmp_path: Path) -> None:
    save(msgspec.structs.replace(record(1, 4), timeline="timeline.json"), tmp_path / TRACE_RECORD)
    with pytest.raises(UsageError, match=r"lacks timeline\.json, which its traced\.json names: capture it again"):
        read_job([tmp_path])


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "all.json"
    explain([GLOO], export_to=path)
    before = path.read_bytes()
    check_export(path)
    explain([GLOO], export_to=path)
    assert path.read_bytes() == before
    (tmp_path / "empty.json").write_bytes(b"")
    check_export(tmp_path / "empty.json")
    check_export(tmp_path / "none.json")
    (tmp_path / "mine.json").write_text('{"traceEvents": []}')
    with pytest.raises(UsageError, match="exists and is no export of scalescope explain: choose another name"):
        check_export(tmp_path / "mine.json")
    with pytest.raises(UsageError, match="--export goes with traces: name a trace, or -- and a command"):
        explain([EXAMPLES / "lab11.csv"], export_to=path)


def test_transfers_are_grouped_by_operation_and_size() -> None:
    seen = Collectives(
        np.array(["allreduce", "allreduce", "broadcast", "allreduce", "allreduce", "barrier"], dtype=object),
        np.array([100, 100, 300, 200, 100, 0], dtype=np.int64),
        np.zeros(6),
        np.array([0.1, 0.3, 0.5, 0.0, 0.2, 1.0]),
    )
    rows = transfers([dataclasses.replace(trace(), collectives=seen, world_size=4)])
    assert [(row.operation, row.bytes, row.count, row.ranks) for row in rows] == [
        ("broadcast", 300, 1, 4),
        ("allreduce", 100, 3, 4),
    ]
    assert [row.seconds for row in rows] == pytest.approx([0.5, 0.2])
    assert [row.algorithm_bytes_per_s for row in rows] == pytest.approx([600, 500])
    assert [row.bus_bytes_per_s for row in rows] == pytest.approx([600, 750])
    assert [row.wait_s for row in rows] == [None, None]


@pytest.mark.parametrize(
    ("operation", "share"),
    [("allreduce", 1.5), ("allgather", 0.75), ("reducescatter", 0.75), ("alltoall", 0.75), ("broadcast", 1.0)],
)
def test_what_a_link_carries_is_counted_as_nccl_tests_does(operation: str, share: float) -> None:
    seen = Collectives(np.array([operation], dtype=object), np.array([100]), np.zeros(1), np.ones(1))
    (row,) = transfers([dataclasses.replace(trace(), collectives=seen, world_size=4)])
    assert row.bus_bytes_per_s == pytest.approx(share * row.algorithm_bytes_per_s)


def of_steps(*seconds: float, from_start: bool = False) -> Explanation:
    step = np.array(seconds)
    ends = np.cumsum(step)
    parts = Parts(step, None, None, None, None, None, step)
    made = dataclasses.replace(trace(), starts_s=ends - step, ends_s=ends, parts=parts, whole_job=from_start)
    return explained(JobTraces("profiler traces", (made,)))


def test_the_step_that_is_drawn_is_nearest_to_the_median_of_steady_ones() -> None:
    assert of_steps(9.0, 1.0, 3.0, 2.0, 2.0, from_start=True).shown_index == 3
    assert of_steps(1.0, 1.0).shown_index == 0
    assert of_steps().shown_index is None


def test_the_first_step_of_all_is_warmup_and_that_of_a_stretch_is_not() -> None:
    assert of_steps(1.0, from_start=True).warmup_steps == 0
    assert of_steps(1.0, 1.0, from_start=True).warmup_steps == 1
    assert of_steps(*[1.0] * 20, from_start=True).warmup_steps == 1
    assert of_steps(*[1.0] * 20).warmup_steps == 0
    assert of_steps(5.0, 5.0, *[1.0] * 18).warmup_steps == 2
    assert of_steps(5.0, *[1.0] * 6).warmup_steps == 0, "too few to say"


def late(
    last_rank: dict[int, int], cached: bool = True, *, negotiated_s: float | None = 0.5, warmup: int = 5
) -> LateRanks:
    """By a timeline of 20 steps of 1 s, in which nobody is named step by step."""
    negotiated = None if negotiated_s is None else np.full(20, negotiated_s)
    made = JobTraces("horovod timeline", (dataclasses.replace(trace(), negotiated=negotiated),))
    return late_ranks(made, horovod(last_rank=last_rank, cached=cached), warmup, [1.0] * (20 - warmup))


def test_a_rank_that_cached_negotiations_hide_is_named_by_the_others() -> None:
    found = late({0: 1, 3: 19})
    assert (found.straggler, found.skew_s) == (3, ())
    assert dict(found.late_s) == pytest.approx({3: 0.498})
    assert found.note == "named by the 20 negotiations that were not cached: 19 waited for it"
    for counts in ({}, {3: 2}, {0: 2, 3: 19}):
        unknown = late(counts)
        assert unknown.straggler is None
        assert unknown.note.startswith("rank unknown: cached negotiation; ")
    assert late({3: 3}).straggler == 3
    assert late({3: 20}, negotiated_s=0.0).straggler is None, "nobody waits"


def test_the_last_rank_is_told_with_its_share() -> None:
    assert late({0: 1, 3: 3}, cached=False).note == "rank 3 was the last to be ready in 75 % of the negotiations"
    assert late({}, cached=False).note == ""


def test_without_negotiations_or_steady_steps_nobody_is_named() -> None:
    for nothing in (late({3: 20}, negotiated_s=None), late({3: 20}, warmup=20)):
        assert (nothing.straggler, nothing.late_s, nothing.skew_s, nothing.note) == (None, {}, (), "")
    uncached = late({3: 20}, cached=False)
    assert (uncached.straggler, uncached.skew_s) == (None, (0.5,) * 15)
