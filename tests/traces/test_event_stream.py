import gzip
import json
from bisect import bisect_right
from pathlib import Path

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.traces.event_stream import LONGEST_EVENT, Events, halves
from traces.horovod_reference import text_of


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    ts: float = 0.0


def read(path: Path, data: bytes | None = None) -> tuple[list[Event], Events[Event]]:
    if data is not None:
        path.write_bytes(data)
    stream = Events(path, Event)
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


@pytest.mark.parametrize("comma", [b",", b", ", b" ,\n"])
def test_two_halves_hold_all_events(comma: bytes) -> None:
    events = [{"ph": "X", "name": str(number)} for number in range(9)]
    for count in range(3, 10):
        parts = halves(comma.join(json.dumps(event).encode() for event in events[:count]))
        assert parts is not None
        assert [event for part in parts for event in json.loads(b"[%b]" % part)] == events[:count]
    assert halves(b'{"ph": "X"}') is None


def test_a_file_cut_anywhere_keeps_every_complete_event(tmp_path: Path) -> None:
    text, path = text_of("gloo_ops"), tmp_path / "cut.json"
    decoder, source, ends, position = json.JSONDecoder(), text.decode(), [], 1
    while (position := source.find("{", position)) >= 0:
        _, position = decoder.raw_decode(source, position)
        ends.append(position)
    for size in range(1, len(text), 389):
        events, stream = read(path, text[:size])
        complete = bisect_right(ends, size)
        assert len(events) == complete
        assert stream.loss.reason
        within = size - ends[complete - 1] > 3 if complete else size > 2
        if within:
            assert stream.loss.events == 1
            assert stream.loss.bytes > 0


def test_an_object_is_read_with_what_stands_around_its_events(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": f"n{number}", "args": {"list": [{"a": 1}, {"b": 2}]}} for number in range(12_000)]
    whole = {"schemaVersion": 1, "traceEvents": events, "traceName": "here", "more": [{"ph": "no"}, {"ph": "no"}]}
    found, stream = read(tmp_path / "t.json", json.dumps(whole, indent=1).encode())
    assert [event.name for event in found] == [event["name"] for event in events]
    assert b'"schemaVersion": 1' in stream.header
    assert b'"traceName": "here"' in stream.footer
    assert stream.loss.reason == ""


def test_borders_within_strings_and_lists_do_not_split_events(tmp_path: Path) -> None:
    one = {"ph": "B", "name": '},{"ph":"no"},{', "args": [{"ph": "no"}, {"ph": "no"}]}
    found, stream = read(tmp_path / "t.json", json.dumps([one] * 15_000).encode())
    assert len(found) == 15_000
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
    packed = gzip.compress(text, 1)
    whole, stream = read(tmp_path / "no_suffix", packed)
    assert stream.loss.reason == ""
    assert read(tmp_path / "members", gzip.compress(text[:1000]) + gzip.compress(text[1000:], 1))[0] == whole
    for size in (len(packed) // 10, len(packed) // 3, len(packed) - 1):
        some, stream = read(tmp_path / "cut.gz", packed[:size])
        assert some == whole[: len(some)]
        assert len(some) > 0.7 * size / len(packed) * len(whole)
        assert stream.loss.reason == "the gzip data is cut or damaged from some point on"
    damaged = bytearray(gzip.compress(text * 2, 1))
    damaged[len(damaged) // 2 : len(damaged) // 2 + 50] = b"\0" * 50
    some, stream = read(tmp_path / "damaged.gz", bytes(damaged))
    assert stream.loss.reason == "the gzip data is cut or damaged from some point on"
    assert len(some) > 0.9 * len(whole), "only the last piece before the damage is lost"


@pytest.mark.parametrize("begin", [b'[{"ph": "B"},', b'[{"ph": "B"},{"name": "', b'{"traceEvents": [{"ph": "B"},'])
def test_a_zip_bomb_ends_at_a_limit_which_is_stated(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(begin)
        for _ in range(2 * LONGEST_EVENT >> 20):
            file.write(b" " * (1 << 20))
    events, stream = read(path)
    assert len(events) == 1
    assert stream.bytes_read < LONGEST_EVENT + (4 << 20)
    assert stream.loss.reason == "16 MiB without the end of an event: what follows them was not read"
    assert stream.loss.bytes == (stream.bytes_read - len(begin) + len('{"name": "') if begin.endswith(b'"') else 0)


@pytest.mark.parametrize("packed", [False, True])
def test_pieces_can_be_looked_at_again_without_the_others(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "t.json"
    good = [b'{"ph": "B", "name": "%d"}' % number for number in range(200_000)]
    good[150_000] = b'{"ph": "B" "name": "damaged"}'
    text = b"[" + b",\n".join(good) + b"]"
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    stream, seen = Events(path, Event), list[list[str]]()
    for events in stream:
        stream.note_times(len(seen), len(seen) + 0.5)
        seen.append([event.name for event in events])
    lost = stream.loss
    assert len(seen) > 4

    def again(start: float, end: float, around: int = 0) -> list[list[str]]:
        return [[event.name for event in events] for events in stream.again(start, end, around)]

    assert again(0, 0) == seen[:1]
    assert again(2.2, 3.4) == seen[2:4]
    assert again(2.2, 2.4, around=1) == seen[1:4]
    assert again(0.0, 0.1, around=99) == seen
    assert again(2.6, 2.9) == again(len(seen), 1e9) == []
    assert stream.loss == lost


def test_damaged_pieces_that_are_looked_at_again_add_no_reasons(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    good = [b'{"ph": "B", "name": "%d"}' % number for number in range(200_000)]
    good[50_000] = b'{"ph": "B" "name": "damaged"}'
    text = b"[" + b",\n".join(good) + b"]"
    path.write_bytes(text)
    stream = Events(path, Event)
    for number, _ in enumerate(stream):
        stream.note_times(number, number + 0.5)
    lost = stream.loss
    path.write_bytes(text[: text.index(b'"120000"')])  # a later piece ends within an event now
    for _ in range(2):
        list(stream.again(0, 1e9))
        assert stream.loss == lost


def test_a_file_that_is_gone_when_it_is_looked_at_again_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'[{"ph": "B"},{"ph": "B"},{"ph": "E"}]')
    stream = Events(path, Event)
    for number, _ in enumerate(stream):
        stream.note_times(number, number)
    path.unlink()
    with pytest.raises(UsageError, match=r"cannot read 't\.json': No such file or directory: check the path"):
        list(stream.again(0, 9))
