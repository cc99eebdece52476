import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from made_scalings import GPUS, LAB_INIT_S, LAB_RATE, LAB_TRAIN_S, NASTY, lab11, measured, nearly_nothing, once, ranges
from rendered import as_csv, as_latex, as_markdown

from scalescope.records.scaling import Curve, Scaling, ScalingPoint
from scalescope.show import document_of
from scalescope.show.files import write_tables

SPECIAL = r"a\b 5% & c_d #e $f {g} ~h ^i <j> |k| --lr"


def parsed(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def cells(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def check_latex(text: str) -> None:
    """Balanced braces and environments, as many cells as columns, no special character that is not escaped."""
    plain = re.sub(r"\\[\\%&_#${}]", "", text)
    depth = 0
    for character in plain:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    for columns, body in re.findall(r"\\begin\{tabular\}\{(r+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        lines = [line for line in body.splitlines() if line.rstrip().endswith(r"\\")]
        assert lines
        assert all(len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1 for line in lines)
    for caption in re.findall(r"\\caption\{(.*)\}\n", text):
        assert not re.search(r"(?<!\\)[%&_#~^<>|]", caption)
    assert plain.count("$") % 2 == 0
    assert set(re.findall(r"\\([a-zA-Z]+)", text)) <= {
        *("begin", "end", "centering", "footnotesize", "setlength", "tabcolsep", "caption", "label", "usepackage"),
        *("toprule", "midrule", "bottomrule", "pm", "textbackslash", "textasciitilde", "textasciicircum"),
        *("textless", "textgreater", "textbar"),
    }


def test_csv_begins_with_what_explain_reads() -> None:
    text = as_csv(lab11())
    assert text.startswith(
        "np,init_s,train_s,examples_per_s_total,wall_s,engine,scaling,batch,global_batch,nodes,launches,step_s,"
        "speedup_steady,speedup_steady_low,speedup_steady_high,speedup_train,speedup_train_low,speedup_train_high,"
        "speedup_end_to_end,speedup_end_to_end_low,speedup_end_to_end_high,efficiency,efficiency_low,"
        "efficiency_high,interval,"
    )
    rows = parsed(text)
    assert [int(row["np"]) for row in rows] == list(GPUS)
    assert [float(row["init_s"]) for row in rows] == list(LAB_INIT_S)
    assert [float(row["train_s"]) for row in rows] == list(LAB_TRAIN_S)
    totals = [np * rate for np, rate in zip(GPUS, LAB_RATE, strict=True)]
    assert [float(row["examples_per_s_total"]) for row in rows] == totals
    assert float(rows[-1]["speedup_end_to_end"]) == pytest.approx(231 / 125)
    assert rows[-1]["step_s"] == rows[-1]["nodes"] == ""


def test_csv_holds_every_point_once_with_its_interval() -> None:
    record = measured()
    rows = parsed(as_csv(record))
    points = {(c.scaling, p.engine, p.np, p.batch): p for c in record.curves for p in c.points}
    assert len(rows) == len(points)
    for row in rows:
        point = points[row["scaling"], row["engine"], int(row["np"]), float(row["batch"])]
        assert float(row["step_s"]) == pytest.approx(point.step_s.value)
        assert float(row["speedup_train_low"]) == pytest.approx(point.speedup["train"].low)
        assert float(row["global_batch"]) == pytest.approx(point.batch * point.np)
        assert float(row["init_s"]) + float(row["train_s"]) == pytest.approx(float(row["wall_s"]))
        assert float(row["phase_import_s"]) == 1.6
        assert (row["interval"], row["launches"]) == ("t", "5")


def test_init_is_the_sum_of_its_phases_when_times_are_missing() -> None:
    phases = {"launch": 1.0, "import": 2.0, "init": 4.0, "build": 8.0, "teardown": 16.0, "steady": 100.0}
    curve = Curve(engine="ddp", scaling="", baseline_np=None, points=(ScalingPoint(engine="ddp", np=1, phases=phases),))
    (row,) = parsed(as_csv(Scaling(what="x", source="logs", curves=(curve,))))
    assert float(row["init_s"]) == 31


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_csv_texts_are_no_formulas(text: str) -> None:
    point = ScalingPoint(engine=text, np=1, speedup={"steady": once(-2.0)})
    curve = Curve(engine=text, scaling="", baseline_np=None, points=(point,))
    (row,) = parsed(as_csv(Scaling(what=text, source="table", curves=(curve,))))
    assert row["engine"] == row["what"] == f"'{text}"
    assert float(row["speedup_steady"]) == -2.0


def test_markdown_shows_the_records_numbers() -> None:
    table = cells(as_markdown(lab11()))
    assert table[0] == [
        "processes",
        "batch per process",
        "global batch",
        "samples/s",
        "init (s)",
        "train (s)",
        "total (s)",
        "speedup steady",
        "speedup train",
        "speedup end to end",
        "efficiency (%)",
    ]
    assert table[3] == ["2", "64", "128", "382", "142", "93", "235", "1.89", "1.75", "0.98", "94.6"]
    assert table[-1] == ["32", "64", "2,048", "6,080", "111", "14", "125", "30.10", "11.64", "1.85", "94.1"]
    assert as_markdown(lab11()).startswith(
        "Scaling, horovod: lab11.csv. Relative to 1 process, the smallest feasible size. One launch each, no interval: "
        "launches differ."
    )


@pytest.mark.parametrize(
    "record",
    [lab11(), measured(), ranges(), nearly_nothing(), measured(ranks_per_node=2)],
    ids=["lab", "measured", "ranges", "nearly nothing", "nodes"],
)
def test_tables_are_whole(record: Scaling) -> None:
    check_latex(as_latex(record))
    markdown = as_markdown(record)
    assert markdown.count("\n| ---: |") == len(record.curves)
    for block in markdown.split("\n\n"):
        assert len({len(row) for row in cells(block)}) in (0, 1)
    assert as_latex(record).count(r"\begin{tabular}") == len(record.curves)
    assert len(set(re.findall(r"\\label\{(.*?)\}", as_latex(record)))) == len(record.curves)


def test_intervals_and_ranges_are_written_differently() -> None:
    sure, few = measured(batches=(32,), engines=("ddp",), kinds=("weak",)), ranges()
    assert cells(as_markdown(sure))[-1][-4:] == ["3.70 ± 0.16", "3.55 ± 0.23", "3.27 ± 0.29", "92.5"]
    assert r"3.70 $\pm$ 0.16 & 3.55 $\pm$ 0.23" in as_latex(sure)
    assert r"by the mean step; $\pm$ or [ ]: 95 \% t-intervals over launches, each by itself.}" in as_latex(sure)
    assert "2.87 (2.76-3.01)" in as_markdown(few)
    assert "2.87 (2.76--3.01)" in as_latex(few)
    assert r"\pm" not in as_latex(few)
    assert "by the mean step; in parentheses: range of fewer than 5 launches, no interval." in as_markdown(few)


def test_seconds_of_launches_are_phases_and_no_columns_of_their_own() -> None:
    assert "& init & train & total &" in as_latex(lab11())
    assert not {"init (s)", "train (s)"} & set(cells(as_markdown(measured()))[0])


def test_nodes_are_a_column_only_when_given() -> None:
    with_nodes = as_markdown(measured(batches=(32,), ranks_per_node=2))
    assert cells(with_nodes)[0][3] == "nodes"
    assert cells(with_nodes)[5][:4:3] == ["4", "2"]
    assert "nodes" not in as_markdown(measured(batches=(32,)))


def test_the_baseline_is_named() -> None:
    text = as_markdown(measured(batches=(32,), engines=("ddp",), kinds=("strong",)))
    assert "Strong scaling, ddp, global batch 32: cnn. Relative to 1 process without an engine, the smallest" in text
    assert cells(text)[2][0] == "1 alone"
    assert "There is nothing to compare with." in as_markdown(nearly_nothing())


def test_latex_escapes_a_users_text() -> None:
    text = as_latex(lab11(SPECIAL))
    check_latex(text)
    assert (
        r"a\textbackslash{}b 5\% \& c\_d \#e \$f \{g\} \textasciitilde{}h \textasciicircum{}i "
        r"\textless{}j\textgreater{} \textbar{}k\textbar{} -{}-lr" in text
    )
    assert "é ?" in as_latex(lab11("é 漢"))
    check_latex(as_latex(lab11("}\n\n\\end{table}\\input{x} $")))


def test_markdown_escapes_a_users_text() -> None:
    text = as_markdown(lab11("a|b `c` [x](y) " + NASTY))
    assert r"a\|b \`c\` \[x\](y) &lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<" not in text


def test_an_engines_name_is_a_users_text_too() -> None:
    points = (ScalingPoint(engine="a|b_%", np=1), ScalingPoint(engine="other<&", np=2, throughput=once(1.0)))
    curve = Curve(engine="a|b_%", scaling="weak", baseline_np=1, baseline_engine="a|b_%", points=points)
    record = Scaling(what="x", source="table", curves=(curve,))
    check_latex(as_latex(record))
    assert r"2 other\textless{}\& & 1 \\" in as_latex(record)
    assert "| 2 other&lt;&amp; | 1 |" in as_markdown(record)


def test_files_are_written(tmp_path: Path) -> None:
    record: Any = lab11("é")
    written = write_tables(document_of(record), tmp_path / "new")
    assert [path.name for path in written] == ["scaling.csv", "scaling.md", "scaling.tex"]
    assert [path.read_text(encoding="utf-8") for path in written] == [
        as_csv(record),
        as_markdown(record),
        as_latex(record),
    ]
