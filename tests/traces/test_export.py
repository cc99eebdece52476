"""All ranks on one clock as one trace file."""

import json
from pathlib import Path
from typing import Any

import pytest
from kineto_samples import sample

from scalescope.records.explanation import Clock
from scalescope.records.timeline import Span
from scalescope.traces.alignment import align, on_common_clock
from scalescope.traces.export import export
from scalescope.traces.kineto.reading import read


def complete(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def test_ranks_of_a_real_step_stand_on_one_clock(tmp_path: Path) -> None:
    traces = [read(sample("gloo_small", rank)) for rank in (0, 1)]
    clocks = align(traces)
    spans = [span for trace in traces for span in trace.spans(trace.starts_s[0], trace.ends_s[-1])]
    path = tmp_path / "all.json"
    assert export(spans, path, clocks) == len(spans)
    events = complete(path)
    assert len(events) == len(spans)
    assert {event["pid"] for event in events} == {0, 1}
    sizes = traces[0].bucket_bytes
    zero = min(float(on_common_clock(trace.starts_s, clock)[0]) for trace, clock in zip(traces, clocks, strict=True))
    assert zero >= 0
    for size in sizes:
        ends = [
            [
                event["ts"] + event["dur"]
                for event in events
                if event["pid"] == rank and event.get("args") == {"bytes": size}
            ]
            for rank in (0, 1)
        ]
        assert len(ends[0]) == len(ends[1]) == 4
    lanes: dict[tuple[int, int], float] = {}
    for event in events:
        lane = event["pid"], event["tid"]
        assert event["ts"] >= lanes.get(lane, 0.0) - 0.01
        lanes[lane] = event["ts"] + event["dur"]


def test_a_clock_moves_spans(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    spans = [
        Span(rank=0, activity="forward", start_s=1.0, end_s=2.0),
        Span(rank=3, activity="input", start_s=1.0, end_s=2.0),
    ]
    export(spans, path, [Clock(rank=3, offset_s=0.5, drift=0.0, residual_s=0.0, pairs=1)])
    first, second = complete(path)
    assert (first["ts"], first["dur"]) == (0.0, 1e6)
    assert (second["ts"], second["dur"]) == (pytest.approx(0.5e6), pytest.approx(1e6))


def test_names_are_escaped_in_the_export(tmp_path: Path) -> None:
    name = '</script>"\n\x1b[31m\u2028'
    export([Span(rank=0, activity="communication", start_s=0.0, end_s=1.0, name=name, bytes=5)], tmp_path / "t.json")
    (event,) = complete(tmp_path / "t.json")
    assert event["name"] == name
    assert event["args"] == {"bytes": 5}
    assert "\x1b" not in (tmp_path / "t.json").read_text()


def test_an_export_without_spans_is_a_valid_trace(tmp_path: Path) -> None:
    assert export([], tmp_path / "t.json") == 0
    assert complete(tmp_path / "t.json") == []
