import json
import re
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.traces.horovod.columns import TimelineEvent, Vocabulary
from scalescope.traces.horovod.reading import read
from scalescope.traces.horovod.scan import Scanner, Unusual
from scalescope.traces.trace import Trace
from traces.horovod_reference import events_of, steady_account, text_of


def read_events(path: Path, events: list[dict[str, Any]]) -> Trace:
    path.write_text(json.dumps(events))
    return read(path)


def body(name: str) -> bytes:
    """The steps of a sample, without names of tensors."""
    text = text_of(name)
    return text[text.index(b"{", text.rindex(b'"M"') + 100) :].rstrip().removesuffix(b"]")


def test_a_timeline_cut_anywhere_is_read(tmp_path: Path) -> None:
    text, path = text_of("gloo_ops"), tmp_path / "cut.json"
    for size in range(1, len(text), 1201):
        path.write_bytes(text[:size])
        trace = read(path)
        assert trace.loss.reason
        assert len(trace.collectives.bytes) > 0 or size < 1500


@pytest.mark.parametrize("frac", [0.2, 0.4, 0.6, 0.9])
@pytest.mark.parametrize("name", ["mpi_cnn", "gloo_mlp_mark"])
def test_a_timeline_that_begins_within_a_step_finds_the_others(tmp_path: Path, name: str, frac: float) -> None:
    events = events_of(name)
    whole = read_events(tmp_path / "whole.json", events)
    cut = 1e6 * (whole.starts_s[10] + frac * (whole.ends_s[10] - whole.starts_s[10]))
    late = read_events(tmp_path / "late.json", [event for event in events if event["ph"] == "M" or event["ts"] >= cut])
    assert set(whole.starts_s[11:]) <= set(late.starts_s)
    assert len(late.starts_s) <= len(whole.starts_s[11:]) + 1


@pytest.mark.parametrize("which", [slice(0, 1), slice(5, 6), slice(-1, None), slice(0, 10)])
def test_a_tensor_that_is_missing_in_a_step_does_not_shift_the_others(tmp_path: Path, which: slice) -> None:
    events = events_of("mpi_cnn")
    whole = read_events(tmp_path / "whole.json", events)
    start, end = 1e6 * whole.starts_s[35], 1e6 * whole.ends_s[35]
    inside = [event for event in events if event["ph"] != "M" and start <= event["ts"] < end]
    missing = [event["pid"] for event in inside if event.get("name") == "NEGOTIATE_ALLREDUCE"][which]
    fewer = [event for event in events if not (event in inside and event["pid"] in missing)]
    trace = read_events(tmp_path / "fewer.json", fewer)
    assert len(trace.starts_s) == len(whole.starts_s)
    assert np.delete(trace.starts_s, 35).tolist() == np.delete(whole.starts_s, 35).tolist()


def test_tensors_reduced_now_and_then_make_no_steps(tmp_path: Path) -> None:
    events = events_of("mpi_cnn")
    whole = read_events(tmp_path / "whole.json", events)
    pid = 1 + max(event["pid"] for event in events)
    extra = []
    for at, end in enumerate(1e6 * whole.ends_s):
        names = ["metric"] + (["sometimes"] if at % 10 == 0 else [])
        for number, name in enumerate(names):
            moment = round(end) - 500 + 100 * number
            shape = "[]" if name == "metric" else "[3]"
            arguments = {"args": {"dtype": "float32", "shape": shape}}
            for kind, what, later in (
                ("B", "NEGOTIATE_ALLREDUCE", 0),
                ("E", "", 10),
                ("B", "ALLREDUCE", 20),
                ("E", "", 30),
            ):
                more = {"name": what} if what else {}
                more |= arguments if later == 30 else {}
                extra.append({"ph": kind, **more, "ts": moment + later, "pid": pid + number})
    mixed = sorted([event for event in events if event["ph"] != "M"] + extra, key=lambda event: event["ts"])
    trace = read_events(tmp_path / "mixed.json", [event for event in events if event["ph"] == "M"] + mixed)
    assert trace.starts_s.tolist() == whole.starts_s.tolist()
    assert trace.bucket_bytes == whole.bucket_bytes


def test_orphans_and_restarts_are_left_out(tmp_path: Path) -> None:
    events = events_of("gloo_mlp_mark")
    orphans = [{"ph": "E", "ts": 5, "pid": 17}, {"ph": "X", "name": "1", "ts": 6, "pid": 17, "dur": 0}] * 3
    plain = read_events(tmp_path / "plain.json", events)
    trace = read_events(tmp_path / "orphans.json", orphans + events)
    assert steady_account(trace) == steady_account(plain)
    twice = read_events(tmp_path / "twice.json", events + events)
    assert (np.diff(twice.starts_s) > 0).all()
    assert len(twice.starts_s) >= len(plain.starts_s)


@pytest.mark.parametrize("time", [1 << 62, -(1 << 63), 10**30, 1e300])
def test_impossible_times_are_counted_as_lost(tmp_path: Path, time: float) -> None:
    events = events_of("gloo_ops")
    plain = read_events(tmp_path / "plain.json", events)
    strange = [{"ph": "B", "name": "ALLREDUCE", "ts": time, "pid": 1}, {"ph": "E", "ts": time, "pid": 1}]
    trace = read_events(tmp_path / "strange.json", events + strange)
    assert trace.loss.events == 2
    assert "out of range" in trace.loss.reason
    assert steady_account(trace) == steady_account(plain)


def test_times_that_go_backwards_throughout_make_no_steps(tmp_path: Path) -> None:
    events = events_of("mpi_cnn")
    whole = read_events(tmp_path / "whole.json", events)
    negative = [event | {"ts": -event["ts"]} if "ts" in event else event for event in events]
    trace = read_events(tmp_path / "backwards.json", negative)
    assert len(trace.starts_s) == 0
    assert "there are no steps" in trace.notes[0]
    assert len(trace.collectives.bytes) == len(whole.collectives.bytes) > 0


@pytest.mark.parametrize("name", ["mpi_cnn", "gloo_mlp_mark"])
def test_a_clock_that_is_set_back_costs_the_steps_around_that_moment_only(tmp_path: Path, name: str) -> None:
    events = events_of(name)
    whole = read_events(tmp_path / "whole.json", events)
    moment, back = 1e6 * whole.starts_s[20], round(1e6 * (whole.starts_s[20] - whole.starts_s[17]))
    later = [event | {"ts": event["ts"] - back} if event.get("ts", 0) >= moment else event for event in events]
    trace = read_events(tmp_path / "back.json", later)
    assert (trace.starts_s[1:] >= trace.ends_s[:-1]).all()
    found, after = set(trace.starts_s.round(6)), whole.starts_s[25:] - 1e-6 * back
    assert found >= set(whole.starts_s[:19].round(6)) | set(after.round(6))
    assert len(whole.starts_s) - 8 <= len(found) < len(whole.starts_s)


def test_ticks_split_negotiation_and_name_the_last_rank(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for step in range(12):
        for pid in (1, 2):
            at = 100_000 * step + 10 * pid
            events += [
                {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": pid},
                {"ph": "X", "name": "0", "ts": at, "pid": pid, "dur": 0},
                {"ph": "X", "name": "3", "ts": at + 20_000, "pid": pid, "dur": 0},
                {"ph": "E", "ts": at + 25_000, "pid": pid},
            ]
    events.sort(key=lambda event: event["ts"])
    account = steady_account(read_events(tmp_path / "ticks.json", events))
    assert not account.cached
    assert account.waiting_s == pytest.approx(0.020010)
    assert account.protocol_s == pytest.approx(0.005)
    assert account.negotiation_s == pytest.approx(0.025010)
    assert account.last_rank == {3: 24}
    assert read(tmp_path / "ticks.json").world_size == 4


def test_names_with_markup_and_escapes_are_kept_as_they_are_and_do_no_harm(tmp_path: Path) -> None:
    text = text_of("mpi_cnn").replace(b"allreduce.10.weight", b"<b>\\u001b[31m</b>")
    path = tmp_path / "markup.json"
    path.write_bytes(text)
    account = steady_account(read(path))
    assert "<b>\x1b[31m</b>" in {tensor.name for tensor in account.tensors}


@pytest.mark.parametrize("name", ["mpi_cnn", "gloo_nocache"])
@pytest.mark.parametrize(("block", "chunk"), [(700, 20_000), (300, 8192)])
def test_blocks_and_chunks_do_not_change_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, block: int, chunk: int
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text_of(name))
    whole = read(path)
    monkeypatch.setattr("scalescope.traces.horovod.accounting.BLOCK", block)
    monkeypatch.setattr("scalescope.traces.event_stream.CHUNK", chunk)
    small = read(path)
    assert small.starts_s.tolist() == whole.starts_s.tolist()
    assert small.parts.exposed == pytest.approx(whole.parts.exposed)
    assert small.exchange.length == pytest.approx(whole.exchange.length)
    assert small.collectives.end_s.tolist() == whole.collectives.end_s.tolist()
    assert small.collectives.bytes.tolist() == whole.collectives.bytes.tolist()
    assert small.bucket_bytes == whole.bucket_bytes


@pytest.mark.parametrize("name", ["mpi_cnn", "gloo_mlp_mark"])
def test_the_array_scan_equals_decoding(name: str) -> None:
    piece = body(name)[-100_000:]
    piece = piece[piece.index(b'{"ph"') :]
    vocabulary = Vocabulary()
    scanned = Scanner(vocabulary).columns(piece)
    decoded = vocabulary.columns(msgspec.json.decode(b"[" + piece + b"]", type=list[TimelineEvent]))
    for column in ("kind", "name", "tensor", "time", "size"):
        assert getattr(scanned, column).tolist() == getattr(decoded, column).tolist()


USUAL = (
    b'{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 11563566, "pid": 32},\n'
    b'{"ph": "X", "name": "0", "ts": 11563570, "pid": 32, "dur": 0},'
    b'{"ph": "E", "ts": 11563728, "pid": 32},'
    b'{"ph": "E", "ts": 11582184, "pid": 32, "args": {"dtype": "float32", "shape": "[512, 2]"}},\n'
    b'{"ph": "i", "name": "CYCLE_START", "ts": 11582196, "s": "g"}'
)
"""One event of every kind as Horovod writes them."""
DAMAGES = [(length, bytes([new])) for length in (0, 1) for new in b',{}":[]\\09 '] + [
    (length, b"") for length in (1, 2, 4, 8)
]
"""How many bytes are lost at a place, and what stands there instead."""
NOT_LOOKED_AT = (
    (rb'("(?:ts|pid)": )0+(?=[0-9])', rb"\1"),
    (rb'"dur":.0', b'"dur": 0'),
    (rb'"args"..\{', b'"args": {'),
    (rb'"s": "."', b'"s": "g"'),
)
"""Damages that the scan takes although they are no JSON: zeros before a number, and bytes that tell nothing."""


def test_the_array_scan_refuses_what_decoding_refuses() -> None:
    assert len(Scanner(Vocabulary()).columns(USUAL).kind) == 5
    taken = 0
    for at in range(len(USUAL)):
        for length, new in DAMAGES:
            damaged, vocabulary = USUAL[:at] + new + USUAL[at + length :], Vocabulary()
            try:
                scanned = Scanner(vocabulary).columns(damaged)
            except Unusual:
                continue
            taken += 1
            for pattern, usual in NOT_LOOKED_AT:
                damaged = re.sub(pattern, usual, damaged, flags=re.DOTALL)
            decoded = vocabulary.columns(msgspec.json.decode(b"[" + damaged + b"]", type=list[TimelineEvent]))
            for name in ("kind", "name", "tensor", "time", "size"):
                assert getattr(scanned, name).tolist() == getattr(decoded, name).tolist(), damaged
    assert 100 < taken < 0.2 * len(USUAL) * len(DAMAGES)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["gloo_ops", "mpi_ops"]),
    st.lists(st.tuples(st.integers(0, 66_000), st.integers(0, 40), st.binary(max_size=8)), max_size=6),
)
def test_damaged_timelines_are_read(name: str, changes: list[tuple[int, int, bytes]]) -> None:
    data = text_of(name)
    for at, length, new in changes:
        data = data[:at] + new + data[at + length :]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(data)
        file.flush()
        trace = read(Path(file.name))
        trace.spans(0.0, 1.0)
    assert (trace.ends_s > trace.starts_s).all()
    assert trace.parts.exposed is not None
    assert (trace.parts.exposed + trace.parts.other == pytest.approx(trace.parts.step)) or not len(trace.starts_s)
