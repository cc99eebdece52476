import io
import json
from typing import Any

import msgspec
import pytest
from made_scalings import GPUS, after, lab11, measured, nearly_nothing, once, ranges
from rendered import shown

from scalescope.records.scaling import BreakEven, Curve, Scaling, ScalingPoint
from scalescope.show import document_of, terminal
from scalescope.show.document import Document, Section


def json_of(record: Scaling) -> dict[str, Any]:
    return document_of(record).json()


def test_the_table_holds_the_records_numbers() -> None:
    text = shown(lab11())
    lines = [line.split() for line in text.splitlines()]
    assert "np batch samples/s init s train s total s steady train end to end  eff%" in text
    assert ["2", "64", "382", "142", "93", "235", "1.89", "1.75", "0.98", "94.6"] in lines
    assert ["32", "64", "6,080", "111", "14", "125", "30.10", "11.64", "1.85", "94.1"] in lines


@pytest.mark.parametrize(
    "record",
    [
        lab11(),
        ranges(),
        measured(),
        measured(counts=(1, 8, 64), launches=3, interval="range", batches=(16,), ranks_per_node=4),
    ],
    ids=["lab", "ranges", "measured", "nodes"],
)
@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_a_terminal(record: Scaling, width: int) -> None:
    text = shown(record, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    if width == 100:
        rows = [line for line in text.splitlines() if line.strip()[:1].isdigit() and "(" in line]
        assert all(line.count("(") == line.count(")") for line in rows)  # no cell is folded


def test_the_fit_and_the_waterfall_are_a_line_each() -> None:
    lines = [line.removeprefix("- ").rstrip() for line in shown(lab11()).splitlines()]
    assert (
        "fixed cost 8.83 ± 0.98 s per run and 31,280 ± 416 samples of work (standard errors); "
        "the fixed part is 5 % of the train time on 1 and 63 % of the train time on 32" in lines
    )
    assert (
        "ideal 32.00x; minus 1.90 lost efficiency: 30.10x steady; minus 18.46 fixed cost: 11.64x train; "
        "minus 9.79 init: 1.85x end to end" in lines
    )
    assert "one launch each, no interval: launches differ" in lines
    assert any(line.startswith("break-even with 1 process, end to end: after 33,000 samples on 2") for line in lines)


def test_intervals_ranges_and_gains_are_told_apart() -> None:
    sure = shown(measured(batches=(32,), engines=("ddp",), kinds=("weak",)))
    assert "3.70±0.16" in sure
    assert "± or [ ]: 95 % t-intervals over launches, each by itself" in sure
    assert "minus 0.32 imports and set-up and plus 0.04 launch and end: 3.27x end to end" in sure
    assert "3.27x end to end of a launch of 200 steps" in sure
    assert "break-even with 1 process without an engine, train: never on 2 and 4" in sure
    few = shown(ranges())
    assert "2.87 (2.76-3.01)" in few
    assert "in parentheses: range of fewer than 5 launches, no interval" in few
    assert "never on 2, 3 and 4" in few


def test_break_even_is_a_whole_number_of_epochs() -> None:
    points = tuple(
        ScalingPoint(
            engine="horovod", np=np, speedup={"train": once(0.7)}, break_even={} if np == 1 else {"train": after(work)}
        )
        for np, work in ((1, 0.0), (2, 26.75), (4, 17.24), (8, 0.0))
    )
    curve = Curve(
        engine="horovod", scaling="", baseline_np=1, baseline_engine="horovod", work_unit="epochs", points=points
    )
    text = shown(Scaling(what="x", source="logs", curves=(curve,)))
    assert "break-even with 1 process, train: after 27 epochs on 2; after 18 epochs on 4\n" in text


def test_break_even_and_one_time_cost_are_told_with_their_intervals() -> None:
    text = " ".join(shown(measured()).split())
    assert "end to end: after 5,200 samples (4,100 to 7,900) on 2 and 4" in text
    assert "one-time cost: 3.00 s on 1 alone, 3.00 s (2.85 to 3.18) on 1, 3.50 s (3.32 to 3.71) on 2" in text
    assert "fixed cost" not in text
    open_ended = BreakEven(value=900.0, low=300.0, high=None, interval="t", count=5)
    never = BreakEven(value=None, low=2000.0, high=None, interval="t", count=5)
    points = tuple(
        ScalingPoint(engine="ddp", np=np, speedup={"train": once(1.0)}, break_even={"train": found} if found else {})
        for np, found in ((1, None), (2, open_ended), (4, never))
    )
    curve = Curve(engine="ddp", scaling="weak", baseline_np=1, baseline_engine="ddp", points=points)
    text = " ".join(shown(Scaling(what="x", source="measurement", curves=(curve,))).split())
    assert "after 900 samples (300 to never) on 2; never on 4" in text


def test_what_was_found_comes_last_and_markup_is_left_alone() -> None:
    text = shown(ranges(), colours=True)
    trust, found, beware = (
        text.split("Which to trust")[1].split("What stands out")[0],
        *text.split("What stands out")[1].split("Warnings"),
    )
    assert "- Trust the steady speedup." in trust
    assert "- The engine alone costs 3 %" in found
    assert "\x1b[33mddp-np4-b32: other programs took [red]0.8[/red] cores" in beware


def test_users_texts_are_no_markup() -> None:
    point = ScalingPoint(engine="[bold]", np=2, notes=("[red]slow[/red]",))
    curve = Curve(engine="[bold]", scaling="weak", baseline_np=None, points=(point,))
    text = shown(Scaling(what="[x]", source="table", curves=(curve,), trust=("[link=x]y",)))
    assert "weak scaling, [bold]: no speeds are known" in text
    assert "on 2: [red]slow[/red]" in text
    assert "[link=x]y" in text


def test_next_to_nothing_is_shown_without_complaint() -> None:
    assert shown(nearly_nothing()).split()[4:12] == ["scaling", "np", "train", "s", "──────────", "2", "12", "4"]
    document = json_of(nearly_nothing())
    assert document["fit"] is None
    assert document["points"][0] == {
        **dict.fromkeys(["nodes", "batch", "global_batch", "threads_per_rank", "step_s", "step_s_low", "step_s_high"]),
        **dict.fromkeys(["interval", "throughput", "efficiency", "mean_efficiency", "median_efficiency", "wall_s"]),
        **dict.fromkeys(["steps", "warmup_steps", "fixed_s", "one_time_s"]),
        **{f"{name}{end}": {} for name in ("longer_for_90", "break_even") for end in ("", "_low", "_high")},
        "engine": "",
        "scaling": "",
        "np": 2,
        "launches": 1,
        "speedup": {},
        "train_s": 12.0,
        "phases": {},
        "waterfall": [],
        "notes": [],
    }


def test_the_document_has_units_in_its_names_and_intervals_beside_numbers() -> None:
    document = json.loads(json.dumps(json_of(measured())))
    (point,) = [
        each
        for each in document["points"]
        if (each["engine"], each["scaling"], each["np"], each["batch"]) == ("ddp", "weak", 4, 32)
    ]
    assert (point["global_batch"], point["threads_per_rank"], point["launches"]) == (128, 1, 5)
    assert point["step_s_low"] < point["step_s"] < point["step_s_high"]
    assert point["interval"] == "t"
    assert point["throughput"] == pytest.approx(4000)
    assert point["efficiency"] == pytest.approx(0.925)
    assert point["speedup"]["steady"] == {
        "value": pytest.approx(3.7),
        "low": pytest.approx(3.552),
        "high": pytest.approx(3.8776),
        "interval": "t",
        "launches": 5,
    }
    assert list(point["speedup"]) == ["steady", "train", "end_to_end"]
    assert point["phases"]["launch_s"] == 0.4
    assert [loss["name"] for loss in point["waterfall"]] == ["efficiency", "warmup", "uneven", "init", "launch"]
    assert point["waterfall"][-1]["left"] == pytest.approx(point["speedup"]["end_to_end"]["value"])
    assert point["longer_for_90"]["end_to_end"] == 3.7
    assert point["break_even"] == {"train": None, "end_to_end": 5200}
    assert point["break_even_low"] == {"train": None, "end_to_end": 4100}
    assert point["one_time_s"]["low"] < point["one_time_s"]["value"] < point["one_time_s"]["high"]
    keys = [(each["engine"], each["scaling"], each["np"], each["batch"]) for each in document["points"]]
    assert len(keys) == len(set(keys)) == 42  # the baseline that engines share is there once
    assert document["curves"][0] == {
        "engine": "ddp",
        "scaling": "strong",
        "batch": 16,
        "baseline_np": 1,
        "baseline_engine": "none",
        "work_unit": "samples",
        "fit": document["fit"],
    }
    assert document["warnings"] == ["ddp-np4-b32: other programs took [red]0.8[/red] cores"]


def test_the_document_compares_engines_within_rounds() -> None:
    def curve(engine: str, rates: tuple[float, ...]) -> Curve:
        point = ScalingPoint(engine=engine, np=2, batch=8, throughput=once(rates[0]), rates=dict(enumerate(rates)))
        return Curve(engine=engine, scaling="weak", batch=8, baseline_np=1, baseline_engine="none", points=(point,))

    record = Scaling(
        what="x", source="measurement", curves=(curve("ddp", (100.0, 50.0)), curve("horovod", (80.0, 40.0)))
    )
    (found,) = json_of(record)["engines"]
    assert found == {
        "scaling": "weak",
        "np": 2,
        "batch": 8,
        "engine": "ddp",
        "than": "horovod",
        "ratio": {"value": 1.25, "low": 1.25, "high": 1.25, "interval": "range", "launches": 2},
    }


def test_the_document_keeps_the_fit() -> None:
    document = json_of(lab11())
    assert [point["np"] for point in document["points"]] == list(GPUS)
    fit = document["fit"]
    assert (fit["fixed_s"], fit["fixed_s_error"], fit["work"], fit["work_error"]) == (8.83, 0.98, 31_280, 416)
    assert fit["fixed_share"]["32"] == 0.631
    assert fit["longer"]["32"]["100"] == 29.6
    assert msgspec.json.decode(msgspec.json.encode(document)) == document


@pytest.mark.parametrize(
    ("warnings", "facts", "line"),
    [
        (3, ("seen",), ""),
        (5, ("seen",), "2 more warnings: add --details"),
        (3, ("seen", "more"), "All details: add --details"),
        (4, ("seen", "more"), "1 more warning and all details: add --details"),
    ],
)
def test_what_is_left_out_is_counted_and_named(warnings: int, facts: tuple[str, ...], line: str) -> None:
    document = Document(
        "It is so.",
        why=["seen"],
        warnings=[f"warning {at}" for at in range(warnings)],
        sections=[Section("x", "Facts", facts=facts)],
    )
    text = io.StringIO()
    terminal.show(document, terminal.open_console(file=text, width=100))
    assert [each for each in text.getvalue().splitlines() if "--details" in each] == [line][: bool(line)]
