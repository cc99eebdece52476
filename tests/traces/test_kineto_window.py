"""One step of a profiler trace for drawing."""

import pytest
from kineto_samples import sample

from breakdowns import break_down
from scalescope.records.timeline import Span, Step, Timeline
from scalescope.traces.kineto.reading import read


def spans_of(spans: tuple[Span, ...], activity: str) -> list[Span]:
    return [span for span in spans if span.activity == activity]


@pytest.mark.parametrize(
    ("name", "step", "tolerance"), [("gloo_small", 1, 0.05), ("cuda_gloo", 0, 0.05), ("nccl", 1, 0.05)]
)
def test_what_is_drawn_agrees_with_the_accounting(name: str, step: int, tolerance: float) -> None:
    trace = read(sample(name))
    begin, end = trace.starts_s[step], trace.ends_s[step]
    spans = trace.spans(begin, end)
    drawn = break_down(Timeline(source="t", spans=spans, steps=()), Step(rank=0, start_s=begin, end_s=end))
    assert trace.parts.compute is not None
    assert trace.parts.exposed is not None
    assert drawn.compute_s == pytest.approx(trace.parts.compute[step], abs=tolerance * drawn.step_s)
    assert drawn.exposed_s == pytest.approx(trace.parts.exposed[step], abs=tolerance * drawn.step_s)


def test_a_step_on_cpu_shows_forward_backward_every_bucket_and_the_optimizer_in_their_order() -> None:
    trace = read(sample("gloo_small"))
    spans = trace.spans(trace.starts_s[1], trace.ends_s[1])
    assert [span.bytes for span in spans_of(spans, "communication") if span.name == "allreduce"][:4] == list(
        trace.bucket_bytes
    )
    backward, optimizer = spans_of(spans, "backward"), spans_of(spans, "optimizer")
    assert spans_of(spans, "input")[0].end_s <= spans_of(spans, "forward")[0].start_s
    assert spans_of(spans, "forward")[0].start_s < backward[0].start_s < optimizer[0].start_s
    assert len(optimizer) == 1
    assert len(backward) < 10


def test_kernels_belong_to_what_launched_them() -> None:
    trace = read(sample("cuda_gloo", 1))
    spans = trace.spans(trace.starts_s[1], trace.ends_s[1])
    forward, backward = spans_of(spans, "forward"), spans_of(spans, "backward")
    optimizer = spans_of(spans, "optimizer")
    copies = spans_of(spans, "copy")
    assert forward[-1].end_s <= backward[0].start_s
    assert backward[-1].end_s <= copies[0].start_s
    assert copies[-1].end_s <= optimizer[0].start_s
    assert not spans_of(spans, "other")
    assert {span.rank for span in spans} == {1}


@pytest.mark.parametrize("name", ["gloo_with_stack", "nccl"])
def test_a_drawing_has_few_spans_inside_the_window(name: str) -> None:
    trace = read(sample(name))
    begin, end = trace.starts_s[0], trace.ends_s[-1]
    spans = trace.spans(begin, end)
    assert 10 < len(spans) < 3000
    assert all(begin <= span.start_s < span.end_s <= end for span in spans)


def test_a_window_without_events_is_empty() -> None:
    assert read(sample("gloo_small")).spans(1e6, 1e6 + 1) == ()
