"""Times of two results: which are set against each other, their ratio with its interval, and the verdict, by hand."""

import json
import math
from typing import Any

import made_predictions
import made_tunings
import msgspec
import pytest

from command_line import CommandLine
from scalescope.errors import UsageError
from scalescope.records.comparison import Comparison, Pair
from scalescope.records.results import Results
from scalescope.records.scaling import Curve, Estimate, Scaling, ScalingPoint
from scalescope.records.tuning import Sample, Tuning, Values
from scalescope.show import document_of
from scalescope.studies.compare import TOLERANCE, compare

ONCE = "fewer than 3 launches each: repeat with --launches 5"


def about(value: float, low: float | None = None, high: float | None = None, **more: Any) -> Estimate:
    known: dict[str, Any] = {"interval": "t", "count": 5, **more}
    return Estimate(value=value, low=value if low is None else low, high=value if high is None else high, **known)


def point(step: Estimate | None = None, **more: Any) -> ScalingPoint:
    return ScalingPoint(**{"engine": "ddp", "np": 2, "batch": 8, "step_s": step, **more})


def measured(*points: ScalingPoint, kind: str = "weak", name: str = "m") -> Results:
    curve = Curve(engine="ddp", scaling=kind, baseline_np=1, baseline_engine="none", points=points)
    return Results(name=name, scaling=Scaling(what="cnn", source="measurement", curves=(curve,)))


def steps(a: Estimate, b: Estimate, tolerance: float = TOLERANCE) -> Pair:
    (pair,) = compare(measured(point(a)), measured(point(b)), tolerance).pairs
    return pair


def whats(comparison: Comparison) -> list[str]:
    return [pair.what for pair in comparison.pairs]


def test_half_widths_of_both_intervals_add_in_quadrature() -> None:
    pair = steps(about(1.0, 0.9, 1.2), about(2.0, 1.9, 2.6))
    assert (pair.a, pair.b) == (1.0, 2.0)
    assert pair.ratio
    assert pair.ratio.value == 2.0
    assert pair.ratio.low == pytest.approx(2.0 * math.exp(-math.hypot(math.log(2 / 1.9), math.log(1.2))))
    assert pair.ratio.high == pytest.approx(2.0 * math.exp(math.hypot(math.log(1.3), math.log(1 / 0.9))))


def test_an_interval_that_does_not_hold_its_value_makes_the_ratios_no_smaller() -> None:
    pair = steps(about(1.0, 1.0, 0.5), about(2.0, 2.0, 1.0))
    assert pair.ratio
    assert (pair.ratio.low, pair.ratio.value, pair.ratio.high) == (2.0, 2.0, 2.0)
    wide = steps(about(1.0, 0.0, 1.0), about(2.0, 0.0, 2.0)).ratio
    assert wide
    assert [wide.low, wide.high] == pytest.approx([1e-12, 2e12])


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (about(1.0), about(2.0), "same"),  # the tolerance itself is none
        (about(1.0), about(2.1), "slower"),
        (about(2.0), about(1.0), "same"),
        (about(2.1), about(1.0), "faster"),
        (about(1.0), about(1.5, 1.5, 2.1), "undecided"),
        (about(1.0), about(2.5, 1.9, 2.5), "undecided"),
        (about(1.0), about(0.6, 0.4, 0.6), "undecided"),
        (about(1.0), about(0.4, 0.4, 0.6), "undecided"),
        (about(1.0, 0.9, 1.1), about(1.0, 0.9, 1.1), "same"),
    ],
)
def test_the_whole_interval_lies_on_one_side_or_decides_nothing(a: Estimate, b: Estimate, verdict: str) -> None:
    assert steps(a, b, tolerance=1.0).verdict == verdict


def test_a_change_within_the_tolerance_counts_as_same() -> None:
    assert [steps(about(1.0), about(b)).verdict for b in (1.04, 1.06, 0.96, 0.94)] == [
        "same",
        "slower",
        "same",
        "faster",
    ]


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"interval": "range", "count": 2}, ONCE),
        ({"interval": "range", "count": 3}, ""),
        ({"interval": "t", "count": 2}, ""),
    ],
)
def test_ranges_of_fewer_than_three_launches_decide_nothing(more: dict[str, Any], note: str) -> None:
    for pair in (steps(about(1.0, **more), about(9.0)), steps(about(1.0), about(9.0, **more))):
        assert (pair.note, pair.verdict) == (note, "undecided" if note else "slower")
        assert pair.ratio


def test_a_time_of_nothing_has_no_ratio() -> None:
    for pair in (steps(about(0.0), about(1.0)), steps(about(1.0), about(0.0))):
        assert (pair.ratio, pair.verdict) == (None, "undecided")
    assert steps(about(1e-9), about(1e-9)).ratio


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({}, "step of 2 x ddp, batch 8 each"),
        ({"nodes": 2}, "step of 2 x ddp on 2 nodes, batch 8 each"),
        ({"nodes": 1}, "step of 2 x ddp, batch 8 each"),
        ({"engine": "none", "np": 1}, "step of 1 alone, batch 8"),
        ({"engine": "", "np": 1, "batch": None}, "step of 1 alone"),
        ({"engine": "", "np": 2}, "step of 2 processes, batch 8 each"),
        ({"engine": "none", "np": 3, "nodes": 3, "batch": None}, "step of 3 processes"),
        ({"np": 1200, "batch": 2.5}, "step of 1,200 x ddp, batch 2.5 each"),
    ],
)
def test_a_step_is_called_by_its_configuration(more: dict[str, Any], what: str) -> None:
    one = measured(point(about(1.0), **more))
    assert whats(compare(one, one)) == [what]


def test_only_common_times_are_compared_in_the_order_of_the_first() -> None:
    a = measured(*(point(about(np), np=np) for np in (8, 2, 4)))
    b = measured(*(point(about(2 * np), np=np) for np in (2, 16, 8)))
    pairs = compare(a, b).pairs
    assert [(pair.what, pair.a, pair.b) for pair in pairs] == [
        ("step of 8 x ddp, batch 8 each", 8, 16),
        ("step of 2 x ddp, batch 8 each", 2, 4),
    ]
    assert not any(pair.is_part for pair in pairs)


def test_the_first_of_several_points_of_one_name_counts() -> None:
    (pair,) = compare(measured(point(about(1.0)), point(about(5.0))), measured(point(about(1.0)))).pairs
    assert pair.a == 1.0


def test_without_steps_samples_are_compared_and_without_them_trainings() -> None:
    a = measured(point(throughput=about(10.0, 8.0, 20.0)), point(np=4, train_s=30.0), point(np=8))
    b = measured(point(throughput=about(5.0, 5.0, 5.0)), point(np=4, train_s=60.0), point(np=8))
    sample, training = compare(a, b).pairs
    assert (sample.what, sample.a, sample.b) == ("sample of 2 x ddp, batch 8 each", 0.1, 0.2)
    assert sample.ratio
    assert [sample.ratio.low, sample.ratio.high] == pytest.approx([2.0 * 0.1 / 0.125, 2.0 * 0.1 / 0.05])
    assert (training.what, training.a, training.b) == ("training of 4 x ddp, batch 8 each", 30.0, 60.0)
    assert (training.verdict, training.note) == ("undecided", ONCE)


def test_total_times_are_compared_where_a_table_has_no_others(scalescope: CommandLine) -> None:
    (scalescope.folder / "before.csv").write_text("np,total_s\n1,100\n2,60\n2,60\n2,60\n")
    (scalescope.folder / "after.csv").write_text("np,total_s,train_s\n1,100,90\n2,30,20\n2,30,20\n2,30,20\n")
    for other, ratio in (("before.csv", 1.0), ("after.csv", 0.5)):
        said = scalescope.in_this_process("compare", "before.csv", other, "--json").stdout
        alone, two = json.loads(said)["pairs"]
        assert (alone["what"], alone["ratio"]["value"]) == ("total time of 1 alone", 1.0)
        assert (two["what"], two["ratio"]["value"]) == ("total time of 2 processes", ratio)
        assert (alone["note"], two["note"]) == (ONCE, "no spread is known")


def test_other_engines_are_compared_by_size_and_other_sizes_by_their_fastest_sample() -> None:
    ddp = measured(point(about(1.0), throughput=about(10.0)), point(about(1.0), np=4, throughput=about(40.0)))
    horovod = measured(point(about(2.0), engine="horovod"))
    assert whats(compare(ddp, horovod)) == ["step of 2 processes, batch 8 each"]
    larger = measured(
        point(about(1.0), np=8, throughput=about(20.0)), point(about(1.0), np=16, throughput=about(10.0, count=1))
    )
    (pair,) = compare(ddp, larger).pairs
    assert pair.what == "a sample: 4 x ddp, batch 8 each against 8 x ddp, batch 8 each"
    assert (pair.a, pair.b, pair.verdict) == (1 / 40, 1 / 20, "slower")
    with pytest.raises(UsageError, match=r"m \(scaling\) and x \(scaling\) have no time in common: compare results of"):
        compare(ddp, measured(point(about(1.0), np=8), name="x"))


def test_results_without_any_answer_have_nothing_in_common() -> None:
    with pytest.raises(UsageError, match=r"a \(nothing\) and m \(scaling\) have no time in common"):
        compare(Results(name="a"), measured(point(about(1.0))))


def test_a_map_is_compared_with_a_measurement_of_its_own_engine() -> None:
    cells = {
        (cell.np, cell.batch): cell for cell in made_predictions.predicted(counts=(1, 2, 4), batches=(8, 16)).cells
    }
    large = msgspec.structs.replace(cells[4, 8], fits=False)
    kept = (cells[1, 8], cells[2, 8], cells[2, 16], large)
    prediction = msgspec.structs.replace(made_predictions.predicted(), cells=kept)
    guessed = Results(name="map", prediction=prediction)
    seen = measured(
        point(about(1.0), engine="none", np=1),
        point(about(9.0), engine="ddp", np=1),
        point(about(2.0)),
        point(about(3.0), engine="horovod", batch=16),
        point(None, batch=16),
        point(about(4.0), np=4),
    )
    pairs = compare(guessed, seen).pairs
    assert [(pair.what, pair.a, pair.b) for pair in pairs] == [
        ("weak scaling, 1 process, batch 8", cells[1, 8].step_s, 1.0),
        ("weak scaling, 2 processes, batch 8 each", cells[2, 8].step_s, 2.0),
    ]
    assert pairs[1].ratio
    assert pairs[1].ratio.high == pytest.approx(2.0 / cells[2, 8].low_s)
    turned = compare(seen, guessed).pairs
    assert {(pair.what, pair.b, pair.a) for pair in turned} == {(pair.what, pair.a, pair.b) for pair in pairs}
    assert whats(compare(guessed, guessed)) == [
        "predicted step, weak scaling, 1 process, batch 8",
        "predicted step, weak scaling, 2 processes, batch 8 each",
        "predicted step, weak scaling, 2 processes, batch 16 each",
    ]
    with pytest.raises(UsageError, match="have no time in common"):
        compare(guessed, measured(point(about(2.0)), kind="strong"))


def mapped(name: str = "map", **more: Any) -> Results:
    prediction = made_predictions.predicted(counts=(2,), batches=(8, 16))
    return Results(name=name, prediction=msgspec.structs.replace(prediction, **more))


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"cluster": "other.toml"}, "they are predicted for different machines or threads: map for cluster.toml"),
        ({"threads_per_rank": 4}, "they are predicted for different machines or threads: map for cluster.toml"),
        ({"doubts": ("busy",)}, "b: its prediction is not to be trusted: busy"),
    ],
)
def test_predictions_of_other_machines_or_not_to_be_trusted_decide_nothing(more: dict[str, Any], note: str) -> None:
    fast = tuple(
        msgspec.structs.replace(cell, step_s=cell.step_s / 9, low_s=cell.low_s / 9, high_s=cell.high_s / 9)
        for cell in made_predictions.predicted(counts=(2,), batches=(8, 16)).cells
    )
    assert {pair.verdict for pair in compare(mapped(), mapped("b", cells=fast)).pairs} == {"faster"}
    other = compare(mapped(), mapped("b", cells=fast, **more))
    assert {pair.verdict for pair in other.pairs} == {"undecided"}
    assert other.notes[0].startswith(note)
    assert document_of(other).answer.startswith("Not decided: predicted step, weak scaling")


def test_what_was_measured_goes_before_a_prediction_of_the_same_setting() -> None:
    study = msgspec.structs.replace(mapped("study"), scaling=measured(point(about(9.0))).scaling)
    pairs = compare(mapped(), study).pairs
    assert [(pair.what, pair.b == 9.0) for pair in pairs] == [
        ("weak scaling, 2 processes, batch 8 each", True),
        ("predicted step, weak scaling, 2 processes, batch 16 each", False),
    ]


def test_nothing_is_decided_where_one_side_is_not_certain() -> None:
    sure = measured(point(about(1.0)), name="a")
    doubt = "Not certain: other programs took 2 of 2 cores. No interval covers that: repeat it while nothing else runs."
    slow = measured(point(about(2.0)), name="b")
    assert slow.scaling
    busy = msgspec.structs.replace(slow, scaling=msgspec.structs.replace(slow.scaling, doubt=doubt))
    assert compare(sure, slow).slower
    for both in (compare(sure, busy), compare(busy, sure)):
        assert [pair.verdict for pair in both.pairs] == ["undecided"]
        assert f"b: {doubt}" in document_of(both).answer


def test_logs_of_other_numbers_of_processes_are_sent_to_explain() -> None:
    one, two = (measured(point(None, np=np), name=f"{np}.log") for np in (1, 2))
    logs = [
        msgspec.structs.replace(each, scaling=msgspec.structs.replace(each.scaling, source="logs"))
        for each in (one, two)
        if each.scaling
    ]
    with pytest.raises(UsageError, match=r"1.log is of 1, 2.log of 2 processes: scalescope explain A B p"):
        compare(*logs)


def test_a_batch_that_is_not_known_is_no_cells() -> None:
    prediction = made_predictions.predicted(counts=(2,), batches=(1,))
    with pytest.raises(UsageError, match="have no time in common"):
        compare(Results(name="map", prediction=prediction), measured(point(about(2.0), batch=None)))


def test_a_measurement_is_not_set_against_a_map_where_both_have_the_same_answer() -> None:
    prediction = made_predictions.predicted(counts=(2,), batches=(8,))
    both = msgspec.structs.replace(measured(point(about(1.0))), prediction=prediction)
    assert whats(compare(both, both)) == ["step of 2 x ddp, batch 8 each"], "what was launched decides"
    assert whats(compare(measured(point(about(1.0))), both)) == ["step of 2 x ddp, batch 8 each"]
    assert whats(compare(both, measured(point(about(1.0))))) == ["step of 2 x ddp, batch 8 each"]


def tuned(values: Values, errors: list[tuple[Values, float | None]], **more: Any) -> Results:
    samples = tuple(
        Sample(index=at, phase="search", values=own, error_s=error) for at, (own, error) in enumerate(errors)
    )
    made: Tuning = msgspec.structs.replace(made_tunings.two_hosts(), values=values, samples=samples, **more)
    return Results(name="t", tuning=made)


def test_a_search_has_the_default_and_the_tuned_step_each_with_its_own_spread() -> None:
    own: Values = {"bucket_cap_mb": 1.0}
    errors: list[tuple[Values, float | None]] = [({}, 0.2), ({}, 0.1), (own, 0.05), ({"x": 1}, 0.01), (own, None)]
    one = tuned(own, errors, default_step_s=2.0, winner_step_s=1.0)
    exact = tuned(own, [({}, 1e-12), (own, 1e-12)], default_step_s=4.0, winner_step_s=4.0)
    default, best = compare(one, exact).pairs
    assert (default.what, default.a, default.note) == ("step of the default", 2.0, "")
    assert (best.what, best.a, best.note) == ("step of the tuned setting", 1.0, "")
    assert default.ratio
    assert best.ratio
    assert default.ratio.high == pytest.approx(4.0 / (2.0 - 1.6449 * 0.1), rel=1e-4)
    assert default.ratio.low == pytest.approx(4.0 / (2.0 + 1.6449 * 0.1), rel=1e-4)
    assert best.ratio.high == pytest.approx(4.0 / (1.0 - 1.6449 * 0.05), rel=1e-4)


def test_a_search_that_keeps_the_default_compares_its_step_twice() -> None:
    kept = tuned({}, [({}, 0.1)], default_step_s=2.0, winner_step_s=None)
    assert [(pair.a, pair.note) for pair in compare(kept, kept).pairs] == [(2.0, ""), (2.0, "")]
    bare = tuned({}, [({}, None)], default_step_s=2.0, winner_step_s=None)
    assert [(pair.verdict, pair.note) for pair in compare(bare, bare).pairs] == [
        ("undecided", "no spread is known")
    ] * 2
    unknown = tuned({}, [], default_step_s=None, winner_step_s=3.0)
    assert whats(compare(unknown, kept)) == ["step of the tuned setting"]
