"""Tables that people have: what follows from their columns, and what does not."""

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from command_line import CommandLine
from published import LAB11, speedups
from scalescope.errors import UsageError
from scalescope.logs.tables import read_table
from scalescope.records.scaling import Curve, Scaling
from scalescope.show import document_of


def said(scaling: Scaling) -> str:
    return "\n".join((*scaling.findings, *scaling.warnings))


# What a published table says


def test_the_three_speedups_of_lab_11() -> None:
    (curve,) = read_table(LAB11).curves
    assert speedups(curve, "steady")[32] == pytest.approx(30.10, abs=0.005)
    assert speedups(curve, "train")[32] == pytest.approx(11.64, abs=0.005)
    assert speedups(curve, "end_to_end")[32] == pytest.approx(1.85, abs=0.005)
    assert speedups(curve, "end_to_end")[2] == pytest.approx(0.98, abs=0.005)


def test_the_fixed_cost_of_lab_11() -> None:
    fit = read_table(LAB11).curves[0].fit
    assert fit is not None
    assert (fit.fixed_s, fit.fixed_s_error) == (pytest.approx(8.83, abs=0.005), pytest.approx(0.98, abs=0.005))
    assert (fit.work, fit.work_error) == (pytest.approx(31_280, abs=1), pytest.approx(416, abs=1))
    assert fit.fixed_share["32"] == pytest.approx(0.63, abs=0.005)
    assert fit.fixed_share["1"] == pytest.approx(0.05, abs=0.005)
    longer = fit.longer["32"]
    assert [round(longer[times], 1) for times in ("3", "10", "31", "100")] == [19.5, 25.8, 28.6, 29.6]


def told_seconds(curve: Curve) -> dict[str, list[float | None]]:
    """Cells of the curve's table by the heading of their column."""
    (table,) = document_of(Scaling(what="", source="table", curves=(curve,))).sections[0].tables
    wanted = {"init": "init (s)", "train": "train (s)", "total": "total (s)"}
    columns = {column.heading: column for column in table.columns}
    return {name: [columns[heading].get(row) for row in table.rows] for name, heading in wanted.items()}


def test_the_seconds_of_lab_11_stay_as_the_table_has_them() -> None:
    (curve,) = read_table(LAB11).curves
    assert told_seconds(curve) == {
        "init": [68, 142, 75, 110, 110, 111],
        "train": [163, 93, 47, 30, 19, 14],
        "total": [231, 235, 122, 140, 129, 125],
    }
    assert curve.points[-1].phases == {"init": 111, "train": 14}


def test_rest_of_a_total_is_the_launch_phase(table) -> None:
    (curve,) = table("np,init_s,train_s,total_s\n1,10,100,120\n2,10,50,60").curves
    assert [point.phases for point in curve.points] == [
        {"init": 10, "train": 100, "launch": 10},
        {"init": 10, "train": 50},
    ]
    assert told_seconds(curve)["init"] == [10, 10]


def test_missing_times_stay_missing(table) -> None:
    (curve,) = table("np,train_s\n1,100\n2,50").curves
    assert told_seconds(curve) == {"init": [None, None], "train": [100, 50], "total": [None, None]}
    assert curve.points[0].phases == {}


def test_assumptions_and_a_slip_of_lab_11_are_findings() -> None:
    scaling = read_table(LAB11)
    assert [each for each in scaling.findings if "the table says" in each] == [
        "the table says 1.72 at 2 where 163/93 is 1.75"
    ]
    assert (
        "the rate is 202 at np 1 and 190 at np 32: read as per worker; "
        "name the column examples_per_s_total if it is not" in scaling.findings
    )
    assert "not understood" not in said(scaling)


# What follows, and what does not


def test_a_growing_rate_is_a_total(table) -> None:
    scaling = table("gpus,images/s\n1,200\n8,1400\n")
    assert speedups(scaling.curves[0], "steady") == {1: 1, 8: 7}
    assert "the rate is 200 at np 1 and 1,400 at np 8: read as the total of all" in said(scaling)
    assert "examples_per_s_per_worker" in said(scaling)


def test_the_curve_of_the_widest_range_of_sizes_says_whose_a_rate_is(table) -> None:
    scaling = table("scaling,gpus,images/s\nstrong,4,900\nstrong,8,1000\nweak,1,200\nweak,4,800\n")
    assert "the rate is 200 at np 1 and 800 at np 4: read as the total of all" in said(scaling)


@pytest.mark.parametrize(("name", "at_8"), [("images_per_s_per_gpu", 1360), ("examples_per_s_total", 170)])
def test_a_rate_named_per_worker_or_total_is_taken_as_such(table, name: str, at_8: float) -> None:
    scaling = table(f"gpus,{name}\n1,200\n8,170\n")
    assert speedups(scaling.curves[0], "steady")[8] == pytest.approx(at_8 / 200)
    assert "read as" not in said(scaling)


def test_only_rates_give_only_the_steady_speedup(table) -> None:
    scaling = table("np,examples_per_s_total\n1,100\n2,190\n")
    (curve,) = scaling.curves
    assert [set(point.speedup) for point in curve.points] == [{"steady"}, {"steady"}]
    assert curve.fit is None
    assert all(point.train_s is None and not point.break_even and not point.longer_for_90 for point in curve.points)


def test_only_train_times_give_only_the_train_speedup(table) -> None:
    (curve,) = table("np,train_s\n1,100\n2,60\n").curves
    assert [set(point.speedup) for point in curve.points] == [{"train"}, {"train"}]
    assert all(point.fixed_s is None and point.throughput is None and not point.waterfall for point in curve.points)


@pytest.mark.parametrize("rates", [False, True])
def test_only_totals_give_no_train_speedup(table, rates: bool) -> None:
    text = "np,total_s,examples_per_s_total\n1,100,10\n2,60,19\n" if rates else "np,wall time (s)\n1,100\n2,60\n"
    (curve,) = table(text).curves
    assert speedups(curve, "end_to_end")[2] == pytest.approx(100 / 60)
    assert ("steady" in curve.points[1].speedup) == rates
    assert all("train" not in point.speedup and point.train_s is None for point in curve.points)
    assert curve.fit is None


def test_a_time_that_does_not_say_which_it_is_is_refused(table) -> None:
    with pytest.raises(UsageError, match=r"one of times or rates: .* train_s, total_s"):
        table("np,time\n1,100\n2,60\n")
    told = table("np,time,total_s\n1,90,100\n2,50,60\n")
    assert speedups(told.curves[0], "end_to_end")[2] == pytest.approx(100 / 60)
    assert "columns that are not understood are left out: 'time'" in said(told)


@pytest.mark.parametrize("columns", ["train_s,total_s", "init_s,total_s", "init_s,train_s", "init_s,train_s,total_s"])
def test_the_third_time_follows_from_two(table, columns: str) -> None:
    values = {"init_s": (20, 30), "train_s": (80, 45), "total_s": (100, 75)}
    names = columns.split(",")
    rows = [",".join([str(np), *(str(values[name][index]) for name in names)]) for index, np in enumerate((1, 2))]
    (curve,) = table(f"np,{columns}\n" + "\n".join(rows)).curves
    assert speedups(curve, "train")[2] == pytest.approx(80 / 45)
    assert speedups(curve, "end_to_end")[2] == pytest.approx(100 / 75)
    assert [(point.train_s, point.wall_s) for point in curve.points] == [(80, 100), (45, 75)]


def test_without_one_process_speedups_are_relative_to_the_smallest(table) -> None:
    scaling = table("np,train_s,speedup (train)\n8,30,7.2\n4,52,4\n")
    assert speedups(scaling.curves[0], "train") == {4: 1, 8: pytest.approx(52 / 30)}
    assert "1 process was not measured: speedups are relative to 4" in scaling.findings


def test_one_row_is_nothing_to_compare_with(table) -> None:
    scaling = table("np,train_s\n4,52\n")
    assert scaling.curves[0].baseline_np is None
    assert "nothing to compare with" in said(scaling)


def test_a_total_below_its_parts_is_their_sum(table) -> None:
    scaling = table("np,init_s,train_s,total_s\n1,20,80,90\n2,20,45,65\n")
    assert scaling.curves[0].points[0].wall_s == 100


def test_repeated_rows_are_repeated_launches(table) -> None:
    text = "np,train_s\n" + "".join(f"1,{100 + each}\n2,{50 + each}\n" for each in range(5))
    point = table(text).curves[0].points[1]
    assert point.launches == 5
    assert point.speedup["train"].interval == "t"
    exact = math.prod((100 + each) / (50 + each) for each in range(5)) ** 0.2
    assert point.speedup["train"].value == pytest.approx(exact)


def test_of_repetitions_without_a_partner_all_count(table) -> None:
    ratio = table("np,train_s\n1,100\n2,50\n2,40\n2,25\n").curves[0].points[1].speedup["train"]
    assert (ratio.low, ratio.value, ratio.high) == (2, 2.5, 4)


def test_rows_of_different_models_are_warned_of(table) -> None:
    scaling = table("model,np,train_s\nresnet,1,100\nvgg,1,300\nresnet,2,50\nvgg,2,160\n")
    said = "columns that are not understood are left out: 'model'; rows of one size are read as repeated launches"
    assert any(warning.startswith(said) for warning in scaling.warnings)


# Which rows belong together


def test_engines_share_one_process_without_an_engine(table) -> None:
    scaling = table("engine,np,examples_per_s_total\nnone,1,100\nddp,1,95\nddp,2,180\nhorovod,2,170\n")
    assert [(curve.engine, curve.baseline_engine) for curve in scaling.curves] == [("ddp", "none"), ("horovod", "none")]
    assert speedups(scaling.curves[0], "steady") == pytest.approx({1: 0.95, 2: 1.8})
    assert speedups(scaling.curves[1], "steady") == pytest.approx({2: 1.7})


def test_several_processes_without_an_engine_are_a_curve_of_their_own(table) -> None:
    curves = table("engine,np,train_s\nnone,1,100\nnone,4,30\nddp,4,28\n").curves
    assert {curve.engine: [point.np for point in curve.points] for curve in curves} == {"ddp": [1, 4], "none": [1, 4]}


def test_a_cell_that_is_missing_names_no_engine_and_no_scaling(table) -> None:
    curves = table("engine,scaling,np,train_s\n-,n/a,1,100\nnan,-,2,55\n").curves
    assert [(curve.engine, curve.scaling, len(curve.points)) for curve in curves] == [("", "", 2)]


@pytest.mark.parametrize("batch", ["batch per gpu,64,32", "global_batch,64,64"])
def test_strong_scaling_shares_the_global_batch(table, batch: str) -> None:
    name, at_1, at_2 = batch.split(",")
    scaling = table(f"scaling,np,{name},examples_per_s_total\nstrong,1,{at_1},100\nstrong,2,{at_2},180\n")
    (curve,) = scaling.curves
    assert curve.batch == 64
    assert [point.batch for point in curve.points] == [64, 32]


def test_a_batch_that_does_not_say_whose_it_is_only_tells_rows_apart(table) -> None:
    scaling = table("scaling,np,batch,step time (ms)\nstrong,1,64,100\nstrong,2,64,60\nstrong,1,128,180\n")
    assert [(curve.batch, curve.work_unit, len(curve.points)) for curve in scaling.curves] == [
        (64, "steps", 2),
        (128, "steps", 1),
    ]
    assert all(point.batch is None for curve in scaling.curves for point in curve.points)


def test_batches_make_curves(table) -> None:
    rows = [f"weak,{np},{batch},{np * batch}" for batch in (16, 32) for np in (1, 2, 4)]
    scaling = table("scaling,np,batch,examples_per_s_total\n" + "\n".join(rows))
    assert [(curve.scaling, curve.batch, len(curve.points)) for curve in scaling.curves] == [
        ("weak", 16, 3),
        ("weak", 32, 3),
    ]


def test_weak_scaling_does_more_work_on_more(table) -> None:
    scaling = table("scaling,np,train_s\nweak,1,100\nweak,4,110\n")
    assert speedups(scaling.curves[0], "train")[4] == pytest.approx(4 * 100 / 110)
    assert set(scaling.curves[0].points[1].speedup) == {"train"}
    level = table("scaling,np,train_s,examples_per_s_total\nweak,1,100,10\nweak,4,110,38\n")
    assert speedups(level.curves[0], "train")[4] == pytest.approx(4 * 100 / 110)
    assert speedups(level.curves[0], "steady")[4] == pytest.approx(3.8)
    assert level.curves[0].fit is None
    assert "no fixed cost can be told apart" in said(level)


def test_step_times_are_rates_of_steps(table) -> None:
    scaling = table("gpus,step time (ms)\n1,100\n4,28\n")
    assert speedups(scaling.curves[0], "steady")[4] == pytest.approx(100 / 28)
    assert scaling.curves[0].work_unit == "steps"
    assert "a step is taken as the same work at every number of processes" in said(scaling)


def test_in_weak_scaling_every_process_makes_its_own_steps(table) -> None:
    (curve,) = table("scaling,np,step time (ms)\nweak,1,100\nweak,4,110\n").curves
    assert speedups(curve, "steady")[4] == pytest.approx(4 * 100 / 110)


def test_step_times_and_batches_are_rates_of_samples(table) -> None:
    (curve,) = table("gpus,batch per gpu,step time (ms)\n1,64,100\n4,64,128\n").curves
    assert curve.work_unit == "samples"
    assert [point.throughput.value for point in curve.points if point.throughput] == pytest.approx([640, 2000])


def test_a_batch_of_each_process_that_changes_makes_curves_of_their_own(table) -> None:
    """Without a scaling nothing says that rows of other batches did the same work."""
    scaling = table("np,batch per gpu,examples_per_s_total\n1,64,100\n2,32,180\n")
    assert [(curve.batch, curve.baseline_np) for curve in scaling.curves] == [(64, None), (32, None)]
    assert "nothing to compare with" in said(scaling)


def test_steps_times_batch_tell_the_work_and_with_it_the_one_time_cost_of_every_row(table) -> None:
    """One-time costs of 2, 6 and 6 s: no single one would describe them."""
    lines = ["np,steps,global_batch,train_s,examples_per_s_total"]
    lines += [f"{np},100,10,{100 / np + cost},{10 * np}" for np, cost in ((1, 2), (2, 6), (4, 6))]
    scaling = table("\n".join(lines))
    (curve,) = scaling.curves
    assert curve.fit is None
    assert [point.fixed_s for point in curve.points] == pytest.approx([2, 6, 6])
    assert "taken to do the same work" not in said(scaling)


def test_a_fit_that_does_not_describe_the_table_is_warned_of(table) -> None:
    lines = ["np,train_s,examples_per_s_total"]
    lines += [f"{np},{100 / np + cost},{10 * np}" for np, cost in ((1, 1), (2, 1), (4, 20), (8, 1))]
    assert any("does not describe this table" in warning for warning in table("\n".join(lines)).warnings)
    assert not read_table(LAB11).warnings


def test_our_own_table_is_not_fitted(table) -> None:
    """It tells the one-time cost of every row."""
    lines = ["np,steps,global_batch,train_s,examples_per_s_total,step_s,fixed_s"]
    lines += [f"{np},100,10,{100 / np + cost},{10 * np},{1 / np},{cost}" for np, cost in ((1, 2), (2, 6), (4, 6))]
    (curve,) = table("\n".join(lines)).curves
    assert curve.fit is None
    assert [point.one_time_s.value for point in curve.points if point.one_time_s] == pytest.approx([2, 6, 6])


COLUMNS = "np,engine,init_s,train_s,examples_per_s_total"
LARGE: dict[str, Callable[[int], str]] = {
    "sizes.csv": lambda at: f"{at + 1},ddp,5,{100 / (at + 1) + 1:.6f},{100 * (at + 1) ** 0.9:.4f}\n",
    "engines.csv": lambda at: f"{1 + at % 2},e{at // 2},5,{100 + at % 7},{100 + at % 5}\n" if at else "1,none,5,9,9\n",
    "headings.log": lambda at: f"* {at + 1} GPU\n" + "".join(f"Epoch {epoch} took 3 s\n" for epoch in range(4)),
}


@pytest.mark.parametrize("name", LARGE)
def test_reading_takes_time_linear_in_the_number_of_sizes(scalescope: CommandLine, name: str) -> None:
    lines = []
    for count in (100, 400):
        heading = f"{COLUMNS}\n" if name.endswith(".csv") else ""
        (scalescope.folder / name).write_text(heading + "".join(map(LARGE[name], range(count))))
        executed = 0

        def on_line(_frame: FrameType, event: str, _told: Any) -> Any:
            nonlocal executed
            executed += event == "line"  # every turn of a loop, too
            return on_line

        before = sys.gettrace()
        sys.settrace(lambda frame, *_: on_line if "scalescope" in frame.f_code.co_filename else None)
        try:
            scalescope.in_this_process("explain", name, "--json")
        finally:
            sys.settrace(before)
        lines.append(executed)
    assert lines[1] < 4.2 * lines[0]


def test_a_total_below_its_parts_is_a_finding(table) -> None:
    scaling = table("np,init_s,train_s,total_s\n1,20,80,90\n2,20,40,60\n")
    assert "the table says 90 s in all at 1 where 20 + 80 is 100" in scaling.findings
    assert "in all at 2" not in said(scaling)
