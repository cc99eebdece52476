"""Profiler traces are read: the same facts as plain Python counts, and an accounting that adds up."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kineto_samples import loaded, sample, written

from scalescope.traces.kineto.reading import read

BRIDGED = 20.0
Interval = tuple[float, float]
ALL = [("gloo_small", 0), ("gloo_small", 1), ("gloo_with_stack", 0), ("cuda_gloo", 0), ("cuda_gloo", 1), ("nccl", 0)]


def intervals(events: list[dict[str, Any]]) -> list[Interval]:
    return [(event["ts"], event["ts"] + event["dur"]) for event in events]


def merged(pieces: list[Interval], gap: float = 0.0) -> list[Interval]:
    result: list[Interval] = []
    for start, end in sorted(pieces):
        if result and start <= result[-1][1] + gap:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def slow_account(sets: dict[str, list[Interval]], begin: float, end: float, classify: Any) -> Counter[str]:
    """Goes from border to border and asks which sets hold the moment between."""
    points = {begin, end}
    for pieces in sets.values():
        points |= {point for piece in pieces for point in piece if begin < point < end}
    borders = sorted(points)
    account: Counter[str] = Counter()
    for first, last in pairwise(borders):
        middle = (first + last) / 2
        there = {name for name, pieces in sets.items() if any(a <= middle < b for a, b in pieces)}
        account[classify(there)] += last - first
    return account


def of_host(there: set[str]) -> str:
    busy = "operators" in there and not there & {"launch", "input"}
    if busy and "optimizer" not in there:
        return "compute"
    if "optimizer" in there and (busy or "exchange" not in there):
        return "optimizer"
    return "input" if "input" in there else "exposed" if "exchange" in there else "other"


def of_device(there: set[str]) -> str:
    if "work" in there:
        return "optimizer" if "optimizer" in there else "compute"
    return "exposed" if "exchange" in there else "other"


def named(events: list[dict[str, Any]], beginning: str, category: str = "") -> list[dict[str, Any]]:
    return [
        event
        for event in events
        if event.get("ph") == "X" and event["name"].startswith(beginning) and (not category or event["cat"] == category)
    ]


def host_sets(events: list[dict[str, Any]]) -> dict[str, list[Interval]]:
    marks = named(events, "ProfilerStep#")
    main = marks[0]["tid"]
    operators = [event for event in named(events, "", "cpu_op") if event["tid"] == main]
    return {
        "operators": merged(intervals(operators), BRIDGED),
        "launch": intervals([event for event in operators if event["name"].startswith("c10d::")]),
        "input": intervals(named(events, "enumerate(DataLoader)#")),
        "optimizer": intervals(named(events, "Optimizer.step#")),
        "exchange": intervals(named(events, "gloo:")),
    }


@pytest.mark.parametrize(("name", "rank"), [("gloo_small", 0), ("gloo_small", 1), ("gloo_with_stack", 0)])
def test_steps_on_cpu_are_accounted_for_as_plain_python_does(name: str, rank: int) -> None:
    events = loaded(sample(name, rank))["traceEvents"]
    trace, sets = read(sample(name, rank)), host_sets(events)
    marks = sorted(intervals(named(events, "ProfilerStep#")))
    assert trace.steps_from == "marks"
    assert len(trace.starts_s) == len(marks)
    for at, (begin, end) in enumerate(marks):
        expected = slow_account(sets, begin, end, of_host)
        found = {
            "compute": trace.parts.compute,
            "optimizer": trace.parts.optimizer,
            "exposed": trace.parts.exposed,
            "input": trace.parts.input,
            "other": trace.parts.other,
        }
        for part, values in found.items():
            assert values is not None
            assert values[at] * 1e6 == pytest.approx(expected[part], abs=1.0), part


@pytest.mark.parametrize(("name", "rank"), [("cuda_gloo", 0), ("cuda_gloo", 1), ("nccl", 0)])
def test_steps_on_cuda_are_accounted_for_as_plain_python_does(name: str, rank: int) -> None:
    events = loaded(sample(name, rank))["traceEvents"]
    trace = read(sample(name, rank))
    streams = {event["tid"] for event in events if event.get("cat") == "gpu_user_annotation" and ":" in event["name"]}
    on_device = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    exchanges = [event for event in on_device if event["name"].startswith("nccl") or event["tid"] in streams]
    optimizers = merged(intervals(named(events, "Optimizer.step#", "gpu_user_annotation")))
    sets = {
        "work": merged(intervals([event for event in on_device if event not in exchanges])),
        "exchange": merged(intervals(exchanges + named(events, "gloo:", "user_annotation"))),
        "optimizer": optimizers,
    }
    ends = [end for _, end in optimizers]
    steps = sorted(intervals(named(events, "ProfilerStep#"))) or list(pairwise(ends))
    assert trace.device == "cuda"
    assert len(steps) == len(trace.starts_s)
    for at, (begin, end) in enumerate(steps):
        expected = slow_account(sets, begin, end, of_device)
        assert trace.parts.compute is not None
        assert trace.parts.optimizer is not None
        assert trace.parts.exposed is not None
        assert trace.parts.compute[at] * 1e6 == pytest.approx(expected["compute"], abs=1.0)
        assert trace.parts.optimizer[at] * 1e6 == pytest.approx(expected["optimizer"], abs=1.0)
        assert trace.parts.exposed[at] * 1e6 == pytest.approx(expected["exposed"], abs=1.0)
        assert trace.parts.other[at] * 1e6 == pytest.approx(expected["other"], abs=1.0)


@pytest.mark.parametrize(("name", "rank"), ALL)
def test_parts_add_up_to_the_step(name: str, rank: int) -> None:
    parts = read(sample(name, rank)).parts
    present = [part for part in (parts.compute, parts.optimizer, parts.exposed, parts.input) if part is not None]
    assert np.allclose(sum(present) + parts.other, parts.step, rtol=1e-6)
    assert all((part >= -1e-9).all() for part in [*present, parts.other])


@pytest.mark.parametrize(("name", "rank"), ALL)
def test_collectives_are_those_of_the_file_in_the_order_of_their_ends(name: str, rank: int) -> None:
    events, trace = loaded(sample(name, rank))["traceEvents"], read(sample(name, rank))
    gloo = Counter(event["name"] for event in named(events, "gloo:", "user_annotation"))
    nccl = Counter(event["args"]["Collective name"] for event in named(events, "nccl", "kernel"))
    found = Counter(trace.collectives.operation.tolist())
    assert found["allreduce"] == gloo["gloo:all_reduce"] + nccl["allreduce"]
    assert found["broadcast"] == gloo["gloo:broadcast"] + nccl["broadcast"]
    assert (np.diff(trace.collectives.end_s) >= 0).all()
    assert trace.rank == rank
    assert trace.world_size == 2
    assert trace.backend == ("nccl" if name == "nccl" else "gloo")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gloo_small", (51300, 66048, 73984, 23936)),
        ("cuda_gloo", (2365450, 6623744, 2192448)),
        ("nccl", (2049000, 7875584, 6563840, 6637568, 2431040)),
    ],
)
def test_buckets_are_the_gradients_of_a_typical_step_in_their_order(name: str, expected: tuple[int, ...]) -> None:
    assert read(sample(name)).bucket_bytes == tuple(4 * numbers for numbers in expected)


def test_the_clock_begins_at_the_whole_second_before_the_first_event() -> None:
    trace, raw = read(sample("gloo_small")), loaded(sample("gloo_small"))
    first = min(intervals(named(raw["traceEvents"], "ProfilerStep#")))[0]
    moment = raw["baseTimeNanoseconds"] * 1e-9 + first * 1e-6
    assert trace.epoch_s + trace.starts_s[0] == pytest.approx(moment, abs=2e-6)
    assert 0 <= trace.starts_s[0] < 2


def changed(name: str, tmp_path: Path, change: Any) -> Path:
    raw = loaded(sample(name))
    raw["traceEvents"] = [new for event in raw["traceEvents"] if (new := change(event)) is not None]
    return written(raw, tmp_path / "rank0.json")


def test_without_marks_steps_run_between_ends_of_the_optimizer(tmp_path: Path) -> None:
    path = changed("gloo_small", tmp_path, lambda event: None if "ProfilerStep" in event["name"] else event)
    events, trace = loaded(sample("gloo_small"))["traceEvents"], read(path)
    ends = sorted(end for _, end in intervals(named(events, "Optimizer.step#")))
    assert trace.steps_from == "optimizer"
    assert np.allclose((trace.ends_s - trace.starts_s) * 1e6, np.diff(ends), atol=0.01)


def test_without_marks_and_optimizer_there_are_no_steps_and_a_note(tmp_path: Path) -> None:
    gone = ("ProfilerStep", "Optimizer")
    path = changed("gloo_small", tmp_path, lambda event: None if event["name"].startswith(gone) else event)
    trace = read(path)
    assert trace.steps_from == "none"
    assert len(trace.starts_s) == 0
    assert len(trace.collectives.bytes) == 25
    assert any("no steps" in note for note in trace.notes)


def test_a_last_mark_without_an_optimizer_is_left_out(tmp_path: Path) -> None:
    raw = loaded(sample("gloo_small"))
    marks = sorted(named(raw["traceEvents"], "ProfilerStep#"), key=lambda event: float(event["ts"]))
    end = marks[-1]["ts"] + marks[-1]["dur"]
    raw["traceEvents"].append({**marks[-1], "name": "ProfilerStep#6", "ts": end + 5, "dur": 400.0})
    trace = read(written(raw, tmp_path / "t.json"))
    assert len(trace.starts_s) == len(marks)
    assert any("cut off" in note for note in trace.notes)


@pytest.mark.parametrize(("share", "kept"), [(0.3, False), (0.7, True)])
def test_where_no_step_has_an_optimizer_a_last_mark_of_less_than_half_is_left_out(
    tmp_path: Path, share: float, kept: bool
) -> None:
    raw = loaded(sample("gloo_small"))
    raw["traceEvents"] = [event for event in raw["traceEvents"] if not event["name"].startswith("Optimizer")]
    marks = sorted(named(raw["traceEvents"], "ProfilerStep#"), key=lambda event: float(event["ts"]))
    end, usual = marks[-1]["ts"] + marks[-1]["dur"], float(np.median([mark["dur"] for mark in marks]))
    raw["traceEvents"].append({**marks[-1], "name": "ProfilerStep#6", "ts": end + 5, "dur": share * usual})
    trace = read(written(raw, tmp_path / "t.json"))
    assert len(trace.starts_s) == len(marks) + kept
    assert any("cut off" in note for note in trace.notes) != kept


def test_without_shapes_sizes_are_unknown(tmp_path: Path) -> None:
    def bare(event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "args": {}} if event.get("ph") == "X" else event

    trace = read(changed("gloo_small", tmp_path, bare))
    assert set(trace.collectives.bytes.tolist()) == {-1}
    assert trace.bucket_bytes == ()


def test_newer_kernels_whose_size_only_the_launch_tells_are_found(tmp_path: Path) -> None:
    def newer(event: dict[str, Any]) -> dict[str, Any]:
        if event.get("cat") != "kernel" or not event["name"].startswith("ncclKernel"):
            return event
        kept = {key: event["args"][key] for key in ("External id", "correlation")}
        kind = "AllReduce_Sum_f32_RING_LL" if "AllReduce" in event["name"] else "Broadcast_RING_LL"
        return {**event, "name": f"ncclDevKernel_{kind}(ncclDevKernelArgsStorage<4096ul>)", "args": kept}

    trace, before = read(changed("nccl", tmp_path, newer)), read(sample("nccl"))
    assert trace.collectives.operation.tolist() == before.collectives.operation.tolist()
    assert trace.collectives.bytes.tolist() == before.collectives.bytes.tolist()
    assert trace.parts.exposed is not None
    assert np.allclose(trace.parts.exposed, before.parts.exposed)


def test_an_operator_that_waits_for_communication_is_not_compute(tmp_path: Path) -> None:
    raw = loaded(sample("gloo_small"))
    before = read(sample("gloo_small"))
    mark = min(named(raw["traceEvents"], "ProfilerStep#"), key=lambda event: float(event["ts"]))
    waiting = {**mark, "cat": "cpu_op", "name": "_c10d_functional::wait_tensor"}
    raw["traceEvents"].append(waiting)
    after = read(written(raw, tmp_path / "t.json"))
    assert before.parts.compute is not None
    assert after.parts.compute is not None
    assert after.parts.compute[0] == pytest.approx(0, abs=1e-6)
    assert after.parts.compute[1:] == pytest.approx(before.parts.compute[1:], abs=1e-6)


def test_a_machine_with_a_gpu_that_trains_on_its_cores_is_read_as_such(tmp_path: Path) -> None:
    raw, before = loaded(sample("gloo_small")), read(sample("gloo_small"))
    raw["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200"}]
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGetDeviceCount", "tid": 1, "ts": 3859252690000.0, "dur": 1.0}
    raw["traceEvents"].append(call)
    trace = read(written(raw, tmp_path / "rank0.json"))
    assert trace.device == "cpu"
    assert trace.parts.compute is not None
    assert trace.parts.compute == pytest.approx(before.parts.compute)
