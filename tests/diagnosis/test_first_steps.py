"""What the first steps cost more than later ones adds up, and shares are of the step without the tracer."""

import dataclasses
import json
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
from scalescope.show import document_of
from scalescope.traces.marks import read_marks
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
    assert any("shares are those of a step without the tracer" in note for note in explanation.notes)


def test_a_captured_step_is_the_one_without_the_tracer_with_the_traced_shares_while_tracing_is_cheap() -> None:
    told = record(untraced_step_s=0.08, from_start=False, overhead=Overhead(value=0.25, low=0.2, high=0.3))
    explanation = explained(JobTraces("run folder", (trace(compute=np.full(STEPS, 0.06)),), record=told))
    assert (explanation.step_s, explanation.traced_step_s) == (pytest.approx(0.08), pytest.approx(0.1))
    assert explanation.accounting is not None
    assert explanation.accounting.step_s == pytest.approx(0.08)
    assert explanation.accounting.compute_s == pytest.approx(0.048), "60 % of it, as in traced steps"
    assert not explanation.too_heavy
    assert document_of(explanation).answer.startswith("A 80 ms step is 60 % compute")
    files = explained(JobTraces("profiler traces", (trace(compute=np.full(STEPS, 0.06)),)))
    assert document_of(files).answer.startswith("A traced 100 ms step is 60 % compute"), "files of others are traced"


def test_shares_come_from_untraced_steps_where_tracing_makes_steps_much_longer(tmp_path: Path) -> None:
    """Traced steps of 100 ms have 60 % compute; untraced ones of 40 ms show 10 ms input and 4 ms of the optimizer."""
    lines = [{"kind": "hello", "version": 1, "rank": 0, "world_size": 2, "host": "a", "engine": "ddp", "t": 0}]
    for number in range(3 * STEPS):
        begin, last = number * 1_000_000_000, 100_000_000 if number // STEPS == 1 else 40_000_000
        parts = {"input": [[begin, begin + 10_000_000]], "optimizer": [[begin + last - 4_000_000, begin + last]]}
        parts |= {"forward": [[begin + 10_000_000, begin + 20_000_000]]}
        traced = int(number // STEPS == 1)
        lines.append({"kind": "step", "n": number, "s": begin, "t": begin + last, "traced": traced, **parts})
    path = tmp_path / "marks-rank0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = record(untraced_step_s=0.04, from_start=False, overhead=Overhead(value=1.5, low=1.4, high=1.6))
    job = JobTraces(
        "run folder", (trace(compute=np.full(STEPS, 0.06)),), profile_marks=(read_marks(path),), record=told
    )
    explanation = explained(job)
    assert explanation.too_heavy
    parts = explanation.accounting
    assert parts is not None
    assert (parts.compute_s, parts.exposed_s, parts.hidden_s) == (None, None, None), "backward holds both"
    assert [parts.step_s, parts.input_s, parts.optimizer_s] == pytest.approx([0.04, 0.01, 0.004])
    path.write_text(path.read_text().replace('"world_size": 2', '"world_size": 1'))
    alone = explained(dataclasses.replace(job, profile_marks=(read_marks(path),))).accounting
    assert alone is not None
    assert alone.compute_s == pytest.approx(0.01), "one process does nothing but compute there"
    assert document_of(explanation).answer.startswith(
        "A 40 ms step is 25 % waiting for input, 10 % optimizer and 65 % forward, backward and communication."
    )
    assert any("tracing made steps 150 % longer" in warning for warning in document_of(explanation).warnings)
    (found,) = find(Case(explanation, job, None))
    assert (found.id, found.gain) == ("input_bound", pytest.approx(0.04 / 0.03 - 1))
