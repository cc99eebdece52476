"""What is said of first epochs, testing and short runs, by curves made by hand."""

import pytest

from scalescope.logs.epochs import excess_sentence, first_epoch_excess, testing_sentence
from scalescope.measurement.verdict import which_to_trust
from scalescope.records.scaling import Curve, Estimate, Loss, ScalingPoint

testing_sentence.__test__ = False  # type: ignore[attr-defined]


def exactly(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, count=5)


def epochs(excess: dict[int, float], steady: float = 10.0, warmup: int = 1, launches: int = 2) -> Curve:
    """First epochs that take this much longer than steady ones."""
    points = tuple(
        ScalingPoint(
            engine="",
            np=np,
            launches=launches,
            step_s=exactly(steady),
            warmup_steps=warmup,
            steps=5,
            phases={"warmup": warmup * steady + more},
        )
        for np, more in excess.items()
    )
    return Curve(engine="", scaling="strong", baseline_np=1, work_unit="epochs", points=points)


def test_the_excess_is_what_warmup_takes_beyond_steady_epochs() -> None:
    assert first_epoch_excess(epochs({1: 2.0, 2: 3.0}, warmup=2)) == pytest.approx({1: 2.0, 2: 3.0})


APPEARS = "; the excess appears at {} processes and does not grow: a one-time cost of starting several processes"


@pytest.mark.parametrize(
    ("excess", "said"),
    [
        ({1: 5.0}, "5 s at np 1"),
        ({1: 0.5, 2: 10.0, 4: 20.0}, "500 ms at np 1, 10 s at np 2 and 20 s at np 4"),
        ({1: 0.5, 2: 22.2, 4: 21.9}, "500 ms at np 1, 22.2 s at np 2 and 21.9 s at np 4" + APPEARS.format(2)),
        ({1: 0.0, 2: 0.5, 4: 20.0}, "0 us at np 1, 500 ms at np 2 and 20 s at np 4" + APPEARS.format(4)),
        ({1: 0.5, 2: 2.9, 4: 5.0}, "500 ms at np 1, 2.9 s at np 2 and 5 s at np 4"),
        ({1: 5.0, 2: 6.0, 4: 7.0}, "5 s at np 1, 6 s at np 2 and 7 s at np 4"),
        ({1: 5.0, 2: 8.0, 4: 14.0}, "5 s at np 1, 8 s at np 2 and 14 s at np 4"),
        ({1: 5.0, 2: 9.0, 4: 4.0}, "5 s at np 1, 9 s at np 2 and 4 s at np 4"),
    ],
)
def test_excess_sentence_by_processes(excess: dict[int, float], said: str) -> None:
    assert excess_sentence(epochs(excess)) == f"the first epochs cost more than steady ones: {said}"


def test_excess_sentence_without_warmup() -> None:
    assert excess_sentence(epochs({1: 0.0}, warmup=0)) == "the first epochs take no longer than the others"
    assert excess_sentence(epochs({})) == ""


def test_testing_sentence_has_time_per_epoch() -> None:
    def curve(*seconds: tuple[int, float]) -> Curve:
        points = tuple(ScalingPoint(engine="", np=np, steps=5, phases={"evaluation": 5 * each}) for np, each in seconds)
        return Curve(engine="", scaling="", baseline_np=1, work_unit="epochs", points=points)

    assert testing_sentence(curve((1, 6.0), (2, 4.0))) == (
        "testing, per epoch: 6 s at np 1 and 4 s at np 2; epochs and speedups are those of training alone"
    )
    assert testing_sentence(curve((1, 0.0))) == ""


def trusted(scaling: str = "strong", uneven: float = 0.0, fixed_s: float = 50.0, **speedups: float) -> tuple[str, ...]:
    point = ScalingPoint(
        engine="ddp",
        np=4,
        speedup={name: exactly(value) for name, value in speedups.items()},
        train_s=100.0,
        wall_s=110.0,
        fixed_s=fixed_s,
        waterfall=(Loss(name="uneven", lost=uneven, left=1.0),),
        longer_for_90={"train": exactly(12.0)},
    )
    return which_to_trust([Curve(engine="ddp", scaling=scaling, baseline_np=1, points=(point,))])


def test_long_and_short_runs_trust_different_speedups() -> None:
    first, long_runs, short_runs = trusted(steady=3.5, train=2.0, end_to_end=1.5)
    assert first.startswith("3.50x steady")
    assert first.endswith("on 4 processes: each answers its own question.")
    assert long_runs == (
        "For a long training trust steady, 3.50x: 50 % of the train time is one-time cost and 10 s of 1 min 50 s are "
        "outside the training; train would reach 90 % of it in a run 12 times longer."
    )
    assert short_runs == "For runs as short as this one trust end to end, 1.50x."
    assert trusted(steady=3.5, train=0.5)[2] == "For runs as short as this one trust train, 0.50x."


def test_uneven_steps_and_one_time_cost_are_told_apart() -> None:
    assert trusted(uneven=1.0, steady=3.5, train=2.0)[1].startswith("For a long training trust train, 2.00x, more than")
    assert trusted(steady=2.0, train=3.0)[1].endswith("the higher speedups come from one-time start-up cost.")
    assert "one-time cost and" in trusted(fixed_s=2.1, steady=3.5, train=2.0)[1]
    without = trusted(fixed_s=2.0, steady=3.5, train=2.0)[1]
    assert "of the train time is one-time cost" not in without
    assert "10 s of 1 min 50 s are outside the training" in without
    assert trusted(steady=3.5) == (
        "Only the steady speedup is known, 3.50x on 4 processes: it holds for long runs; "
        "start-up cost is not included.",
    )
    assert trusted(steady=3.5, train=3.5)[0].endswith(": any of them may be quoted.")
