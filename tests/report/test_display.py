"""Results in a notebook: every record that a verb returns shows its answer and its figures, and runs no script."""

import base64
import re
from collections.abc import Callable
from html import escape
from pathlib import Path

import made_explanation
import made_predictions
import made_scalings
import made_tunings
import pytest
from made_results import HOSTILE, curves, folders, full
from test_measurement import measurement, run

import scalescope
import scalescope.api  # which tells records how notebooks show them
from scalescope.errors import UsageError
from scalescope.measurement.scaling import scaling_of
from scalescope.records.comparison import Comparison
from scalescope.records.results import Results
from scalescope.records.run import Measurement
from scalescope.records.store import Record
from scalescope.show import document_of
from scalescope.studies.compare import compare

AUTOTUNE_LOG = Path(__file__).parents[1] / "data" / "autotune" / "gloo_switches_walked.csv"


def measured() -> Measurement:
    return measurement(run("none", 1, 100), run("ddp", 2, 180), run("ddp", 2, 190, 2), run("none", 1, 101, 2))


def two_measured() -> Comparison:
    return compare(Results(name="a", scaling=curves()), Results(name="b", scaling=curves(slower=1.5)))


MADE: dict[str, Callable[[], Record]] = {
    "measurement": measured,
    "scaling": curves,
    "table": made_scalings.lab11,
    "prediction": made_predictions.checked,
    "explanation": made_explanation.ddp,
    "tuning": made_tunings.two_hosts,
    "autotune": lambda: scalescope.explain(AUTOTUNE_LOG),
    "cluster": made_predictions.cluster,
    "comparison": two_measured,
}


def pictures(shown: str) -> list[str]:
    """What the notebook draws, as SVG texts."""
    return [base64.b64decode(each).decode() for each in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', shown)]


@pytest.mark.parametrize("kind", MADE)
def test_a_result_shows_its_answer_and_its_figures(kind: str) -> None:
    record = MADE[kind]()
    shown, told = record._repr_html_(), document_of(scaling_of(record) if isinstance(record, Measurement) else record)
    assert shown
    for words in (told.answer, *told.reasons, *told.warnings, told.do):
        assert escape(words) in shown
    drawn = pictures(shown)
    assert len(drawn) == shown.count("<img") == (0 if kind == "comparison" else min(3, max(1, len(drawn))))
    assert all(svg.startswith("<svg") and svg.count("<path") > 3 for svg in drawn)
    assert "<script" not in shown


def test_records_that_are_no_results_show_nothing() -> None:
    assert made_predictions.timeline()._repr_html_() is None


def test_names_stay_text() -> None:
    name = HOSTILE[:220]  # with escapes, at which the renderer would end the process
    results = full(name)
    for record in (results.scaling, *results.explanations):
        assert record
        shown = record._repr_html_() or ""
        assert pictures(shown)
        assert "<script" not in shown
        assert "<img src=x" not in shown
        assert not re.search("[\u202e\x1b]", shown)
        assert "onerror" not in re.sub(r"&lt;.*?&gt;", "", shown)


def test_write_report_writes_one_page_of_folders_and_files(tmp_path: Path) -> None:
    page = scalescope.write_report(folders(tmp_path / "results"), tmp_path / "new" / "all.html")
    text = page.read_text()
    assert page == tmp_path / "new" / "all.html"
    assert re.search(r"Use 8 processes with batch 512 each and ddp:\W.*7\.09x expected", text, re.DOTALL)
    assert 'data-figure="map"' in text
    assert HOSTILE not in text
    assert scalescope.write_report(AUTOTUNE_LOG, str(page)) == page  # one path; an earlier page is replaced
    assert "autotune_scores" in page.read_text()


def test_write_report_compares_trainings_and_refuses_what_it_cannot_read_or_must_not_replace(tmp_path: Path) -> None:
    first, second = folders(tmp_path / "a")[1], folders(tmp_path / "b", "other")[1]
    text = scalescope.write_report([first, str(second)], tmp_path / "two.html").read_text()
    assert re.findall(r'<h2[^>]*id="(c\d-results)"', text) == ["c1-results", "c2-results"]
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(UsageError, match="no page of scalescope"):
        scalescope.write_report(first, tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "mine"
    with pytest.raises(UsageError, match="does not exist"):
        scalescope.write_report([tmp_path / "nothing"], tmp_path / "none.html")
    with pytest.raises(UsageError, match="name results"):
        scalescope.write_report([], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()
