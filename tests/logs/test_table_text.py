"""Tables as people write them: headings, numbers, separators, and what cannot be read."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from published import speedups
from scalescope.errors import UsageError
from scalescope.logs.columns import meaning_of
from scalescope.logs.sources import recognise
from scalescope.logs.tables import read_table

# What columns mean


@pytest.mark.parametrize(
    ("heading", "name", "scale"),
    [
        *(
            (heading, "np", 1)
            for heading in ("GPUs", "np", "# of GPUs", "n_gpus", "MPI ranks", "workers", "gpu", "procs")
        ),
        *((heading, "np", 1) for heading in ("world size", "N", "nGPUs", "Number of processes")),
        ("Init time(s)", "init_s", 1),
        ("Startup time [ms]", "init_s", 1e-3),
        ("Train time(s)", "train_s", 1),
        ("train-time (min)", "train_s", 60),
        ("Training", "train_s", 1),
        ("Total train time (s)", "train_s", 1),
        ("Total time(s)", "total_s", 1),
        ("wall_s", "total_s", 1),
        ("Elapsed", "total_s", 1),
        ("Examples/s", "bare_rate", 1),
        ("Throughput (images/s)", "bare_rate", 1),
        ("images/min", "bare_rate", 1 / 60),
        ("Img/sec per GPU", "rate_worker", 1),
        ("samples_per_second_per_rank", "rate_worker", 1),
        ("images_per_s_total", "rate_total", 1),
        ("Total throughput", "rate_total", 1),
        ("Speedup", "recomputed", 1),
        ("Speed-up (train)", "speedup", 1),
        ("speedup end to end", "recomputed", 1),
        ("Speedup (examples/s)", "recomputed", 1),
        ("Parallel efficiency (%)", "recomputed", 1),
        ("batch size", "batch", 1),
        ("Batch/GPU", "worker_batch", 1),
        ("global batch", "global_batch", 1),
        ("ms/step", "step_s", 1e-3),
    ],
)
def test_headings_are_understood(heading: str, name: str, scale: float) -> None:
    meaning = meaning_of(heading)
    assert meaning is not None
    assert (meaning.name, meaning.scale) == (name, pytest.approx(scale))


@pytest.mark.parametrize(
    "heading",
    [
        "",
        "Model",
        "Time (s)",
        "GPUs per node",
        "img/s per node",
        "loss",
        "train loss",
        "epochs",
        "examples_per_s_std",
        "train time min",
        "step_s_min",
    ],
)
def test_other_headings_have_no_meaning(heading: str) -> None:
    assert meaning_of(heading) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("163", 163),
        (" 1,234.5 ", 1234.5),
        ("163 s", 163),
        ("163 ms", 0.163),
        ("2.5min", 150),
        (".5", 0.5),
        ("190.3 +- 0.5", 190.3),
        ("2 min +- 3 s", 120),
        ("190.3 +- 0.5 ms", 0.1903),
        ("190.3 +- 3 %", 190.3),
        ("190.3 ± 0.5", 190.3),
        ("1e3", 1000),
        ("n/a", None),
        ("-", None),
    ],
)
def test_numbers_as_people_write_them(table, text: str, value: float | None) -> None:
    (curve,) = table(f"np\ttrain_s\ttotal_s\n1\t{text}\t9999\n").curves
    assert curve.points[0].train_s == (value if value is None else pytest.approx(value))


def test_the_unit_of_a_cell_goes_before_that_of_its_heading(table) -> None:
    (curve,) = table("np\tTrain (min)\n1\t2\n2\t90 s\n").curves
    assert [point.train_s for point in curve.points] == [120, 90]


@pytest.mark.parametrize("stated", ["1.6", "1.6x", "1.6\N{MULTIPLICATION SIGN}", "160 %"])
def test_speedups_are_ratios_and_may_be_percentages(table, stated: str) -> None:
    told = table(f"np\ttrain_s\tspeedup train\n1\t160\t1\n2\t100\t{stated}\n").findings
    assert not any("the table says" in finding for finding in told)
    told = table(f"np\ttrain_s\tspeedup train\n1\t160\t1\n2\t90\t{stated}\n").findings
    assert any("the table says 1.6 at 2 where 160/90 is 1.78" in finding for finding in told)


@pytest.mark.parametrize("column", ["examples/s", "batch", "steps"])
def test_a_unit_of_time_in_another_column_is_refused(table, column: str) -> None:
    with pytest.raises(UsageError, match=f"column '{column}': '90 s' is no number"):
        table(f"np\ttrain_s\t{column}\n1\t100\t90 s\n")


@pytest.mark.parametrize(
    "text",
    ["12,34", "fast", "1.2.3", "0:02:43", "inf", "1e999", "5 m", "0x10", "1 234", "1.5x", "85 %", "9 +- 1 x", "."],
)
def test_cells_that_are_no_numbers_are_refused(table, text: str) -> None:
    with pytest.raises(UsageError, match=r"is no number|not possible for a training"):
        table(f"np\ttrain_s\n1\t{text}\n")


# How tables are written


@pytest.mark.parametrize(
    "text",
    [
        "np,train_s\n1,100.5\n2,60.3\n",
        "np\ttrain_s\r\n1\t100.5\r\n2\t60.3\r\n",
        "\ufeffnp,train_s\n1,100.5\n2,60.3",
        "# by hand\n\nnp , train_s\n# a comment\n 1 , 100.5\n\n2,60.3 s\n",
        '"np","Train time, wall (s)"\n"1","100.5"\n"2","60.3"\n'.replace("Train time, wall (s)", "Train time (s)"),
        "# np,train_s\n1,100.5\n2,60.3\n",
        'np,Train time (ms)\n1,"100,500"\n2,"60,300"\n',
        "np,train_s,\n2,60.3,\n1,100.5,\n",
        "| np | Train time (s) |\n|---:|:---|\n| **1** | 100.5 |\n| 2 | `60.3` |\n",
        "We measured this.\n\nGPUs\tTrain time(s)\n1\t100.5\n2\t60.3\n\nIt is fast, 1,2 times.\n",
    ],
    ids=range(10),
)
def test_separators_comments_quotes_and_markdown_read_the_same(table, text: str) -> None:
    (curve,) = table(text).curves
    assert speedups(curve, "train") == {1: 1.0, 2: pytest.approx(100.5 / 60.3)}


TWO_TABLES = """# Lab 11

With 500 steps, we measure the following:

GPUs\tInit time(s)\tTrain time(s)\tSpeedup (train)
1\t68\t163\t1.00
32\t111\t14\t11.64

If we take a look at the hook, we can see:

GPUs\tExamples/s\tSpeedup
{}\t202\t1.00
32\t190\t30.09

Which may seem far superior.
"""


def test_two_tables_of_the_same_process_counts_are_one(table) -> None:
    scaling = table(TWO_TABLES.format(1), "lab.md")
    (curve,) = scaling.curves
    assert speedups(curve, "train")[32] == pytest.approx(163 / 14)
    assert speedups(curve, "steady")[32] == pytest.approx(32 * 190 / 202)
    assert not [finding for finding in scaling.findings if "the table says" in finding]


@pytest.mark.parametrize("row", ["2", "1\t200\t1.00\n1"], ids=["another count", "one count twice"])
def test_two_tables_of_other_process_counts_are_refused(table, row: str) -> None:
    with pytest.raises(
        UsageError, match="holds 2 tables that are not one by their process counts and columns: keep one"
    ):
        table(TWO_TABLES.format(row), "lab.md")


def test_tables_of_two_trainings_are_not_mixed(table) -> None:
    one = "GPUs\tTrain time(s)\n1\t{}\n2\t{}\n\n"
    with pytest.raises(UsageError, match="holds 2 tables"):
        table("ResNet\n" + one.format(100, 60) + "VGG\n" + one.format(300, 160))


def test_a_table_may_be_wide(table) -> None:
    """Lines of logs are cut, those of tables are not."""
    names, cells = (",".join([each] * 3000) for each in ("metric", "0.5"))
    (curve,) = table(f"np,{names},train_s\n1,{cells},100\n2,{cells},60\n").curves
    assert speedups(curve, "train")[2] == pytest.approx(100 / 60)


@pytest.mark.parametrize("junk", [" ", "-", "|"])
def test_long_lines_around_a_table_take_no_long_time(table, junk: str) -> None:
    begin = time.process_time()
    table("np,train_s\n1,100\n2,60\n\n" + junk * 1_000_000 + "x")
    assert time.process_time() - begin < 20  # it is 1 s; a pattern that backtracks would take hours


def test_columns_that_are_not_understood_are_named_once(table) -> None:
    scaling = table("np,colour,train_s,mood\n1,red,10,good\n2,blue,6,bad\n")
    assert "columns that are not understood are left out: 'colour', 'mood'" in scaling.findings


# What cannot be read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "name columns np"),
        ("train_s,init_s\n1,2\n", "a column of process counts and one of times or rates: separate cells"),
        ("np,colour\n1,2\n", "one of times or rates: separate cells"),
        ("np,epoch time (s)\n1,2\n", "one of times or rates: separate cells"),
        ("gpus,gpu,train_s\n1,A100,2\n", "both mean np: rename or remove one"),
        ("np,train_s\n", "no rows: add one"),
        ("np,train_s\n1,100\n2,fast\n", "line 3, column 'train_s': 'fast' is no number"),
        ("np\ttrain_s\n1\t100\n2\t60,5\n", "'60,5' is no number such as 1,234.5"),
        ("np,train_s\n1,0\n", "line 2, column 'train_s': '0' is not possible for a training"),
        ("np,train_s\n1,-5\n", "'-5' is not possible for a training"),
        ("np,train_s\n0,5\n", "column 'np': '0' is not possible for a training"),
        ("np,train_s\n1.5,5\n", "'1.5' is not possible for a training"),
        ("np,train_s\n1,5\n,3\n", "line 3 says no number of processes"),
        ("np,train_s\none,5\n", "line 2, column 'np': 'one' is no number"),
        ("np,train_s\n1,1,234\n", "has 3 cells where the heading has 2: put numbers with separators"),
        ("np,train_s,training time (s)\n1,5,6\n", "both mean train_s: rename or remove one"),
        ("np,train_s,total_s\n1,100,90\n", "line 2: the total of 90 s is less than a part: correct the row"),
        ("np,scaling,train_s\n1,stong,90\n", "'stong' is neither strong nor weak"),
        ("only text\n", "name columns np"),
        ("np;train_s\n1;100\n", "separate cells by commas or tabs"),
        (b"np,train_s\n1,5 \xe9\n", "is no number such as 1,234.5"),
        (b"np,train_s\n1,5\0\n", "no text in UTF-8"),
        ("", "is empty"),
        ("\n \n", "is empty"),
    ],
    ids=range(24),
)
def test_unreadable_input_is_refused_in_one_line(table, text: str | bytes, says: str) -> None:
    with pytest.raises(UsageError) as problem:
        table(text)
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)


_CELLS = st.one_of(
    st.sampled_from(["np", "GPUs", "train_s", "time", "init_s", "total_s", "Examples/s", "batch", "scaling", "engine"]),
    st.sampled_from(["1", "2", "4", "0", "-1", "1.5", "1,5", "strong", "weak", "none", "", "-", '"', "#", "speedup"]),
    st.text(max_size=4),
)


@given(st.lists(st.lists(_CELLS, max_size=6), max_size=6), st.sampled_from([",", "|", "\t"]))
def test_arbitrary_input_raises_usage_errors_only(tmp_path_factory, rows: list[list[str]], separator: str) -> None:
    path = tmp_path_factory.getbasetemp() / "anything.csv"
    path.write_bytes("\n".join(separator.join(row) for row in rows).encode(errors="replace"))
    try:
        assert read_table(path).curves
    except UsageError as problem:
        assert "\n" not in str(problem)  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"kind": "machine"}', "'it.json' holds a scalescope 'machine': name "),
        ('{"speedup": 2}', "'it.json' is JSON of another program: name "),
        ("{torn", "'it.json' is JSON of another program: name "),
    ],
)
def test_json_without_scaling_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "it.json").write_text(text)
    with pytest.raises(UsageError, match=re.escape(said)):
        recognise(tmp_path / "it.json")
