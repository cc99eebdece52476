"""What the first steps cost more than later ones adds up, and shares are of the step without the tracer."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from scalescope.diagnosis.explanation import explained
from scalescope.diagnosis.findings import find
from scalescope.diagnosis.findings.case import Case
from scalescope.diagnosis.first_steps import first_steps
from scalescope.diagnosis.traces import JobTraces
from scalescope.intervals import NOTHING, Intervals, Times
from scalescope.records.explanation import Overhead, RankTrace, TraceFolder
from scalescope.records.run import Point
from scalescope.traces.trace import Collectives, Parts, Trace

STEPS = 30


def trace(device: str = "cpu", **parts: Times | None) -> Trace:
    """Steps of these parts; what is left of 100 ms, or of a first step of 900 ms, is other."""
    step = np.full(STEPS, 0.1)
    step[0] = 0.9
    known = {name: parts.get(name) for name in ("compute", "optimizer", "exposed", "hidden", "input", "waiting")}
    own = [value for name, value in known.items() if value is not None and name not in ("hidden", "waiting")]
    ends = np.cumsum(step)
    return Trace(
        path=Path("rank0.json"),
        rank=0,
        world_size=1,
        backend="",
        device="cuda" if device == "cuda" else "cpu",
        epoch_s=1.0,
        steps_from="marks",
        starts_s=ends - step,
        ends_s=ends,
        parts=Parts(step=step, other=step - sum(own), **known),
        collectives=Collectives(np.zeros(0, dtype=object), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)),
        exchange=NOTHING,
    )


def column(first: float, later: float) -> Times:
    values = np.full(STEPS, later)
    values[0] = first
    return values


def slow_start() -> Trace:
    parts = {"compute": column(0.3, 0.06), "input": column(0.25, 0.005), "optimizer": column(0.02, 0.01)}
    return trace(**parts, exposed=column(0.22, 0.02), waiting=column(0.1, 0.005), hidden=column(0.0, 0.0))


def record(**changes: object) -> TraceFolder:
    told: dict[str, object] = {
        "what": "train.py",
        "point": Point(engine="ddp", np=1, batch=None, threads_per_rank=1),
        "engine": "none",
        "backend": "",
        "np": 1,
        "ranks": (RankTrace(rank=0, host="a"),),
        "steps": STEPS,
        "untraced_step_s": None,
        "from_start": True,
        "before_s": {"import": 2.0, "init": 0.3},
    }
    return TraceFolder(**(told | changes))  # type: ignore[arg-type]


def test_what_the_first_step_costs_more_is_divided_and_adds_up() -> None:
    found = first_steps([slow_start()], warmup=1)
    assert found is not None
    assert found.excess_s == pytest.approx(0.8)
    assert sum(found.parts_s.values()) == pytest.approx(0.8)
    assert found.parts_s["cold data"] == pytest.approx(0.245)
    assert found.parts_s["waiting for other ranks"] == pytest.approx(0.095)
    assert found.parts_s["connection set-up"] == pytest.approx(0.105)
    assert found.parts_s["optimizer state"] == pytest.approx(0.01)
    assert first_steps([slow_start()], warmup=0) is None
    assert first_steps([slow_start()], warmup=STEPS) is None, "none is steady"


def test_horovods_first_negotiation_is_told_apart() -> None:
    timeline = trace(exposed=column(0.5, 0.02))
    negotiated = Intervals(timeline.starts_s[:1] + 0.1, timeline.starts_s[:1] + 0.4)
    found = first_steps([dataclasses.replace(timeline, negotiation=negotiated)], warmup=1)
    assert found is not None
    assert found.parts_s["first negotiation"] == pytest.approx(0.3)
    assert found.parts_s["connection set-up"] == pytest.approx(0.18)
    assert sum(found.parts_s.values()) == pytest.approx(found.excess_s) == pytest.approx(0.8)


def test_a_capture_from_the_start_says_what_its_first_steps_cost() -> None:
    job = JobTraces("run folder", (slow_start(),), record=record())
    explanation = explained(job)
    assert explanation.warmup_steps == 1
    (finding,) = [each for each in find(Case(explanation, job, None)) if each.id == "first_epoch"]
    assert "The first step costs 800 ms more than later ones" in finding.sentence
    assert "245 ms cold data" in finding.sentence
    assert finding.evidence["before the first step"] == "import 2 s, init 300 ms"
    later = JobTraces("run folder", (slow_start(),), record=record(from_start=False))
    assert explained(later).first_steps is None, "the first captured step is not the first of all"


def test_shares_of_a_gpu_are_those_of_the_step_without_the_tracer() -> None:
    """Tracing made steps twice as long: 18.4 ms of compute leave 82 % of the traced step idle, 63 % of the real one."""
    busy = {"compute": np.full(STEPS, 0.0184), "exposed": None}
    overhead = Overhead(value=1.0, low=0.9, high=1.1)
    told = record(untraced_step_s=0.05, from_start=False, overhead=overhead)
    on_gpu = JobTraces("run folder", (trace("cuda", **busy),), record=told)
    explanation = explained(on_gpu)
    found = {each.id: each for each in find(Case(explanation, on_gpu, None))}
    assert explanation.step_s == pytest.approx(0.05)
    assert "nothing to do for 63 % of a step" in found["idle_device"].sentence
    assert "shares are those of a step without it" in found["tracer"].sentence
    host = explained(JobTraces("run folder", (trace(**busy),), record=told))
    assert host.step_s == pytest.approx(0.1), "on a CPU all parts are longer, and nobody knows by how much"
