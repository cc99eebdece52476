import io
import json
import re

from rich.console import Console

from scalescope.records.run import PHASES, Measurement, Point, Run
from scalescope.reporting.charts import phases_chart, throughput_chart
from scalescope.reporting.measurement import as_document, sentence, show


def run(engine: str, np: int, rate: float | None, warnings: tuple[str, ...] = (), more_phases=()) -> Run:
    return Run(
        point=Point(engine=engine, scaling="weak", np=np, batch=8, threads_per_rank=1),
        folder="launches/x",
        wall_s=4.0,
        phases={"launch": 1.0, "steady": 3.0} | dict.fromkeys(more_phases, 12.34),
        steps=10,
        warmup_steps=2,
        step_s=0.1,
        throughput=rate,
        samples_per_step=8.0 * np,
        engine_seen=engine,
        backend="gloo",
        source="optimizer",
        ranks=(),
        warnings=warnings,
    )


def measurement(*runs: Run, what: str = "cnn") -> Measurement:
    return Measurement(
        what=what,
        created="2026-01-01",
        scalescope="0",
        torch="2",
        host="h",
        cores=2,
        launcher={"ddp": "torchrun"},
        binding="none",
        runs=runs,
    )


def shown(record: Measurement) -> str:
    text = io.StringIO()
    show(record, Console(file=text, width=80))
    return text.getvalue()


def test_the_answer_names_the_fastest_and_compares_it_with_one_process() -> None:
    record = measurement(run("none", 1, 80), run("ddp", 1, 78), run("ddp", 2, 120))
    assert sentence(record).startswith(
        "Fastest is ddp on 2 processes with batch 8 each: 120 samples/s, 1.50x 1 process"
    )
    assert "more processes did not help" in sentence(measurement(run("none", 1, 80), run("ddp", 2, 60)))
    assert sentence(measurement(run("none", 1, 80), run("ddp", 1, 60))).endswith("80 samples/s.")
    assert "not known" in sentence(measurement(run("ddp", 2, None)))


def test_tables_fit_a_terminal_and_leave_markup_alone() -> None:
    text = shown(measurement(run("horovod", 2, 120, ("this [red]warning[/red] says {launch}",), PHASES)))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for phase in PHASES:
        assert {"warmup": "warm-up", "evaluation": "eval"}.get(phase, phase) in text
    assert "[red]warning[/red]" in text
    assert re.search(r"horovod\s+2\s+8\s+16\s+100 ms\s+120\s+10\s+2", text)


def test_the_document_has_units_in_its_names() -> None:
    (point,) = json.loads(json.dumps(as_document(measurement(run("ddp", 2, 120)))))["points"]
    assert point["phases"] == {"launch_s": 1.0, "steady_s": 3.0}
    assert (point["batch"], point["global_batch"], point["step_s"]) == (8, 16, 0.1)


def test_charts_hold_every_point_and_the_ideal() -> None:
    record = measurement(run("none", 1, 80), run("ddp", 2, 120), what="x" * 200)
    bars = phases_chart(record)
    assert sum(row["seconds"] for row in bars.data.values) == 8.0
    assert len(bars.title) < 100
    ideal, _ = throughput_chart(record).layer
    assert [row["rate"] for row in ideal.data.values] == [80, 160]
    assert throughput_chart(measurement(run("ddp", 2, None))) is None
