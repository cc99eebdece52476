"""The page for a proposal: relative to the smallest size, in nodes, with what a reviewer would miss."""

from pathlib import Path

import made_scalings
import msgspec
import pytest
from figure_parts import rows, with_data
from made_results import HOSTILE, folder_of

from scalescope.errors import UsageError
from scalescope.records.results import Results
from scalescope.records.scaling import Scaling
from scalescope.show.charts.proposal import proposal_chart
from scalescope.show.proposal import shortcomings, studies, write_proposal

TABLE = Path(__file__).parents[2] / "examples" / "data" / "lab11.csv"


def measured(counts: tuple[int, ...] = (2, 4, 8), **more: object) -> Scaling:
    return made_scalings.measured(counts=counts, batches=(64,), engines=("ddp",), ranks_per_node=2, **more)  # type: ignore[arg-type]


def test_speedups_are_relative_to_one_node() -> None:
    weak, strong = sorted(studies(Results(name="x", scaling=measured())), key=lambda each: each.title, reverse=True)
    assert (weak.unit, [row.units for row in weak.rows], [row.point.np for row in weak.rows]) == (
        "node",
        [1, 2, 4],
        [2, 4, 8],
    )
    assert weak.rows[0].speedup == 1
    rates = [row.throughput for row in weak.rows]
    assert weak.rows[2].speedup == pytest.approx(rates[2] / rates[0])
    assert weak.rows[2].efficiency == pytest.approx(rates[2] / rates[0] / 4)
    assert weak.rows[2].low < weak.rows[2].speedup < weak.rows[2].high
    assert strong.title.startswith("strong scaling")
    assert shortcomings(weak) == []


def test_what_a_reviewer_would_miss_is_told() -> None:
    def short(scaling: Scaling) -> Scaling:
        return msgspec.structs.replace(
            scaling,
            curves=tuple(
                msgspec.structs.replace(
                    curve, points=tuple(msgspec.structs.replace(each, steps=60) for each in curve.points)
                )
                for curve in scaling.curves
            ),
        )

    few = studies(Results(name="x", scaling=short(measured((2, 8), launches=3, interval="range"))))[0]
    told = " ".join(shortcomings(few))
    assert "Fewer than 100 steps per launch: 50 on 1 node, 50 on 4 nodes; measure again with --steps 150." in told
    assert "Not measured: 2 nodes." in told
    assert "Fewer than 5 launches" in told
    (table,) = studies(Results(name="x", scaling=made_scalings.lab11()))
    assert table.unit == "process"
    assert "The source does not tell how many steps were measured." in shortcomings(table)


def test_the_page_has_every_size_its_plot_and_the_method_whatever_names_hold() -> None:
    results = Results(name="x", scaling=measured(what=HOSTILE))
    page = with_data(proposal_chart(results))
    assert page["title"]["text"].startswith("Scaling of \\input{x}</script><img")
    assert "\u202e" not in str(page)
    table, plot, *_, method = page["vconcat"]
    assert table["title"]["text"] == "Strong scaling, ddp, global batch 64"
    assert "2.38 on 4 nodes" in " ".join(table["title"]["subtitle"])
    assert rows(table)[:2] == [{"column": "nodes", "at": 0, "text": "1"}, {"column": "processes", "at": 0, "text": "2"}]
    assert [row["value"] for row in rows(plot["layer"][0])] == [1, 2, 4]
    assert method["title"]["text"] == "Method"


def test_one_pdf_page_is_written_and_no_other_file_replaced(scalescope, tmp_path: Path) -> None:
    place = str(folder_of(tmp_path / "m", "measure", scaling=measured()))
    done = scalescope.in_this_process("report", place, "--proposal", str(tmp_path / "proposal.pdf"))
    assert "Proposal: proposal.pdf" in done.stdout
    written = (tmp_path / "proposal.pdf").read_bytes()
    assert written.startswith(b"%PDF-")
    assert written.count(b"/Type /Page\n") + written.count(b"/Type/Page/") + written.count(b"/Type /Page ") <= 1
    (tmp_path / "thesis.pdf").write_text("mine")
    with pytest.raises(UsageError, match="no PDF"):
        write_proposal([Results(name="x", scaling=measured())], tmp_path / "thesis.pdf")
    with pytest.raises(UsageError, match="two or more sizes"):
        write_proposal([Results(name="x")], tmp_path / "none.pdf")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--proposal", "t/scaling.csv"), "'t/scaling.csv' exists and is no PDF"),
        (("--tables", "t"), "'t/scaling.csv' is read and would be overwritten"),
        (("--tables", "t/scaling.csv"), "'t/scaling.csv' is a file: name a folder"),
        (("--figures", "t/scaling.csv"), "'t/scaling.csv' is a file: name a folder"),
        (("-o", "new/one.pdf", "--proposal", "new/one.pdf"), "'new/one.pdf' would be written twice"),
        (("--proposal", "new/page.txt"), "name a file such as new/page.pdf"),
    ],
)
def test_every_output_is_checked_before_the_first_is_written(scalescope, words: tuple[str, ...], told: str) -> None:
    table = scalescope.folder / "t" / "scaling.csv"
    table.parent.mkdir()
    table.write_bytes(TABLE.read_bytes())
    done = scalescope.in_this_process("report", "t/scaling.csv", *words, code=2)
    assert done.stdout == ""
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path for path in scalescope.folder.rglob("*") if path.is_file()] == [table]
    assert table.read_bytes() == TABLE.read_bytes()


def test_a_table_of_somebody_is_not_said_to_be_measured_by_us() -> None:
    page = str(proposal_chart(Results(name="x", scaling=made_scalings.lab11())).to_dict(validate=False))
    assert "Computed by scalescope" in page
    assert "Measured with" not in page
    assert "Name the version" not in page
