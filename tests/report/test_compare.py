"""Two results side by side: which times are compared, what decides, and the exit code for CI."""

import json
from pathlib import Path

import made_explanation
import made_predictions
import made_scalings
import made_tunings
import msgspec
import pytest
from figure_parts import layers, rows, with_data
from made_results import curves, folder_of

from scalescope.errors import UsageError
from scalescope.records.comparison import Comparison, Pair
from scalescope.records.explanation import Explanation, StepAccount
from scalescope.records.results import Results
from scalescope.records.scaling import Scaling
from scalescope.records.timeline import Breakdown
from scalescope.show import document_of
from scalescope.show.study import compared_section
from scalescope.studies.compare import compare

HERE = Path(__file__).parents[2]


def measured(slower: float = 1.0, **more: object) -> Results:
    return Results(name=f"x{slower:g}", scaling=curves(slower=slower, **more))


def verdicts(comparison: Comparison) -> set[str]:
    return {pair.verdict for pair in comparison.decisive}


def only(comparison: Comparison, part: str) -> Pair:
    (pair,) = [each for each in comparison.pairs if part in each.what]
    return pair


def test_the_whole_interval_decides() -> None:
    same = compare(measured(), measured(), 0.05)
    assert verdicts(same) == {"same"}
    assert document_of(same).answer == "x1 is the same within 5 %: 6 times compared."
    pair = only(same, "step of 4 x ddp, batch 32 each")
    assert pair.ratio
    assert pair.ratio.value == pytest.approx(1.0)
    assert 0.95 < pair.ratio.low < 1.0 < pair.ratio.high < 1.05
    assert verdicts(compare(measured(), measured(1.2))) == {"slower"}
    assert verdicts(compare(measured(1.2), measured())) == {"faster"}
    assert verdicts(compare(measured(), measured(1.05))) == {"undecided"}  # the tolerance lies inside the interval
    assert verdicts(compare(measured(), measured(1.05), 0.2)) == {"same"}
    assert not compare(measured(), measured(1.05)).slower
    assert compare(measured(), measured(1.2)).slower


def test_single_launches_decide_nothing() -> None:
    few = compare(measured(launches=1, interval="range"), measured(2.0, launches=1, interval="range"))
    assert verdicts(few) == {"undecided"}
    assert "fewer than 3 launches each: repeat with --launches 5" in document_of(few).answer
    three = compare(measured(launches=3, interval="range"), measured(2.0, launches=3, interval="range"))
    assert verdicts(three) == {"slower"}


def of(scaling: Scaling) -> Results:
    return Results(name=scaling.what, scaling=scaling)


def test_engines_and_sizes_that_differ_are_compared_by_what_they_have_in_common() -> None:
    only_ddp = made_scalings.measured(engines=("ddp",), counts=(2,), batches=(32,), kinds=("weak",))
    only_horovod = made_scalings.measured(engines=("horovod",), counts=(2,), batches=(32,), kinds=("weak",))

    def without_baseline(scaling: Scaling) -> Scaling:
        own = tuple(
            msgspec.structs.replace(curve, points=tuple(each for each in curve.points if each.np > 1))
            for curve in scaling.curves
        )
        return msgspec.structs.replace(scaling, curves=own)

    engines = compare(of(without_baseline(only_ddp)), of(without_baseline(only_horovod)))
    assert [pair.what for pair in engines.pairs] == ["step of 2 processes, batch 32 each"]
    more = without_baseline(made_scalings.measured(engines=("ddp",), counts=(8,), batches=(32,), kinds=("weak",)))
    (pair,) = compare(of(without_baseline(only_ddp)), of(more)).pairs
    assert pair.what == "a sample: 2 x ddp, batch 32 each against 8 x ddp, batch 32 each"
    assert pair.verdict == "faster"


def slower_part(explanation: Explanation, field: str, more_s: float) -> Explanation:
    """The same trace, in which one part of every step takes longer."""

    def longer(step: StepAccount) -> StepAccount:
        parts = {name: getattr(step.parts, name) for name in ("step_s", field)}
        changed = {name: value + more_s for name, value in parts.items()}
        return msgspec.structs.replace(step, parts=msgspec.structs.replace(step.parts, **changed))

    whole = explanation.accounting
    assert whole
    grown = {"step_s": whole.step_s + more_s, field: getattr(whole, field) + more_s}
    return msgspec.structs.replace(
        explanation,
        steps=tuple(map(longer, explanation.steps)),
        accounting=msgspec.structs.replace(whole, **grown),
    )


def traced(explanation: Explanation, name: str = "t") -> Results:
    return Results(name=name, explanations=(explanation,), traced_batches=(None,))


def test_traces_are_compared_in_one_accounting() -> None:
    before = not_divided(made_explanation.ddp(2, 200))
    after = slower_part(before, "exposed_s", 0.05)
    both = compare(traced(before), traced(after, "after"))
    assert both.pairs[0].what == "step of 2 ranks, ddp over gloo"
    assert both.pairs[0].verdict == "undecided", "one launch each"
    parts = {pair.what: pair for pair in both.pairs if pair.is_part}
    assert parts["exposed communication"].b - parts["exposed communication"].a == pytest.approx(0.05)
    assert parts["compute"].ratio.value == pytest.approx(1.0)  # type: ignore[union-attr]
    assert not both.slower
    assert document_of(both).why[0].startswith("exposed communication differs most: ")
    more = compare(traced(before), traced(made_explanation.ddp(8, 200)))
    assert more.pairs[0].what == "step of 2 ranks, ddp over gloo against 8 ranks, ddp over gloo"


def not_divided(explanation: Explanation) -> Explanation:
    """As a source that does not tell waiting from transfer has it."""

    def without(parts: Breakdown) -> Breakdown:
        return msgspec.structs.replace(parts, waiting_s=None)

    assert explanation.accounting
    steps = tuple(msgspec.structs.replace(each, parts=without(each.parts)) for each in explanation.steps)
    return msgspec.structs.replace(explanation, steps=steps, accounting=without(explanation.accounting))


def test_waiting_and_transfer_are_told_apart_where_both_traces_tell() -> None:
    before = made_explanation.ddp(2, 200)
    parts = {pair.what: pair for pair in compare(traced(before), traced(slower_part(before, "exposed_s", 0.05))).pairs}
    assert "exposed communication" not in parts
    assert parts["exposed transfer"].b - parts["exposed transfer"].a == pytest.approx(0.05)
    assert parts["waiting for other ranks"].a == parts["waiting for other ranks"].b == before.accounting.waiting_s
    half = {pair.what for pair in compare(traced(before), traced(not_divided(before))).pairs}
    assert "exposed communication" in half
    assert "exposed transfer" not in half


def test_bars_of_jobs_of_one_size_are_named_by_their_files() -> None:
    two, eight = made_explanation.ddp(2), made_explanation.ddp(8)

    def bars(*named: tuple[Explanation, str]) -> set[str]:
        section = compared_section([traced(each, name) for each, name in named], None)
        assert section
        (figure,) = section.figures()
        bars = rows(layers(with_data(figure.draw()), "bar")[0])
        return {row["rank"].rpartition(": ")[0] for row in bars}  # the step time stands next to the name

    assert bars((two, "new.json"), (two, "old.json")) == {"new.json, 2 ranks, ddp", "old.json, 2 ranks, ddp"}
    assert bars((two, "traces"), (two, "traces")) == {"traces, 2 ranks, ddp", "traces, 2 ranks, ddp #2"}
    assert bars((two, "a"), (eight, "b")) == {"a, 2 ranks, ddp", "b, 8 ranks, ddp"}
    assert compared_section([traced(two)], None) is None


def test_findings_that_came_or_went_are_told() -> None:
    clean = msgspec.structs.replace(made_explanation.ddp(), findings=())
    assert any(
        note.startswith("new: Rank 1 comes") for note in compare(traced(clean), traced(made_explanation.ddp())).notes
    )
    assert any(note.startswith("gone: ") for note in compare(traced(made_explanation.ddp()), traced(clean)).notes)


def test_few_steps_decide_nothing() -> None:
    short = compare(traced(made_explanation.ddp(2, 6)), traced(made_explanation.ddp(2, 6)))
    assert short.pairs[0].verdict == "undecided"
    assert "fewer than 5 steady steps: trace more" in document_of(short).answer


def test_maps_are_compared_with_each_other_and_with_measurements() -> None:
    prediction = Results(name="map", prediction=made_predictions.predicted())
    worse = Results(name="slow", prediction=made_predictions.predicted(network_s=2.0))
    maps = compare(prediction, worse)
    assert only(maps, "weak scaling, 8 processes, batch 4 each").verdict == "slower"
    mixed = compare(prediction, measured())
    known = {pair.what for pair in mixed.pairs}
    assert known >= {f"weak scaling, {words}" for words in ("1 process, batch 32", "4 processes, batch 32 each")}
    assert [pair.b for pair in mixed.pairs] == [pair.a for pair in compare(measured(), prediction).pairs]


def test_searches_are_compared() -> None:
    one = Results(name="a", tuning=made_tunings.two_hosts())
    both = compare(one, Results(name="b", tuning=made_tunings.keep_default()))
    assert [pair.what for pair in both.pairs] == ["step of the default", "step of the tuned setting"]
    assert [pair.verdict for pair in both.pairs] == ["faster", "faster"]


def test_what_has_nothing_in_common_is_refused() -> None:
    with pytest.raises(UsageError, match="have no time in common"):
        compare(measured(), traced(made_explanation.ddp()))
    with pytest.raises(UsageError, match="have no time in common"):
        compare(traced(made_explanation.without_steps()), traced(made_explanation.ddp()))


def test_a_part_that_was_zero_has_no_ratio() -> None:
    before = made_explanation.ddp(2, 60)
    whole = before.accounting
    assert whole
    nothing = msgspec.structs.replace(before, accounting=msgspec.structs.replace(whole, input_s=0.0), steps=())
    pair = only(compare(traced(nothing), traced(before)), "input")
    assert pair.ratio is None
    assert document_of(compare(traced(nothing), traced(before))).json()["pairs"][0]["ratio"]["value"] > 0


def test_the_verb_ends_with_3_when_slower_and_0_otherwise(scalescope, tmp_path: Path) -> None:
    a = str(folder_of(tmp_path / "a", "measure", scaling=curves()))
    b = str(folder_of(tmp_path / "b", "measure", scaling=curves(slower=1.3)))
    done = scalescope.in_this_process("compare", a, b, code=3)
    assert done.stdout.startswith("b is slower: step of")
    assert "beyond 5 % (6 slower)." in done.stdout
    assert len(done.stdout.splitlines()) <= 20
    assert "Next: scalescope report" in done.stdout
    scalescope.in_this_process("compare", b, a)
    scalescope.in_this_process("compare", a, b, "--tolerance", "50%")
    told = json.loads(scalescope.in_this_process("compare", a, b, "--json", code=3).stdout)
    assert told["slower"]
    assert {"what", "a", "b", "ratio", "verdict"} <= told["pairs"][0].keys()
    assert told["pairs"][0]["ratio"].keys() == {"value", "low", "high"}
    scalescope.in_this_process("compare", a, str(tmp_path / "nowhere"), code=2)
    scalescope.in_this_process("compare", a, b, "--tolerance", "much", code=2)


def test_timelines_of_two_backends_are_compared(scalescope) -> None:
    traces = HERE / "tests" / "data" / "traces" / "horovod"
    mpi, gloo = str(traces / "mpi_cnn.json.gz"), str(traces / "gloo_nocache.json.gz")
    done = scalescope.in_this_process("compare", mpi, gloo)
    assert "horovod over mpi against 2 ranks, horovod over gloo" in done.stdout
    assert "- waiting for other ranks" in done.stdout
    assert "- exposed transfer" in done.stdout


def test_timelines_of_several_jobs_are_for_compare(scalescope) -> None:
    traces = HERE / "tests" / "data" / "traces" / "horovod"
    mpi, gloo = str(traces / "mpi_cnn.json.gz"), str(traces / "gloo_nocache.json.gz")
    done = scalescope.in_this_process("explain", mpi, gloo, code=2)
    assert "of another job: explain one at a time, or see what changed with scalescope compare" in done.stderr
