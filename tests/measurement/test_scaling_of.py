from typing import Literal

import msgspec
import pytest
from observed import launch, measurement

from scalescope.errors import UsageError
from scalescope.measurement.scaling import scaling_of
from scalescope.records.run import Load, Unsteady
from scalescope.records.scaling import Scaling, engine_ratios
from scalescope.show.scaling import sentence
from scalescope.steady import UNSETTLED


def rounds(count: int, **changes: object) -> list:
    runs = []
    for number in range(1, count + 1):
        runs += [
            launch("none", 1, number, 0.100, **changes),
            launch("ddp", 1, number, 0.104, **changes),
            launch("ddp", 2, number, 0.125 + 0.001 * number, **changes),
        ]
    return runs


def test_weak_scaling_counts_the_work_of_all_processes() -> None:
    (curve,) = scaling_of(measurement(rounds(5))).curves
    assert [(point.engine, point.np) for point in curve.points] == [("none", 1), ("ddp", 1), ("ddp", 2)]
    alone, own, two = curve.points
    assert alone.speedup["steady"].value == 1
    assert own.speedup["steady"].value == pytest.approx(100 / 104)
    assert two.speedup["steady"].value == pytest.approx(2 * 100 / 128, rel=1e-3)
    assert two.speedup["steady"].interval == "t"
    assert two.efficiency
    assert two.efficiency.value == pytest.approx(100 / 128, rel=1e-3)
    assert two.throughput
    assert two.throughput.value == pytest.approx(16 / 0.128, rel=1e-3)


def test_one_process_pays_its_start_once_for_twice_the_work() -> None:
    two = scaling_of(measurement(rounds(1))).curves[0].points[2]
    steps_s = 2 * 20 * 0.1
    assert two.speedup["end_to_end"].value == pytest.approx((3 + 0.9 + steps_s) / (3 + 1 + 19 * 0.126))


def test_strong_and_weak_share_one_baseline_launch() -> None:
    runs = [launch("none", 1, batch=8), launch("ddp", 1, batch=8), launch("ddp", 2, batch=4, step_s=0.06)]
    runs += [launch("ddp", 2, batch=8, step_s=0.12)]
    strong, weak = scaling_of(measurement(runs, ("strong", "weak"))).curves
    assert [point.batch for point in strong.points] == [8, 8, 4]
    assert [point.batch for point in weak.points] == [8, 8, 8]
    assert strong.points[2].speedup["steady"].value == pytest.approx(100 / 60)
    assert weak.points[2].speedup["steady"].value == pytest.approx(2 * 100 / 120)


def test_engines_stand_side_by_side() -> None:
    runs = [*rounds(2), *(launch("horovod", 2, number, 0.15) for number in (1, 2))]
    curves = scaling_of(measurement(runs)).curves
    assert [curve.engine for curve in curves] == ["ddp", "horovod"]
    assert all(curve.baseline_engine == "none" for curve in curves)
    assert curves[1].points[-1].speedup["steady"].interval == "range"


@pytest.mark.parametrize(("scaling", "speedup"), [("weak", 2 * 0.1 / 0.125), ("strong", 0.1 / 0.125)])
def test_a_script_that_hides_its_batch_is_compared_by_steps(scaling: str, speedup: float) -> None:
    runs = [launch(np=np, step_s=step_s, batch=None, samples=False) for np, step_s in ((1, 0.1), (2, 0.125))]
    (curve,) = scaling_of(measurement(runs, (scaling,), ())).curves
    assert curve.work_unit == "steps"
    assert curve.points[1].throughput is None
    assert curve.points[1].speedup["steady"].value == pytest.approx(speedup)


def test_one_number_of_processes_has_no_speedup() -> None:
    scaling = scaling_of(measurement([launch(np=2)]))
    assert scaling.curves[0].baseline_np is None
    assert scaling.curves[0].points[0].speedup == {}
    assert scaling.trust == ()


def test_launches_that_checked_an_estimate_have_no_scaling() -> None:
    with pytest.raises(UsageError, match="these launches checked an estimate"):
        scaling_of(measurement([launch(np=2)], quick=True))


@pytest.mark.parametrize(("disturbed", "doubted", "warned"), [(0, False, False), (7, False, True), (8, True, False)])
def test_some_disturbed_launches_trigger_a_warning_and_most_put_the_answer_in_doubt(
    disturbed: int, *, doubted: bool, warned: bool
) -> None:
    busy, calm = (Load(foreign_cores=cores, cores=2, load_average=1.5) for cores in (0.9, 0.1))
    runs = [
        msgspec.structs.replace(run, load=busy if at < disturbed else calm) for at, run in enumerate(rounds(5)[:14])
    ]
    scaling = scaling_of(measurement(runs))
    assert any(f"in {disturbed} of 14 launches: measure again" in warning for warning in scaling.warnings) == warned
    assert bool(scaling.doubt) == doubted
    if doubted:
        assert sentence(scaling).startswith(
            "Not certain: other programs took up to 0.9 of 2 cores in 8 of 14 launches. No interval covers that"
        )
        assert "95 % interval" not in sentence(scaling)
        assert "Fastest is" not in sentence(scaling)
        assert "in these launches)" in sentence(scaling)
        assert scaling.findings == ()


def test_warnings_of_launches_are_listed_once_per_point_with_a_count() -> None:
    def noted(runs: list, *where: tuple[str, int]) -> list:
        return [
            msgspec.structs.replace(run, warnings=("it drifts",)) if (run.point.engine, run.round) in where else run
            for run in runs
        ]

    several = scaling_of(measurement(noted(rounds(3), ("none", 1), ("none", 3))))
    assert several.warnings == ("none-np1-b8: it drifts (in 2 of 3 launches)",)
    assert scaling_of(measurement(noted(rounds(1), ("none", 1)))).warnings == ("none-np1-b8: it drifts",)


def test_the_speedup_to_trust_follows_from_the_numbers() -> None:
    long = scaling_of(measurement(rounds(5, steps=20000, first_s=0.1, around_s=0.1)))
    assert len(long.trust) == 1
    assert "All agree" in long.trust[0]
    short = scaling_of(measurement(rounds(5, around_s=30.0)))
    assert any(f"{short.curves[0].points[2].speedup['end_to_end'].value:.2f}x" in line for line in short.trust)
    assert any("long training" in line for line in short.trust)


def test_results_of_one_launch_each_are_not_claimed_as_facts() -> None:
    slow = {"none": 0.1, "ddp": 0.18}

    def said(count: int) -> tuple[str, ...]:
        runs = [
            launch(engine, np, number, slow[engine] * np * (1 + 0.001 * number))
            for number in range(1, count + 1)
            for engine, np in (("none", 1), ("ddp", 1), ("ddp", 2))
        ]
        scaling = scaling_of(measurement(runs))
        return (*scaling.findings, *scaling.trust)

    once = said(1)
    cost = "ddp itself cost 44 % of the pace on 1 process"
    assert f"{cost} (one launch each; launches differ: repeat with --launches 5)" in once
    assert once[-1] == "That is one launch each, and launches differ: repeat with --launches 5."
    assert not any("may be quoted" in line for line in once)
    assert f"{cost} (in 3 launches)" in said(3)
    assert cost in said(5)
    assert not any("launches differ" in line for line in said(5))


def test_a_launch_that_failed_once_is_mentioned() -> None:
    from scalescope.records.run import Failure

    record = measurement(rounds(2))
    failure = Failure(point=record.runs[2].point, round=3, folder="", problem="rank 1 was killed", details="")
    record = msgspec.structs.replace(record, failures=(failure,))
    assert any("rank 1 was killed" in warning for warning in scaling_of(record).warnings)


def test_the_best_batch_is_named() -> None:
    runs = [launch("none", 1, batch=batch, step_s=step_s) for batch, step_s in ((8, 0.1), (16, 0.15), (32, 0.4))]
    runs += [launch("ddp", 1, batch=batch) for batch in (8, 16, 32)]
    findings = scaling_of(measurement(runs, batch=(8, 16, 32))).findings
    assert any("batch 16 was the fastest" in sentence for sentence in findings)


def test_speedups_and_throughput_are_of_elapsed_time_and_the_median_step_is_shown() -> None:
    """A tenth of the steps on two processes takes three times as long: a long training pays for them."""
    two = launch("ddp", 2, 1, 0.1)
    slow = msgspec.structs.replace(
        two, mean_step_s=0.12, throughput=16 / 0.12, phases=two.phases | {"steady": 19 * 0.12}
    )
    (curve,) = scaling_of(measurement([launch("none", 1, 1, 0.1), slow])).curves
    point = curve.points[-1]
    assert point.step_s
    assert point.step_s.value == pytest.approx(0.1)
    assert point.throughput
    assert point.throughput.value == pytest.approx(16 / 0.12)
    assert point.speedup["steady"].value == pytest.approx(2 / 1.2)
    assert (point.mean_efficiency, point.median_efficiency) == pytest.approx((1 / 1.2, 1.0))
    assert "uneven" not in {loss.name for loss in point.waterfall}


def drifting(engine: str, np: int, step_s: float, batch: int = 8) -> list:
    """Five launches on a machine that is up to twice as slow in some rounds, whatever runs."""
    paces = (1.0, 2.0, 1.4, 0.9, 1.7)
    jitter = (0.0, 0.004, -0.003, 0.002, -0.001)
    return [
        launch(engine, np, number, step_s * pace * (1 + off * (1 + np)), batch=batch)
        for number, (pace, off) in enumerate(zip(paces, jitter, strict=True), 1)
    ]


def test_batches_are_compared_within_rounds() -> None:
    """By themselves the intervals overlap by far: the machine drifts more than batches differ."""
    runs = [run for batch, step_s in ((8, 0.1), (16, 0.18)) for run in drifting("none", 1, step_s, batch)]
    runs += [run for batch in (8, 16) for run in drifting("ddp", 1, 0.02 * batch, batch)]
    scaling = scaling_of(measurement(runs, batch=(8, 16)))
    eight, sixteen = (curve.points[0].throughput for curve in scaling.curves)
    assert eight
    assert sixteen
    assert eight.high > sixteen.low
    assert "on 1 process batch 16 was the fastest: 66.4 samples/s" in " ".join(scaling.findings)
    assert "may be as good" not in " ".join(scaling.findings)


def test_engines_are_compared_within_rounds() -> None:
    runs = [*drifting("none", 1, 0.1), *drifting("ddp", 2, 0.12), *drifting("horovod", 2, 0.14)]
    scaling = scaling_of(measurement(runs))
    (said,) = [finding for finding in scaling.findings if "times as fast as" in finding]
    assert said.startswith("on 2 processes, batch 8 each ddp was 1.17 times as fast as horovod (95 % interval 1.1")
    (ratio,) = engine_ratios(scaling.curves)
    assert (ratio.engine, ratio.than, ratio.np) == ("ddp", "horovod", 2)
    assert (ratio.ratio.low, ratio.ratio.high) == pytest.approx((0.14 / 0.12, 0.14 / 0.12))
    alike = scaling_of(
        measurement([*drifting("none", 1, 0.1), *drifting("ddp", 2, 0.12), *_shuffled("horovod", 0.1201)])
    )
    assert any(finding.endswith(", which does not tell them apart") for finding in alike.findings)


def _shuffled(engine: str, step_s: float) -> list:
    return [
        msgspec.structs.replace(run, mean_step_s=run.mean_step_s * off, throughput=run.throughput / off)
        for run, off in zip(drifting(engine, 2, step_s), (1.01, 0.99, 1.02, 0.98, 1.0), strict=True)
    ]


def _noisy(count: int, levels: list[float]) -> list:
    return [
        run
        for number, level in enumerate(levels[:count], 1)
        for run in (launch("none", 1, number, 0.1), launch("ddp", 2, number, 0.12 * level))
    ]


EVEN = [1.0, 1.012, 0.993, 1.004, 0.99, 1.009, 0.996, 1.011, 0.991]


def test_an_outlier_triggers_a_warning_that_asks_for_more_launches() -> None:
    slow = [*EVEN[:2], 1.3, *EVEN[2:]]
    (warning,) = scaling_of(measurement(_noisy(5, slow))).warnings
    assert warning.startswith(
        "ddp-np2-b8: the launch of round 3 was 30 % slower than the others; the interval is about"
    )
    assert "make at least 8" in warning
    (enough,) = scaling_of(measurement(_noisy(9, slow))).warnings
    assert "at least 8" not in enough
    assert scaling_of(measurement(_noisy(5, EVEN))).warnings == ()


def test_the_outlier_is_attributed_to_the_right_point() -> None:
    runs = [
        msgspec.structs.replace(run, mean_step_s=1.25 * run.mean_step_s) if (run.point.np, run.round) == (1, 2) else run
        for run in _noisy(5, EVEN)
    ]
    (warning,) = scaling_of(measurement(runs)).warnings
    assert warning.startswith("none-np1-b8: the launch of round 2 was 25 % slower")


def test_autocorrelated_rounds_trigger_a_warning() -> None:
    (warning,) = scaling_of(measurement(_noisy(6, [1.0, 1.01, 1.03, 1.04, 1.06, 1.07]))).warnings
    assert warning.startswith("ddp-np2-b8: every launch resembles the one of the round before")
    assert "too narrow" in warning


def drift(kind: Literal["faster", "slower"], share: float = 0.0) -> Unsteady:
    return Unsteady(kind=kind, sentence="whatever is said of it", drift=share)


def paced(count: int, *launches: tuple[str, int, Unsteady]) -> Scaling:
    """`count` rounds; launches of this engine and round on one process keep no even pace."""
    told = {(engine, number): unsteady for engine, number, unsteady in launches}
    runs = [
        msgspec.structs.replace(run, unsteady=unsteady, warnings=(unsteady.sentence,))
        if (unsteady := told.get((run.point.engine, run.round)))
        else run
        for run in rounds(count)
        if run.point.np == 1
    ]
    return scaling_of(measurement(runs))


def test_one_warning_tells_of_all_steps_that_get_faster_and_what_to_do() -> None:
    both = paced(5, ("none", 1, drift("faster")), ("none", 2, drift("faster", 0.03)), ("ddp", 3, drift("faster")))
    assert both.warnings == (
        "in 3 of 10 launches of none-np1-b8, ddp-np1-b8 steps were still getting faster at the end (by up to 3 % "
        "from the first to the last quarter): make more steps, --steps N",
    )
    most = paced(3, ("none", 1, drift("faster", 0.03)), ("none", 2, drift("faster", 0.14)))
    assert most.warnings == (
        "in 2 of 3 launches of none-np1-b8 steps were still getting faster at the end (by up to 14 % from the "
        "first to the last quarter): make more steps, --steps N",
    )


def test_a_drift_in_few_launches_and_two_kinds_of_steps_are_notes_of_their_point() -> None:
    kinds = Unsteady(kind="kinds", sentence="steps come in two kinds: 53 % take 5 ms, 47 % take 8 ms")
    again = msgspec.structs.replace(kinds, sentence="steps come in two kinds: 60 % take 5 ms, 40 % take 8 ms")
    few = paced(5, ("none", 1, drift("faster", 0.03)), ("ddp", 1, kinds), ("ddp", 2, again))
    assert few.warnings == ()
    notes = {point.engine: point.notes for curve in few.curves for point in curve.points if point.np == 1}
    assert notes == {
        "none": ("whatever is said of it (in 1 of 5 launches)",),
        "ddp": (f"{kinds.sentence} (in 2 of 5 launches)",),
    }


def test_of_opposite_drifts_the_one_of_most_launches_is_told() -> None:
    slower = drift("slower", 0.09)
    (line,) = paced(3, ("none", 1, drift("faster")), ("ddp", 1, slower), ("ddp", 2, slower)).warnings
    assert line.startswith("in 2 of 3 launches of ddp-np1-b8 steps get slower (by up to 9 %")
    (line,) = paced(1, ("none", 1, slower), ("ddp", 1, drift("faster", 0.04))).warnings
    assert line.startswith("in 1 of 1 launch of ddp-np1-b8 steps were still getting faster"), "not by alphabet"


def test_a_launch_of_before_its_pace_was_kept_still_warns() -> None:
    runs = [msgspec.structs.replace(run, warnings=(UNSETTLED,)) for run in rounds(1)[:1]]
    assert scaling_of(measurement(runs)).warnings == (f"none-np1-b8: {UNSETTLED}",)
