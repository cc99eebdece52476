import gzip
import json
from bisect import bisect_right
from pathlib import Path

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.traces.event_stream import LONGEST_EVENT, EventStream, looks_like
from traces.horovod_reference import SAMPLES, text_of


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    ts: float = 0.0


def read(path: Path, data: bytes | None = None) -> tuple[list[Event], EventStream[Event]]:
    if data is not None:
        path.write_bytes(data)
    stream = EventStream(path, Event)
    return [event for events in stream for event in events], stream


def test_all_events_come_in_order(tmp_path: Path) -> None:
    for name in ("gloo_ops", "mpi_cnn"):
        text = text_of(name)
        events, stream = read(tmp_path / "t.json", text)
        expected = [(event["ph"], event.get("name", ""), event.get("ts", 0.0)) for event in json.loads(text)]
        assert [(event.ph, event.name, event.ts) for event in events] == expected
        assert stream.loss.events == stream.loss.bytes == 0
        assert stream.loss.reason == ""
        assert stream.bytes_read == len(text)


def test_a_file_cut_anywhere_keeps_every_complete_event(tmp_path: Path) -> None:
    text, path = text_of("gloo_ops"), tmp_path / "cut.json"
    decoder, source, ends, position = json.JSONDecoder(), text.decode(), [], 1
    while (position := source.find("{", position)) >= 0:
        _, position = decoder.raw_decode(source, position)
        ends.append(position)
    for size in range(1, len(text), 31):
        events, stream = read(path, text[:size])
        complete = bisect_right(ends, size)
        assert len(events) == complete
        assert stream.loss.reason
        within = size - ends[complete - 1] > 3 if complete else size > 2
        if within:
            assert stream.loss.events == 1
            assert stream.loss.bytes > 0


def test_an_object_is_read_with_what_stands_around_its_events(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": f"n{number}", "args": {"list": [{"a": 1}, {"b": 2}]}} for number in range(50_000)]
    whole = {"schemaVersion": 1, "traceEvents": events, "traceName": "here", "more": [{"ph": "no"}, {"ph": "no"}]}
    found, stream = read(tmp_path / "t.json", json.dumps(whole, indent=1).encode())
    assert [event.name for event in found] == [event["name"] for event in events]
    assert b'"schemaVersion": 1' in stream.header
    assert b'"traceName": "here"' in stream.footer
    assert stream.loss.reason == ""


def test_borders_within_strings_and_lists_are_none(tmp_path: Path) -> None:
    one = {"ph": "B", "name": '},{"ph":"no"},{', "args": [{"ph": "no"}, {"ph": "no"}]}
    found, stream = read(tmp_path / "t.json", json.dumps([one] * 40_000).encode())
    assert len(found) == 40_000
    assert {event.name for event in found} == {one["name"]}
    assert stream.loss.events == 0


@pytest.mark.parametrize(
    "bad",
    [
        b'{"ph": "B", "name": "\xff\xfe"}',
        b'{"ph": 17}',
        b'{"ph": "B", "name": "unfinished}',
        b'{"ph": "B" "name": "x"}',
        b'{"ph": "B", "args": ' + b'{"a": ' * 10_000 + b"1" + b"}" * 10_001,
        b'{"ph": "B", "args": ' + b"[" * 10_000 + b"1" + b"]" * 10_000 + b"}",
        b'{"ph": "B", "na"me": "x"}',
    ],
)
def test_one_bad_event_is_counted_and_the_others_are_kept(tmp_path: Path, bad: bytes) -> None:
    good = [b'{"ph": "B", "name": "%d"}' % number for number in range(60_000)]
    events, stream = read(tmp_path / "t.json", b"[" + b",".join([*good[:30_000], bad, *good[30_000:]]) + b"]")
    assert [event.name for event in events] == [str(number) for number in range(60_000)] or len(events) == 59_999
    assert stream.loss.events in (1, 2)
    assert stream.loss.reason == "some events are damaged"


def test_an_array_may_be_open_closed_early_or_interrupted(tmp_path: Path) -> None:
    text = b'[{"ph": "a"},{"ph": "b"}],{"ph": "c"}]\n[{"ph": "d"},garbage,{"ph": "e"},'
    events, stream = read(tmp_path / "t.json", text)
    assert [event.ph for event in events] == list("abcde")
    assert stream.loss.bytes == len(b"garbage")


def test_gzip_is_recognised_by_its_bytes_and_may_be_cut_or_damaged(tmp_path: Path) -> None:
    text = text_of("mpi_cnn")
    packed = gzip.compress(text)
    whole, stream = read(tmp_path / "no_suffix", packed)
    assert stream.loss.reason == ""
    assert read(tmp_path / "members", gzip.compress(text[:1000]) + gzip.compress(text[1000:]))[0] == whole
    for size in (len(packed) // 10, len(packed) // 3, len(packed) - 1):
        some, stream = read(tmp_path / "cut.gz", packed[:size])
        assert some == whole[: len(some)]
        assert len(some) > 0.7 * size / len(packed) * len(whole)
        assert "gzip data ends early" in stream.loss.reason
    damaged = bytearray(gzip.compress(text * 20))
    damaged[len(damaged) // 2 : len(damaged) // 2 + 50] = b"\0" * 50
    some, stream = read(tmp_path / "damaged.gz", bytes(damaged))
    assert stream.loss.reason


@pytest.mark.parametrize("begin", [b'[{"ph": "B"},', b'[{"ph": "B"},{"name": "', b'{"traceEvents": [{"ph": "B"},'])
def test_a_zip_bomb_ends_at_a_limit_which_is_stated(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(begin)
        for _ in range(100):
            file.write(b" " * (1 << 20))
    events, stream = read(path)
    assert len(events) == 1
    assert stream.bytes_read < LONGEST_EVENT + (4 << 20)
    assert "16 MiB without the end of an event" in stream.loss.reason


@pytest.mark.parametrize(
    "data", [b"", b" \n", b"hello", b"[1, 2]", b'{"a": 1}', b"\0" * 100, b"\x1f\x8b", b"a,b\n1,2\n"]
)
def test_what_is_no_trace_is_told_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "what\x1b[31m.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="name a Horovod timeline") as problem:
        EventStream(path, Event)
    assert "\x1b" not in str(problem.value)
    assert "\n" not in str(problem.value)
    assert looks_like(path) is None


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read 'none\.json'"):
        EventStream(tmp_path / "none.json", Event)


def test_kinds_are_recognised_by_the_beginning(tmp_path: Path) -> None:
    for path in SAMPLES.iterdir():
        assert looks_like(path) == "horovod"
    for path in (SAMPLES.parent / "kineto").rglob("*.json*"):
        assert looks_like(path) == "kineto"
    path = tmp_path / "t.json"
    path.write_bytes(text_of("gloo_ops")[:3])
    assert looks_like(path) == "horovod"
