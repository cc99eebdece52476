"""What records of answers tell besides what they hold: names, kinds, files, seen engines, exposed time."""

from typing import Any

import made_explanation
import made_predictions
import made_scalings
import made_tunings
import msgspec
import pytest
from made_autotune import autotune
from test_measurement import measurement, run

from scalescope.records.comparison import Comparison, Pair
from scalescope.records.explanation import RankTrace, TraceFolder
from scalescope.records.machine import Cores
from scalescope.records.results import Results
from scalescope.records.run import INIT_PHASES, LAUNCH_PHASES, PHASES, TRAIN_PHASES, Point
from scalescope.records.timeline import BUSY, COMPUTE, EXCHANGE, Breakdown, Span, exposed, moments

POINT = Point(engine="ddp", np=4, batch=8, threads_per_rank=1)


def test_the_winner_of_an_autotune_log_belongs_to_a_setting() -> None:
    assert autotune().winning_setting == 6


def test_results_are_called_by_what_was_measured_then_predicted_tuned_explained() -> None:
    explanations = (made_explanation.ddp(2, 6, what="traced"),)
    known: dict[str, Any] = {
        "scaling": made_scalings.measured("measured", batches=(8,), counts=(1,), engines=("ddp",)),
        "prediction": made_predictions.predicted("predicted", counts=(1,), batches=(8,)),
        "tuning": made_tunings.two_hosts("tuned"),
        "explanations": explanations,
        "autotune": autotune(),
    }
    called = []
    while known:
        called.append(Results(name="folder", **known).what)
        del known[next(iter(known))]
    assert called == ["measured", "predicted", "tuned", "traced", "autotune.csv"]
    assert Results(name="folder").what == "folder"


def test_the_kinds_of_results_are_those_that_are_there() -> None:
    assert Results(name="x").kinds == frozenset()
    some = Results(name="x", explanations=(made_explanation.ddp(2, 6),), autotune=autotune())
    assert some.kinds == {"explanation", "autotune"}
    assert Results(name="x", prediction=made_predictions.single()).kinds == {"prediction"}


def pair(verdict: Any, *, is_part: bool = False) -> Pair:
    return Pair(what="step", a=1.0, b=2.0, ratio=None, verdict=verdict, is_part=is_part)


def test_whole_steps_decide_and_not_their_parts() -> None:
    def both(*pairs: Pair) -> Comparison:
        return Comparison(a="a", b="b", tolerance=0.05, pairs=pairs)

    same, part = pair("same"), pair("slower", is_part=True)
    assert both(same, part).decisive == (same,)
    assert not both(same, part, pair("faster")).slower
    assert both(same, pair("slower")).slower


@pytest.mark.parametrize(
    ("usable", "physical", "shares"),
    [(8.0, 4, True), (4.0, 4, False), (4.5, 4, False), (2.0, 4, False), (8, None, False)],
)
def test_usable_cores_share_where_there_are_fewer_physical_ones(
    usable: float, physical: int | None, shares: bool
) -> None:
    cores = Cores(physical=None, logical=8, usable=usable, usable_physical=physical)
    assert cores.shares_cores is shares


def test_a_trace_folder_names_the_timeline_first_and_profiles_that_are_there() -> None:
    ranks = (
        RankTrace(rank=0, host="a", profile="r0"),
        RankTrace(rank=1, host="a"),
        RankTrace(rank=2, host="a", profile="r2"),
    )
    folder = TraceFolder(
        what="x", point=POINT, engine="ddp", backend="gloo", np=3, ranks=ranks, steps=1, untraced_step_s=None
    )
    assert folder.files == ("r0", "r2")
    assert msgspec.structs.replace(folder, timeline="timeline.json").files == ("timeline.json", "r0", "r2")


def test_a_point_has_a_name_for_files_and_a_global_batch() -> None:
    assert (POINT.label, POINT.global_batch) == ("ddp-np4-b8", 32)
    bare = msgspec.structs.replace(POINT, batch=None, arm="B")
    assert (bare.label, bare.global_batch) == ("ddp-np4-B", None)


def test_every_phase_is_of_the_launch_of_init_or_of_training() -> None:
    assert sorted((*LAUNCH_PHASES, *INIT_PHASES, *TRAIN_PHASES)) == sorted(PHASES)


@pytest.mark.parametrize(
    ("np", "seen", "exchanges", "engine"),
    [
        (2, "horovod", True, "horovod"),
        (2, "", None, "ddp"),
        (2, "none", None, ""),
        (2, "none", True, ""),
        (2, "none", False, "none"),
        (1, "none", None, "none"),
    ],
)
def test_a_run_counts_under_the_engine_that_its_ranks_used(
    np: int, seen: str, exchanges: bool | None, engine: str
) -> None:
    made = measurement(run("ddp", np, 100, engine_seen=seen, exchanges=exchanges), run("none", 1, 50))
    points = [each.point for each in made.as_seen().runs]
    assert [point.engine for point in points] == [engine, "none"]
    assert [point.np for point in points] == [np, 1]
    assert made.runs[0].point.engine == "ddp"


def test_transfer_is_exposed_communication_that_waits_for_no_rank() -> None:
    def parts(exposed_s: float | None, waiting_s: float | None) -> Breakdown:
        return Breakdown(
            step_s=1.0,
            compute_s=None,
            exposed_s=exposed_s,
            hidden_s=None,
            input_s=None,
            optimizer_s=None,
            other_s=0.0,
            waiting_s=waiting_s,
        )

    assert parts(0.5, 0.2).transfer_s == pytest.approx(0.3)
    assert parts(0.2, 0.5).transfer_s == 0.0
    assert parts(0.2, None).transfer_s is None
    assert parts(None, 0.2).transfer_s is None


def test_exposed_is_exchange_while_a_rank_is_not_busy() -> None:
    spans = [
        Span(rank=0, activity="backward", start_s=0.0, end_s=4.0),
        Span(rank=0, activity="communication", start_s=3.0, end_s=6.0),
        Span(rank=0, activity="negotiation", start_s=5.0, end_s=7.0),
        Span(rank=0, activity="optimizer", start_s=6.5, end_s=9.0),
        Span(rank=0, activity="input", start_s=9.0, end_s=10.0),
    ]
    exchange, busy = moments(spans, EXCHANGE), moments(spans, BUSY)
    assert (exchange.length, busy.length, moments(spans, COMPUTE).length) == (4.0, 6.5, 4.0)
    alone = exposed(exchange, busy)
    assert (alone.starts.tolist(), alone.ends.tolist()) == ([4.0], [6.5])
    assert moments(spans[:1], EXCHANGE).length == 0.0
