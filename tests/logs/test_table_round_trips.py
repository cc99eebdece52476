"""Tables written and read again: our own, and any."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from published import LAB11, speedups
from scalescope.logs.tables import read_table
from scalescope.measurement.scaling import scaling_of
from scalescope.records.run import Measurement, Point, Run
from scalescope.records.scaling import SPEEDUPS, Scaling
from scalescope.show import document_of, files
from scalescope.show.document import Column

# What scalescope wrote


def _measured(scaling: str, launches: int) -> Scaling:
    """Two engines and their baseline, with all phases; every launch differs."""
    runs = []
    for number in range(1, launches + 1):
        for engine, np in (("none", 1), ("ddp", 1), ("ddp", 2), ("ddp", 4), ("horovod", 4)):
            batch = 64 // np if scaling == "strong" else 32
            step_s = 0.05 * batch / 32 * (1 + 0.05 * np) * (1 + 0.01 * ((7 * number + np) % 5))
            phases = {"launch": 1.0, "import": 2.0, "init": 0.5 * np, "build": 0.2, "warmup": 10 * step_s}
            phases |= {"steady": 97 * step_s, "evaluation": 0.3, "pause": 0.0, "teardown": 0.2}
            runs.append(
                Run(
                    point=Point(engine=engine, np=np, batch=batch, threads_per_rank=1),
                    round=number,
                    folder="",
                    wall_s=sum(phases.values()),
                    phases=phases,
                    steps=100,
                    warmup_steps=5,
                    step_s=step_s,
                    mean_step_s=97 / 95 * step_s,
                    throughput=batch * np / step_s * 95 / 97,
                    samples_per_step=batch * np,
                    engine_seen=engine,
                    backend="",
                    source="optimizer",
                    ranks=(),
                )
            )
    batch = 64 if scaling == "strong" else 32
    return scaling_of(
        Measurement(
            what="made up", scaling=(scaling,), batch=(batch,), created="", scalescope="", torch="", host="", cores=1,
            launcher={}, binding="", runs=tuple(runs),
        )
    )  # fmt: skip


@pytest.mark.parametrize("launches", [1, 3, 5])
@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_our_own_table_reads_back_to_about_the_same_speedups(table, kind: str, launches: int) -> None:
    before = _measured(kind, launches)
    after = table(files.as_csv(document_of(before).files["scaling"]))
    assert [(curve.engine, curve.batch) for curve in after.curves] == [
        (curve.engine, curve.batch) for curve in before.curves
    ]
    for old, new in zip(before.curves, after.curves, strict=True):
        for one, other in zip(old.points, new.points, strict=True):
            assert (one.engine, one.np, 1) == (other.engine, other.np, other.launches)
            for name in SPEEDUPS:
                assert other.speedup[name].value == pytest.approx(one.speedup[name].value, rel=0.03)
    assert not [finding for finding in after.findings if "not understood" in finding]


def test_a_new_column_of_our_own_table_is_passed_over_and_one_of_its_reader_is_named(table) -> None:
    written = document_of(_measured("strong", 3)).files["scaling"]
    *others, last = written.columns
    made_up = [Column(lambda _: 7, key=f"made_up_{number}") for number in range(60)]
    text = files.as_csv(written._replace(columns=[*others, *made_up, last]))
    assert not [finding for finding in table(text).findings if "not understood" in finding]
    added = "\n".join(f"{line},{'note' if at == 0 else at}" for at, line in enumerate(text.splitlines()))
    assert "columns that are not understood are left out: 'note'" in table(added).findings


@pytest.mark.parametrize("paths", [("lab11.csv",), ("cifar10-1gpu.log", "cifar10-2gpus.log", "cifar10-4gpus.log")])
def test_curves_of_tables_and_logs_read_back_from_scaling_csv(table, paths: tuple[str, ...]) -> None:
    from scalescope.logs.sources import explain

    before = explain([LAB11.parent / path for path in paths])
    (curve,) = table(files.as_csv(document_of(before).files["scaling"])).curves
    for name in before.curves[0].points[1].speedup:
        assert speedups(curve, name) == pytest.approx(speedups(before.curves[0], name), rel=1e-8)


# Any table


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[int], list[float], list[float], list[float]]:
    counts = draw(st.lists(st.integers(1, 512), min_size=2, max_size=6, unique=True))
    positive = st.floats(0.1, 1e3).map(lambda value: float(f"{value:.6g}"))
    column = st.lists(positive, min_size=len(counts), max_size=len(counts))
    return counts, draw(column), draw(column), draw(column)


@given(
    _tables(),
    st.permutations(range(4)),
    st.sampled_from([",", "\t"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_order_of_columns_and_rows_does_not_matter(tmp_path_factory, made, order, separator, total, random) -> None:
    counts, inits, trains, rates = made
    names = ["GPUs", "Init time(s)", "Train time(s)", f"examples_per_s_{'total' if total else 'per_worker'}"]
    rows = [list(row) for row in zip(counts, inits, trains, rates, strict=True)]
    random.shuffle(rows)
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator)
    writer.writerow([names[index] for index in order])
    for row in rows:
        writer.writerow(
            [f"{row[index]:,}" if random.random() < 0.3 and index == 0 else repr(row[index]) for index in order]
        )
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text(text.getvalue())
    (curve,) = read_table(path).curves
    first = counts.index(min(counts))
    for np, init_s, train_s, rate in zip(counts, inits, trains, rates, strict=True):
        all_of_them, base = (rate, rates[first]) if total else (rate * np, rates[first] * counts[first])
        assert speedups(curve, "steady")[np] == pytest.approx(all_of_them / base)
        assert speedups(curve, "train")[np] == pytest.approx(trains[first] / train_s, rel=1e-6)
        wall = (trains[first] + inits[first]) / (train_s + init_s)
        assert speedups(curve, "end_to_end")[np] == pytest.approx(wall, rel=1e-6)


@given(
    st.floats(0.5, 100), st.floats(1e3, 1e6), st.lists(st.sampled_from([1, 2, 4, 8, 16, 32]), min_size=3, unique=True)
)
def test_a_planted_fixed_cost_is_found(tmp_path_factory, fixed_s: float, work: float, counts: list[int]) -> None:
    rows = [f"{np},{fixed_s + work / (np * 100)!r},{100 * np}" for np in counts]
    path = tmp_path_factory.getbasetemp() / "planted.csv"
    path.write_text("np,train_s,examples_per_s_total\n" + "\n".join(rows))
    fit = read_table(path).curves[0].fit
    assert fit is not None
    assert (fit.fixed_s, fit.work) == (pytest.approx(fixed_s, rel=1e-3), pytest.approx(work, rel=1e-3))
