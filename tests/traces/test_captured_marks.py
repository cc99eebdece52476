"""What a rank's own marks add to its profiler trace: all of the host where only the GPU was traced, and the start."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalescope.traces.kineto.reading import read
from scalescope.traces.marks import RankMarks, read_marks

EPOCH_S, STEP_S, STEPS = 1_700_000_000.0, 0.05, 6


def marks_of(path: Path, *, first: int, device: str) -> RankMarks:
    """Steps of 50 ms on the host: 5 ms input, 10 ms forward, 20 ms backward, 5 ms optimizer, then it waits."""

    def at(step: int, seconds: float) -> int:
        return round((100 + step * STEP_S + seconds) * 1e9)

    identity = {"rank": 0, "world_size": 1, "host": "a", "engine": "none", "device": device}
    lines: list[dict[str, Any]] = [
        {"kind": "hello", "version": 1, **identity, "t": at(0, 0), "wall_ns": int(EPOCH_S * 1e9)}
    ]
    for step in range(STEPS):
        parts = {"input": (0.0, 0.005), "forward": (0.005, 0.015), "backward": (0.015, 0.035)}
        spans = {name: [[at(step, begin), at(step, end)]] for name, (begin, end) in parts.items()}
        spans["optimizer"] = [[at(step, 0.035), at(step, 0.040)]]
        line = {"kind": "step", "n": first + step, "s": at(step, 0), "t": at(step + 1, 0), "traced": 1, **spans}
        lines.append(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_marks(path)


def trace_file(path: Path, events: list[dict[str, Any]]) -> Path:
    """A trace whose times are microseconds after the first step's start."""
    head = {"schemaVersion": 1, "baseTimeNanoseconds": int(EPOCH_S * 1e9), "displayTimeUnit": "ms"}
    path.write_text(json.dumps({**head, "traceEvents": events, "traceName": "x"}))
    return path


def kernel(step: int, launched: float, begin: float, lasts: float, name: str, number: int) -> list[dict[str, Any]]:
    zero, common = step * STEP_S * 1e6, {"ph": "X", "pid": 0}
    correlated = {"correlation": 10 * step + number}
    call = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "tid": 99, "ts": zero + launched * 1e6, "dur": 5}
    work = {"name": name, "cat": "kernel", "tid": 7, "ts": zero + begin * 1e6, "dur": lasts * 1e6}
    return [{**common, **call, "args": correlated}, {**common, **work, "args": {**correlated, "stream": 7}}]


def light_events() -> list[dict[str, Any]]:
    """Of every step 18 ms on the GPU: forward 4, backward 10, optimizer 4; launched by the host in these parts."""
    events = []
    for step in range(STEPS):
        events += kernel(step, 0.006, 0.010, 0.004, "triton_poi_fused_add_0", 0)
        events += kernel(step, 0.020, 0.022, 0.010, "sm90_gemm", 1)
        events += kernel(step, 0.036, 0.040, 0.004, "multi_tensor_apply", 2)
    return events


def test_a_trace_of_the_gpu_alone_gets_its_steps_from_the_marks(tmp_path: Path) -> None:
    path = trace_file(tmp_path / "light.json", light_events())
    assert read(path).steps_from == "none", "by itself it has none"
    trace = read(path, marks_of(tmp_path / "marks.jsonl", first=20, device="cuda"))
    assert (trace.steps_from, trace.device, trace.compiled) == ("marks", "cuda", True)
    assert trace.parts.step == pytest.approx(np.full(STEPS, STEP_S), abs=1e-6)
    assert trace.parts.compute == pytest.approx(np.full(STEPS, 0.018), abs=1e-6)
    assert trace.parts.input == pytest.approx(np.full(STEPS, 0.005), abs=1e-6)
    assert trace.parts.optimizer is None
    assert any("count as compute" in note for note in trace.notes)
    spans = trace.spans(float(trace.starts_s[2]), float(trace.ends_s[2]))
    lasting = {span.activity: span.end_s - span.start_s for span in spans}
    assert lasting == pytest.approx({"input": 0.005, "forward": 0.004, "backward": 0.010, "optimizer": 0.004}, abs=1e-6)


def operators(first: int, begins: float) -> list[dict[str, Any]]:
    """A trace of the CPU that begins some time after the first step did."""
    common, events = {"ph": "X", "pid": 1, "tid": 1}, []
    for step in range(STEPS):
        zero = step * STEP_S * 1e6
        start = begins * 1e6 if not step else 0.0
        mark = {"name": f"ProfilerStep#{first + step}", "cat": "user_annotation", "ts": zero + start}
        events.append({**common, **mark, "dur": STEP_S * 1e6 - start})
        events.append({**common, "name": "aten::mm", "cat": "cpu_op", "ts": zero + 10_000, "dur": 25_000})
        events.append(
            {**common, "name": "Optimizer.step#SGD.step", "cat": "user_annotation", "ts": zero + 36_000, "dur": 4_000}
        )
    return events


def test_what_a_closure_does_inside_the_optimizers_step_is_compute(tmp_path: Path) -> None:
    names: dict[str, tuple[float, float, str]] = {
        "Optimizer.step#LBFGS.step": (5, 40, "user_annotation"),
        "Optimizer.zero_grad#LBFGS.zero_grad": (6, 1, "user_annotation"),
        "aten::mm": (10, 5, "cpu_op"),
        "autograd::engine::evaluate_function: MmBackward0": (15, 10, "cpu_op"),
        "aten::add_": (30, 5, "cpu_op"),
    }
    events = operators(0, 0.0)[::3]
    for step in range(STEPS):
        for name, (begin_ms, lasts_ms, category) in names.items():
            times = {"ts": (step * STEP_S + begin_ms * 1e-3) * 1e6, "dur": lasts_ms * 1e3}
            events.append({"ph": "X", "pid": 1, "tid": 1, "name": name, "cat": category, **times})
    trace = read(trace_file(tmp_path / "closure.json", events))
    assert trace.parts.compute == pytest.approx(np.full(STEPS, 0.015), abs=1e-4)
    assert trace.parts.optimizer == pytest.approx(np.full(STEPS, 0.021), abs=1e-4)


@pytest.mark.parametrize(("first", "begins"), [(0, 0.0), (20, 0.006)])
def test_the_first_step_of_all_begins_with_its_first_batch_and_others_where_they_were_marked(
    tmp_path: Path, first: int, begins: float
) -> None:
    path = trace_file(tmp_path / "cpu.json", operators(first, 0.006))
    trace = read(path, marks_of(tmp_path / "marks.jsonl", first=first, device="cpu"))
    assert trace.starts_s[0] == pytest.approx(begins, abs=1e-6)
    if not first:
        assert trace.parts.input is not None
        assert trace.parts.input[0] == pytest.approx(0.005, abs=1e-6), "fetched before the profiler was on"
