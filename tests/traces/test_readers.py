"""The contract of every reader: whoever adds a format adds samples to SAMPLES and passes all of this."""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pytest

from scalescope.diagnosis.traces import traces_in, unread_in
from scalescope.errors import UsageError
from scalescope.traces.event_stream import beginning_of
from scalescope.traces.horovod import reading as horovod
from scalescope.traces.kineto import reading as kineto
from scalescope.traces.readers import READERS, Reader, read_trace, reader_of
from scalescope.traces.trace import Trace

DATA = Path(__file__).parents[1] / "data" / "traces"
SAMPLES = {
    "horovod timeline": sorted((DATA / "horovod").iterdir()),
    "profiler traces": sorted((DATA / "kineto").rglob("*.json*")),
}
CASES = [
    pytest.param(reader, path, id=f"{path.parent.name}-{path.name}")
    for reader in READERS
    for path in SAMPLES[reader.kind]
]
each_sample = pytest.mark.parametrize(("reader", "path"), CASES)
one_sample = pytest.mark.parametrize(
    ("reader", "path"), [pytest.param(reader, SAMPLES[reader.kind][0], id=reader.kind) for reader in READERS]
)


def text_of(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def same(one: Trace, other: Trace) -> bool:
    return one.starts_s.tolist() == other.starts_s.tolist() and np.array_equal(one.parts.other, other.parts.other)


def test_every_reader_has_samples_and_a_name_of_its_own() -> None:
    assert {reader.kind for reader in READERS} == set(SAMPLES)
    assert len({reader.kind for reader in READERS}) == len(READERS)


@each_sample
def test_a_sample_is_recognised_by_one_reader(reader: Reader, path: Path) -> None:
    assert [each for each in READERS if each.recognises(beginning_of(path))] == [reader]
    assert reader_of(path) is reader


@each_sample
def test_the_parts_of_steps_add_up_and_steps_ascend(reader: Reader, path: Path) -> None:
    trace = reader.read(path)
    assert not trace.is_empty
    parts = dataclasses.replace(trace.parts, waiting=None)  # a part of exposed
    known = [part for part in dataclasses.astuple(parts)[1:] if part is not None]
    hidden = 0.0 if trace.parts.hidden is None else trace.parts.hidden
    waiting, exposed = trace.parts.waiting, trace.parts.exposed
    assert waiting is None or (exposed is not None and np.all((waiting >= 0) & (waiting <= exposed + 1e-9)))
    assert sum(known) - hidden == pytest.approx(trace.parts.step)
    assert all((part >= -1e-9).all() for part in known)
    assert (trace.ends_s > trace.starts_s).all()
    assert (trace.starts_s[1:] >= trace.ends_s[:-1] - 1e-6).all()
    assert (np.diff(trace.collectives.end_s) >= 0).all()
    assert trace.loss.reason == ""
    assert trace.whole_job != reader.per_rank
    assert (trace.horovod is None) == (trace.engine != "horovod")


@each_sample
def test_a_step_can_be_drawn(reader: Reader, path: Path) -> None:
    trace = reader.read(path)
    if len(trace.starts_s):
        start, end = float(trace.starts_s[-1]), float(trace.ends_s[-1])
        spans = trace.spans(start, end)
        assert spans
        assert all(span.start_s <= end and span.end_s >= start and span.end_s >= span.start_s for span in spans)
        assert {span.rank for span in spans} == {trace.rank or 0}


@one_sample
def test_plain_and_gzip_files_read_the_same(reader: Reader, path: Path, tmp_path: Path) -> None:
    plain, packed = tmp_path / path.stem, tmp_path / "packed"
    plain.write_bytes(text_of(path))
    packed.write_bytes(gzip.compress(text_of(path)))
    one, other = reader.read(plain), reader.read(packed)
    assert same(one, other)
    if len(one.starts_s):
        assert one.spans(one.starts_s[0], one.ends_s[0]) == other.spans(one.starts_s[0], one.ends_s[0])


@one_sample
def test_a_cut_file_is_read_as_far_as_it_goes(reader: Reader, path: Path, tmp_path: Path) -> None:
    text, cut = text_of(path), tmp_path / "cut.json"
    for size in np.linspace(len(text) // 10, len(text) - 60, 7).astype(int).tolist():
        cut.write_bytes(text[:size])
        trace = reader.read(cut)
        assert trace.loss.reason
        assert len(trace.starts_s) <= len(reader.read(path).starts_s)


@pytest.mark.parametrize("kind", list(SAMPLES))
def test_a_step_is_drawn_from_the_pieces_that_hold_it(kind: str, tmp_path: Path) -> None:
    """What is far from the step may be gone by then: the file is decoded once, and a step's pieces once more."""
    path = tmp_path / "long.json"
    repeat(kind, path)
    reader = reader_of(path)
    assert reader is not None
    trace = reader.read(path)
    at = len(trace.starts_s) // 2
    start, end = float(trace.starts_s[at]), float(trace.ends_s[at])
    before = trace.spans(start, end)
    assert before
    data, tenth = path.read_bytes(), path.stat().st_size // 10
    path.write_bytes(b" " * tenth + data[tenth:-tenth] + b" " * tenth)
    assert trace.spans(start, end) == before


def repeat(kind: str, path: Path) -> None:
    """A sample again and again, later and later, in a file of many pieces."""
    from benchmarks import traces

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "FOLDER", path.parent)
        patch.setattr(traces, "SAMPLES", DATA)
        made = (
            traces.horovod(16)
            if kind == "horovod timeline"
            else traces.kineto(traces.PROFILER_TRACES["NCCL, CUDA"], 60)
        )
    made.rename(path)


@pytest.mark.parametrize(
    "data", [b"", b" \n", b"hello", b"[1, 2]", b'{"a": 1}', b"\0" * 100, b"\x1f\x8b", b"a,b\n1,2\n"]
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "what\x1b[31m.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="name a Horovod timeline") as problem:
        read_trace(path)
    assert "\x1b" not in str(problem.value)
    assert "\n" not in str(problem.value)
    assert reader_of(path) is None


def test_a_reader_alone_says_which_files_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = dataclasses.replace(
        READERS[0], kind="made up", endings=(".made",), recognises=lambda beginning: beginning.startswith(b"MADE")
    )
    monkeypatch.setattr("scalescope.traces.readers.READERS", (*READERS, made_up))
    texts = {"rank0.made": b"MADE up", "rank1.made": b"nonsense", "rank2.made": b"", "other.txt": b"MADE up"}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    assert [path.name for path, _ in traces_in(tmp_path)] == ["rank0.made"]
    assert unread_in(tmp_path) == ["'rank1.made' is not a trace", "'rank2.made' is empty"]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read 'none\.json'"):
        read_trace(tmp_path / "none.json")
    assert reader_of(tmp_path / "none.json") is None


def test_a_timeline_that_has_just_begun_is_one(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text_of(SAMPLES["horovod timeline"][0])[:3])
    reader = reader_of(path)
    assert reader is not None
    assert reader.read is horovod.read
    with pytest.raises(UsageError, match="holds no events of a training"):
        read_trace(path)
    assert read_trace(path, may_be_empty=True).is_empty


def test_events_with_threads_are_the_profilers_even_without_an_object_around_them(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 1.0, "dur": 1.0}]')
    reader = reader_of(path)
    assert reader is not None
    assert reader.read is kineto.read
