"""One predicted step as a Timeline, and its parts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakdowns import break_down
from scalescope.records.job import Knobs
from scalescope.records.timeline import Span
from scalescope.simulator.step import predicted_step
from simulator.made import MIB, contention, described, gradients, overlap, point, profile, stepped

ONE_BY_ONE = Knobs(engine="ddp", values={"bucket_cap_mb": 1.0})
HOROVOD = Knobs(engine="horovod")
FOUR = profile(buffers_bytes=(MIB // 2,))


def shown(spans: tuple[Span, ...]) -> list[tuple[str, float, float, str]]:
    return [(span.activity, span.start_s, span.end_s, span.name) for span in spans]


def test_a_step_of_ddp_shows_what_each_part_does_when() -> None:
    timeline = predicted_step(FOUR, described(copy_s_per_byte=0.5 / MIB), ONE_BY_ONE, 2, 8)
    assert timeline.source == "predicted"
    assert shown(timeline.spans) == [
        ("communication", 0, 0.5, "buffers"),
        ("forward", 0.5, 2.5, "forward"),
        ("backward", 2.5, 8.5, "backward"),
        ("communication", 4, 5, "allreduce of 1 gradient"),
        ("communication", 5.5, 6.5, "allreduce of 1 gradient"),
        ("communication", 7, 8, "allreduce of 1 gradient"),
        ("communication", 8.5, 9.5, "allreduce of 1 gradient"),
        ("copy", 9.5, 10.5, "gradients out of buckets"),
        ("optimizer", 10.5, 11.5, "optimizer"),
    ]
    assert [span.bytes for span in timeline.spans if span.activity == "communication"] == [MIB // 2, *[MIB] * 4]
    (step,) = timeline.steps
    assert (step.rank, step.start_s, step.end_s) == (0, 0, 11.5)


def test_its_parts_add_up_and_what_is_hidden_stands_beside() -> None:
    timeline = predicted_step(FOUR, described(copy_s_per_byte=0.5 / MIB), ONE_BY_ONE, 2, 8)
    parts = break_down(timeline, timeline.steps[0])
    assert (parts.compute_s, parts.exposed_s, parts.optimizer_s, parts.hidden_s) == (2 + 6 + 1, 0.5 + 1, 1, 3)
    assert (parts.step_s, parts.input_s, parts.other_s) == (11.5, 0, 0)


def test_one_process_talks_to_nobody() -> None:
    for knobs in (ONE_BY_ONE, HOROVOD):
        timeline = predicted_step(FOUR, described(), knobs, 1, 8)
        assert [span.activity for span in timeline.spans] == ["forward", "backward", "optimizer"]
        assert timeline.steps[0].end_s == 7


def test_horovods_messages_tell_what_travelled_together() -> None:
    timeline = predicted_step(profile(), described(0.5), HOROVOD, 2, 8)
    messages = [span for span in timeline.spans if span.activity == "communication"]
    assert [(span.name, span.bytes) for span in messages] == [
        ("allreduce of 1 gradient", MIB),
        ("allreduce of 2 gradients", 2 * MIB),
        ("allreduce of 1 gradient", MIB),
    ]


@st.composite
def cases(draw: st.DrawFn):
    sizes = draw(st.lists(st.floats(0.01, 40), min_size=1, max_size=6))
    shares = sorted(draw(st.lists(st.floats(0, 1), min_size=len(sizes), max_size=len(sizes))))
    backward = draw(st.floats(1e-3, 20))
    model = profile(
        point(8, draw(st.floats(1e-3, 9)), backward, draw(st.floats(1e-3, 2)), [share * backward for share in shares]),
        gradients=gradients(*sizes),
        buffers_bytes=draw(st.sampled_from([(), (MIB, 8)])),
        crowds=(contention(2, 1.2, noise=0.03),),
    )
    cluster = described(
        draw(st.floats(0.5, 1e3)),
        latency_s=draw(st.floats(0, 1e-3)),
        copy_s_per_byte=draw(st.sampled_from([0.0, 1e-8])),
        overlaps=draw(st.sampled_from([(), (overlap(1.5, 2.5),)])),
    )
    return model, cluster, draw(st.integers(1, 8)), draw(st.integers(1, 64))


@settings(max_examples=60)
@given(cases())
def test_the_breakdown_says_what_the_prediction_says(case) -> None:
    model, cluster, ranks, batch = case
    made = stepped(model, cluster, ranks, batch)
    timeline = predicted_step(model, cluster, Knobs(engine="ddp"), ranks, batch)
    parts = break_down(timeline, timeline.steps[0])
    assert parts.step_s == pytest.approx(made.step_s[0])
    assert parts.exposed_s == pytest.approx(made.exposed_s[0], abs=1e-9)
    assert parts.hidden_s == pytest.approx(made.outcome.hidden_s[0], abs=1e-9)
    assert parts.optimizer_s == pytest.approx(made.optimizer_s[0])
    assert parts.compute_s == pytest.approx(made.forward_s[0] + made.outcome.backward_s[0] + made.finish_s[0], abs=1e-9)
    assert parts.other_s == pytest.approx(0, abs=1e-9)


@settings(max_examples=60)
@given(cases(), st.sampled_from(["ddp", "horovod"]))
def test_every_gradient_travels_once(case, engine: str) -> None:
    model, cluster, ranks, batch = case
    timeline = predicted_step(model, cluster, Knobs(engine=engine), ranks, batch)
    messages = [span for span in timeline.spans if span.name.startswith("allreduce")]
    total = sum(gradient.bytes for gradient in model.gradients) if ranks > 1 else 0
    assert sum(span.bytes for span in messages) == total
    assert all(before.end_s <= after.start_s + 1e-9 for before, after in pairwise(messages))
    assert all(span.end_s <= timeline.steps[0].end_s for span in timeline.spans)
