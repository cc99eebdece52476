"""Profiler traces that are cut, damaged or made to hurt."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from kineto_samples import loaded, sample, written

from scalescope.traces.kineto.reading import read

STRANGE = [
    {"ts": -5.0, "dur": 1.0},
    {"ts": 1e300, "dur": 1.0},
    {"ts": 3859252690000.0, "dur": -3.0},
    {"ts": 3859252690000.0, "dur": 1e200},
    {"ts": 3859252690000.0},
]


def test_impossible_times_are_left_out_and_stated(tmp_path: Path) -> None:
    raw = loaded(sample("gloo_small"))
    for times in STRANGE:
        for name, category in (("aten::mm", "cpu_op"), ("gloo:all_reduce", "user_annotation"), ("k", "kernel")):
            raw["traceEvents"].insert(0, {"ph": "X", "cat": category, "name": name, "tid": 15128, "pid": 1, **times})
    trace, before = read(written(raw, tmp_path / "rank0.json")), read(sample("gloo_small"))
    assert trace.loss.events == 3 * len(STRANGE)
    assert "impossible times" in trace.loss.reason
    assert trace.collectives.bytes.tolist() == before.collectives.bytes.tolist()
    assert trace.ends_s - trace.starts_s == pytest.approx(before.ends_s - before.starts_s)


def test_events_of_unknown_shape_do_not_stop_the_reader(tmp_path: Path) -> None:
    raw = loaded(sample("gloo_small"))
    odd = "<script>\x1b[31m" * 1000
    raw["traceEvents"] += [
        {"ph": "X", "cat": "cpu_op", "name": odd, "tid": odd, "ts": 3859252690000.0, "dur": 1.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1 << 70, "ts": 3859252690000.0, "dur": 1.0},
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "tid": 1, "ts": 3859252690000.0, "dur": 1.0,
         "args": {"Input Dims": [["x"], None, 3], "Input type": ["float", {}, 7]}},
        {"ph": "X", "cat": "user_annotation", "name": "gloo:send", "tid": 1, "ts": 3859252690000.0, "dur": 1.0,
         "args": "none"},
    ]  # fmt: skip
    trace = read(written(raw, tmp_path / "rank0.json"))
    assert len(trace.starts_s) == 4
    assert len(trace.collectives.bytes) == 26


@pytest.mark.parametrize("name", ["gloo_small", "cuda_gloo"])
def test_a_cut_file_is_read_as_far_as_it_goes(name: str, tmp_path: Path) -> None:
    text, whole = gzip.decompress(sample(name).read_bytes()), read(sample(name))
    path = tmp_path / "rank0.json"
    for end in np.linspace(3000, len(text) - 50, 40).astype(int).tolist():
        path.write_bytes(text[:end])
        trace = read(path)
        assert trace.loss.reason
        assert len(trace.starts_s) <= len(whole.starts_s)
        assert all(np.abs(whole.starts_s - start).min() < 1e-3 for start in trace.starts_s)
        assert len(trace.collectives.bytes) <= len(whole.collectives.bytes)


def test_compute_of_a_cut_file_is_not_less_in_the_steps_that_are_left(tmp_path: Path) -> None:
    text, whole = gzip.decompress(sample("gloo_small").read_bytes()), read(sample("gloo_small"))
    path = tmp_path / "rank0.json"
    seen = set()
    for end in np.linspace(len(text) // 4, len(text) - 50, 30).astype(int).tolist():
        path.write_bytes(text[:end])
        trace = read(path)
        seen.add(len(trace.starts_s))
        assert trace.parts.compute is not None
        assert whole.parts.compute is not None
        assert trace.parts.compute == pytest.approx(whole.parts.compute[: len(trace.starts_s)], abs=1e-6)
    assert seen >= {1, 2, 3}


def test_a_sharded_file_that_is_cut_before_its_first_collective_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(gzip.decompress(sample("fsdp_busy").read_bytes())[:20_000])
    trace = read(path)
    assert len(trace.starts_s) == 0
    assert len(trace.collectives.bytes) == 0
