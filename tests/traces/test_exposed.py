"""Exposed communication has one definition: what traces, charts and the simulator say about one timeline is equal.

That a bare Horovod timeline counts as computing until its last gradient is in test_horovod.py.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scalescope
from breakdowns import break_down
from scalescope.engines import find_engine
from scalescope.intervals import between
from scalescope.records.job import Knobs
from scalescope.records.timeline import BUSY, EXCHANGE, Span, Step, Timeline, exposed, moments
from scalescope.show.charts.explanation import one_step
from scalescope.simulator.step import predicted_step, steps
from scalescope.traces.kineto.reading import read
from simulator.made import described, profile

PACKAGE = Path(scalescope.__file__).parent
DATA = Path(__file__).parents[1] / "data" / "traces"
ACTIVITIES = st.sampled_from(("forward", "backward", "copy", "optimizer", "communication", "negotiation", "input"))
SPANS = st.lists(
    st.builds(
        lambda activity, start, length: Span(rank=0, activity=activity, start_s=start, end_s=start + length),
        ACTIVITIES,
        st.integers(0, 9),
        st.integers(1, 5),
    ),
    max_size=12,
)


def by_definition(timeline: Timeline, step: Step) -> float:
    own = [span for span in timeline.spans if span.rank == step.rank]
    found = exposed(moments(own, EXCHANGE), moments(own, BUSY))
    return float(between(found, [step.start_s], [step.end_s])[0])


def drawn(timeline: Timeline) -> float:
    return sum(end - start for start, end in one_step(timeline).exposed[0])


@given(SPANS)
def test_exposed_is_exchange_without_compute_or_update(spans: list[Span]) -> None:
    step = Step(rank=0, start_s=0, end_s=20)
    told = Span(rank=0, activity="forward", start_s=19, end_s=20)  # a drawing without compute marks nothing by itself
    timeline = Timeline(source="made", spans=(*spans, told), steps=(step,))
    counted = 0
    for second in range(20):
        on = {span.activity for span in timeline.spans if span.start_s <= second < span.end_s}
        counted += bool(on & {"communication", "negotiation"}) and not on & {"forward", "backward", "copy", "optimizer"}
    assert by_definition(timeline, step) == break_down(timeline, step).exposed_s == drawn(timeline) == counted


@settings(max_examples=20)
@given(st.sampled_from(["ddp", "horovod"]), st.integers(1, 8), st.floats(0.2, 1e3))
def test_a_predicted_step_says_the_same_as_its_timeline(engine: str, ranks: int, bandwidth: float) -> None:
    timeline = predicted_step(profile(), described(bandwidth), Knobs(engine=engine), ranks, 8)
    (step,) = timeline.steps
    exchange = find_engine(engine).exchange(profile(), {})
    made = steps(profile(), described(bandwidth), exchange, np.array([ranks]), np.array([8]))
    assert by_definition(timeline, step) == pytest.approx(float(made.exposed_s[0]), abs=1e-9)
    assert break_down(timeline, step).exposed_s == pytest.approx(float(made.exposed_s[0]), abs=1e-9)
    assert drawn(timeline) == pytest.approx(float(made.exposed_s[0]), abs=1e-9)


@pytest.mark.parametrize("name", ["gloo_small", "cuda_gloo", "nccl"])
def test_a_traced_step_says_the_same_as_its_spans(name: str) -> None:
    trace = read(DATA / "kineto" / name / "rank0.json.gz")
    step = Step(rank=0, start_s=float(trace.starts_s[1]), end_s=float(trace.ends_s[1]))
    timeline = Timeline(source="t", spans=trace.spans(step.start_s, step.end_s), steps=(step,))
    length = step.end_s - step.start_s
    assert trace.parts.exposed is not None
    assert by_definition(timeline, step) == pytest.approx(trace.parts.exposed[1], abs=0.05 * length)
    assert drawn(timeline) == pytest.approx(by_definition(timeline, step))


def test_there_is_no_second_definition() -> None:
    """Whatever takes exchange apart from compute imports the definition; nobody else subtracts one from the other."""
    users = {"traces/trace.py", "traces/horovod/accounting.py", "show/charts/explanation.py"}
    defined, importing = set(), set()
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in ("exposed", "break_down", "exposed_time"):
                defined.add(name)
            if isinstance(node, ast.ImportFrom) and node.module == "scalescope.records.timeline":
                importing |= {name for alias in node.names if alias.name == "exposed"}
    assert defined == {"records/timeline.py"}
    assert importing == users
