import json
import re
from pathlib import Path

import msgspec
from rendered import shown

from scalescope.measurement.scaling import scaling_of
from scalescope.records.run import PHASES, Measurement, Point, Run
from scalescope.records.scaling import Scaling
from scalescope.show import document_of
from scalescope.show.scaling import sentence


def run(engine: str, np: int, rate: float | None, round_: int = 1, **changes: object) -> Run:
    made = Run(
        point=Point(engine=engine, np=np, batch=8, threads_per_rank=1),
        round=round_,
        folder="launches/x",
        wall_s=4.0,
        phases={"launch": 1.0, "warmup": 0.5, "steady": 2.5},
        steps=10,
        warmup_steps=2,
        step_s=8.0 * np / rate if rate else 0.1,
        mean_step_s=8.0 * np / rate if rate else 0.1,
        throughput=rate,
        samples_per_step=8.0 * np if rate else None,
        engine_seen=engine,
        backend="gloo",
        source="optimizer",
        ranks=(),
    )
    return msgspec.structs.replace(made, **changes)


def measurement(*runs: Run, what: str = "cnn") -> Measurement:
    return Measurement(
        what=what,
        scaling=("weak",),
        batch=(8,),
        created="2026-01-01",
        scalescope="0",
        torch="2",
        host="h",
        cores=2,
        launcher={"ddp": "torchrun"},
        binding="none",
        runs=runs,
    )


def studied(*runs: Run) -> Scaling:
    return scaling_of(measurement(*runs))


def test_the_answer_names_the_fastest_and_compares_it_with_one_process() -> None:
    said = sentence(studied(run("none", 1, 80), run("ddp", 1, 78), run("ddp", 2, 120)))
    assert said == (
        "Fastest is ddp on 2 processes with batch 8 each: 120 samples/s, 1.50 times 1 process (one launch each; "
        "launches differ: repeat with --launches 5)."
    )
    assert "more processes did not help" in sentence(studied(run("none", 1, 80), run("ddp", 2, 60)))
    assert "80 samples/s" in sentence(studied(run("none", 1, 80), run("ddp", 1, 60)))
    assert "not known" in sentence(studied(run("ddp", 2, None)))


def test_an_interval_that_holds_1_is_no_difference() -> None:
    points = [("none", 1, 80), ("ddp", 2, 81)]
    noise = (9, -9, 8, -8, 4)
    runs = [run(engine, np, rate + noise[at] * (np - 1), at + 1) for at in range(5) for engine, np, rate in points]
    said = sentence(studied(*runs))
    assert "not told apart from 1 process" in said
    assert "astest" not in said


def test_the_answer_says_how_sure_it_is() -> None:
    five = [run(engine, np, rate + number, number) for number in range(1, 6) for engine, np, rate in POINTS]
    assert "95 % interval" in sentence(studied(*five))
    assert "over 5 launches" in sentence(studied(*five))
    assert "no interval below 5" in sentence(studied(*five[:6]))


POINTS = (("none", 1, 80.0), ("ddp", 2, 120.0))


def test_phases_are_a_table_that_leaves_markup_alone() -> None:
    everything = dict.fromkeys(PHASES, 12.34)
    warned = run("horovod", 2, 120, phases=everything, warnings=("this [red]warning[/red] says {launch}",))
    text = shown(studied(run("none", 1, 80), warned), 100)
    for phase in PHASES:
        assert {"warmup": "warm-up", "evaluation": "eval"}.get(phase, phase) in text
    assert "[red]warning[/red]" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_document_has_units_in_its_names_and_every_launch() -> None:
    record = measurement(run("none", 1, 80), run("ddp", 2, 120, folder="launches/y"))
    document = json.loads(json.dumps(document_of(scaling_of(record), measurement=record).json()))
    alone, two = document["points"]
    assert two["phases"] == {"launch_s": 1.0, "warmup_s": 0.5, "steady_s": 2.5}
    assert (two["batch"], two["global_batch"], two["folder"]) == (8, 16, "launches/y")
    assert two["speedup"]["steady"] == {"value": 1.5, "low": 1.5, "high": 1.5, "interval": "range", "launches": 1}
    assert alone["efficiency"] == 1
    assert [each["folder"] for each in document["launches"]] == ["launches/x", "launches/y"]
    assert document["fit"] is None or set(document["fit"]) >= {"fixed_s", "fixed_s_error", "work", "work_error"}


def test_formats_names_the_keys_of_the_document() -> None:
    record = measurement(run("none", 1, 80), run("ddp", 2, 120))
    formats = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text()
    block = formats.split("## measure\n\n```\n")[1].split("```")[0].replace('"measurement"', "a text")
    depth, named = 0, set()
    for word in re.findall(r'[{}\[\]]|"\w+"', block):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(word, 0)
        if depth == 1 and word.startswith('"'):
            named.add(word.strip('"'))
    assert named == set(document_of(scaling_of(record), measurement=record).json())


def test_a_point_goes_by_the_engine_that_was_seen_and_none_is_lost() -> None:
    guessed = (run("ddp", 1, 80, engine_seen="none"), run("ddp", 2, 120))
    (curve,) = studied(*guessed).curves
    assert [(point.engine, point.np) for point in curve.points] == [("none", 1), ("ddp", 2)]
    document = document_of(studied(*guessed), measurement=measurement(*guessed)).json()
    assert [point["engine_seen"] for point in document["points"]] == ["none", "ddp"]
    for exchanges, engine in ((False, "none"), (True, ""), (None, "")):
        odd = studied(run("ddp", 1, 80), run("ddp", 2, 120, engine_seen="none", exchanges=exchanges))
        assert {(point.engine, point.np) for curve in odd.curves for point in curve.points} == {("ddp", 1), (engine, 2)}


def test_ranks_that_never_exchange_are_said_first() -> None:
    apart = studied(run("none", 1, 80), run("none", 2, 160, exchanges=False))
    assert sentence(apart).startswith(
        "The ranks never exchanged gradients on 2 processes: each trained a model of its own"
    )
    assert apart.doubt in " ".join(shown(apart).split())
    assert studied(run("none", 1, 80), run("ddp", 2, 160, exchanges=True)).doubt == ""
