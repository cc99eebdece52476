"""The page of results as a text: what it says, where it says it, and what it never holds."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import made_explanation
import made_predictions
import made_scalings
import made_tunings
import msgspec
import pytest
from made_results import HOSTILE, curves, folders, full, hostile, with_steady
from rendered import shown

import scalescope.show
from scalescope.errors import UsageError
from scalescope.records.results import Results
from scalescope.show import document_of
from scalescope.show.document import Chapter, Document
from scalescope.show.page import MOST_BYTES, page_of, write_page
from scalescope.show.prediction import with_measured
from scalescope.show.study import on_page
from scalescope.show.words import capital
from scalescope.verbs.report import comparison_of, result_tables, write_figures

ORDER = [
    "Prediction and how wrong it was",
    "Weak and strong scaling",
    "One step of all ranks",
    "Where a steady step goes",
    "What to change, the largest gain first",
    "Tuning",
    "Links",
    "To reproduce it",
    "How to cite",
]


class Read(HTMLParser):
    """Text and elements of a page, scripts and styles apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(" ([:;]) ", r"\1 ", " ".join(" ".join(self.texts).split()))  # a mark is an element of its own

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(*on_page([full()]))


def test_sections_stand_in_the_order_of_the_questions(page: str) -> None:
    headings = re.findall(r"<h2[^>]*>([^<]+)</h2>", page[: page.index('id="specs"')])
    assert [heading for heading in headings if heading in ORDER] == ORDER
    assert len(page.encode()) < MOST_BYTES


def test_every_figure_has_a_caption_its_data_and_a_description(page: str) -> None:
    read = Read(page)
    figures = [each["data-figure"] for each in read.of("div") if each.get("class") == "chart"]
    assert {"map", "throughput", "speedup", "waterfall", "phases", "step", "accounting", "convergence"} <= {*figures}
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page, re.DOTALL)[1])
    assert list(specs) == figures
    captions = {figure.name: figure.caption for figure in document_of(full()).figures}
    for name in figures:
        caption = captions[name]
        assert caption in read.text
        assert specs[name]["description"].endswith(caption)
        assert "title" not in specs[name]  # it is in the caption
    saved = [each["data-of"] for each in read.of("button") if each.get("data-save") == "CSV"]
    assert saved == figures


@pytest.mark.parametrize("renderer", ["terminal", "files", "page", "notebook"])
def test_a_renderer_knows_no_record(renderer: str) -> None:
    source = Path(scalescope.show.__file__).with_name(f"{renderer}.py").read_text()
    assert set(re.findall(r"scalescope\.records\.(\w+)", source)) <= {"store"}  # which writes files whole


ENDINGS = {
    "measure": (made_scalings.measured, "scaling"),
    "table": (made_scalings.lab11, "scaling"),
    "estimate": (made_predictions.checked, "prediction"),
    "explain": (made_explanation.ddp, "explanations"),
    "tune": (made_tunings.two_hosts, "tuning"),
}


@pytest.mark.parametrize("verb", ENDINGS)
def test_the_first_screen_has_the_words_that_the_verb_ends_with(verb: str) -> None:
    make, field = ENDINGS[verb]
    record = make()
    several = field == "explanations"
    told = document_of(Results(name="x", **{field: (record,) if several else record}, traced_batches=(None,) * several))
    lines = [line.strip() for line in shown(record, 10_000, details=False).splitlines()]
    assert told.reasons
    for line in told.reasons:
        assert f"- {line}" in lines
    assert [line.removeprefix("Warning: ") for line in lines if line.startswith("Warning")] == list(told.warnings[:3])
    assert [line.removeprefix("Do: ") for line in lines if line.startswith("Do: ")] == [told.do][: bool(told.do)]
    with_page = page_of(*on_page([Results(name="x", **{field: (record,) if several else record},
                                 traced_batches=(None,) * several, follow="next --it")]))  # fmt: skip
    first = Read(with_page[: with_page.index("<nav")]).text
    for words in (told.answer, *map(capital, told.reasons), *told.warnings, told.do, "next --it"):
        assert " ".join(words.split()) in first


@pytest.mark.parametrize(
    ("answer", "headline"),
    [
        (
            "Use 2 processes with batch 32 each and ddp: 1.77x measured (1.72 to 1.81), 1.59x predicted.",
            "Use 2 processes with batch 32 each and ddp: 1.77x measured",
        ),
        (
            "Use 1 process: 2 processes with batch 32 each and ddp were not shown to be faster than one: 1.05x "
            "measured (95 % interval 0.68 to 1.64).",
            "Use 1 process: 2 processes with batch 32 each and ddp were not shown to be faster than one",
        ),
        (
            "Rank 1 comes 18.9 ms late to every step, and the other ranks wait for it; fix saves 18.9 ms per step.",
            "Rank 1 comes 18.9 ms late to every step, and the other ranks wait for it",
        ),
        ("There is nothing to compare with.", "There is nothing to compare with."),
    ],
)
def test_the_headline_is_a_clause_that_holds_the_number(answer: str, headline: str) -> None:
    page = page_of([Chapter("x", Document(answer))])
    (large,) = re.findall(r'<p class="sentence">(.*?)<', page)
    assert large == headline
    assert answer in Read(page).text


def test_several_verbs_give_one_answer_with_setting_bottleneck_and_change() -> None:
    told = document_of(full())
    assert told.answer == (
        "Use 8 processes with batch 512 each and ddp: 7.09x expected (6.69 to 7.54), not measured, efficiency 89 %, "
        "0.253 device-hours for a million samples."
    )
    assert "A traced 113 ms step is 63 % compute, 18 % exposed communication" in told.reasons[0]
    assert told.reasons[1].startswith("Use bucket_cap_mb 1 and hierarchical allreduce: 1.58x")
    assert told.do == "DistributedDataParallel(model, bucket_cap_mb=1.0)"
    only = document_of(Results(name="x", prediction=made_predictions.predicted(counts=(1, 4), batches=(32,)),
                          scaling=curves()))  # fmt: skip
    assert "with batch 32 each and ddp" in only.answer
    assert "x measured (95 % interval " in only.answer


def test_measured_cells_tell_how_wrong_the_prediction_was() -> None:
    prediction = made_predictions.both()
    checks = {(each.scaling, each.np, each.batch): each for each in with_measured(prediction, curves()).checks}
    assert set(checks) >= {("weak", 2, 32), ("weak", 4, 32), ("strong", 2, 16)}
    assert {np for _, np, _ in checks if np == 1} == set(), "one process alone is what the map was made of"
    twice = {(each.scaling, each.np, each.batch): each for each in with_measured(prediction, curves(slower=2)).checks}
    cell = checks["weak", 4, 32]
    assert twice["weak", 4, 32].measured_s == pytest.approx(2 * cell.measured_s)
    assert with_measured(prediction, None) is prediction
    assert len(with_measured(with_measured(prediction, curves()), curves()).checks) == len(checks)
    results = Results(name="x", prediction=prediction, scaling=curves())
    page = page_of(*on_page([results]))
    assert "Predicted and measured steps" in page
    assert set(re.findall(r"(\d+) cells run for real", page)) == {str(len(checks))}
    assert f"verified by running {len(checks)} cells" in page


@pytest.mark.parametrize(
    ("verb", "figure"), [("measure", "throughput"), ("estimate", "map"), ("explain", "accounting")]
)
def test_the_first_screen_shows_one_picture_and_warnings_folded(verb: str, figure: str) -> None:
    make, field = ENDINGS[verb]
    record = (make(),) if field == "explanations" else make()
    page = page_of(*on_page([Results(name="x", **{field: record}, traced_batches=(None,))]))
    first = page[page.index('<section class="answer"') : page.index("<nav")]
    assert re.findall(r'data-figure="(\w+)"', first) == [figure]
    assert page.count(f'data-figure="{figure}"') == 1
    warnings = len(document_of(Results(name="x", **{field: record}, traced_batches=(None,))).warnings)
    assert first.count('<details class="warning">') == warnings


@pytest.mark.parametrize(
    ("trusted", "ends", "doubt", "figure"),
    [
        (True, (2.0, 3.0), "", "map"),
        (False, (2.0, 3.0), "", "throughput"),
        (True, (0.8, 1.2), "", "throughput"),
        (True, (2.0, 3.0), "Not certain.", "throughput"),
    ],
)
def test_the_picture_next_to_the_answer_shows_what_the_answer_rests_on(
    *, trusted: bool, ends: tuple[float, float], doubt: str, figure: str
) -> None:
    """A map that is not trusted, or whose setting launches showed to be no faster, would contradict the answer."""
    prediction = made_predictions.predicted(counts=(1, 4), batches=(32,))
    if not trusted:
        prediction = msgspec.structs.replace(prediction, recommended=None, doubts=("other programs were busy",))
    scaling = msgspec.structs.replace(with_steady(curves(), *ends), doubt=doubt)
    page = page_of(*on_page([Results(name="x", prediction=prediction, scaling=scaling)]))
    first, rest = page[page.index('<section class="answer"') :].split("<nav", 1)
    assert re.findall(r'data-figure="(\w+)"', first) == [figure]
    assert ('data-figure="map"' in first + rest) == trusted
    assert ("This map is not to be trusted: other programs were busy." in rest) != trusted


def test_results_of_two_trainings_are_compared_first() -> None:
    before = Results(name="before", scaling=curves())
    after = Results(name="after", scaling=curves(slower=1.5))
    page = page_of(*on_page([before, after], comparison_of([before, after])))
    read = Read(page)
    assert "after is slower: step of" in Read(page[: page.index("Compared: B over A")]).text
    assert re.findall(r'<h2[^>]*id="(c\d-results)"', page) == ["c1-results", "c2-results"]
    ids = [attributes["id"] for _, attributes in read.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))


def test_a_large_map_stays_below_three_megabytes() -> None:
    large = Results(name="x", prediction=made_predictions.large())
    page = page_of(*on_page([large] * 3))
    assert len(page.encode()) < MOST_BYTES
    assert "data:image/png;base64," not in page


def test_figures_that_do_not_fit_become_pictures(monkeypatch) -> None:
    from scalescope.show import page as renderer

    large = Results(name="x", prediction=made_predictions.large())
    size = len(page_of(*on_page([large])).encode())
    monkeypatch.setattr(renderer, "MOST_BYTES", size - 1000)
    page = page_of(*on_page([large]))
    assert len(page.encode()) <= size - 1000
    assert page.count('<img src="data:image/png;base64,') == 1
    monkeypatch.setattr(renderer, "MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="name fewer"):
        page_of(*on_page([Results(name="x", scaling=made_scalings.nearly_nothing())]))


def test_hostile_names_are_text(tmp_path: Path, page: str) -> None:
    results = hostile()
    plain = Read(page)
    page = page_of(*on_page([results]))
    read = Read(page)
    assert [tag for tag, _ in read.elements if tag in ("script", "img", "style")] == [
        tag for tag, _ in plain.elements if tag in ("script", "img", "style")
    ]
    assert "<img src=x" in read.text  # as letters
    assert "{{ 7*7 }}" in read.text
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert not any("onerror" in attributes for _, attributes in read.elements)
    assert len(page.encode()) < MOST_BYTES
    for path, text in result_tables([results], tmp_path).items():
        assert "\x1b" not in text
        assert "\u202e" not in text
        if path.suffix == ".tex":
            assert "\\input{x}" not in text
            assert "\\textbackslash{}input\\{x\\}" in text


def test_a_page_replaces_only_a_page(tmp_path: Path) -> None:
    results = [Results(name="x", scaling=curves())]
    path = tmp_path / "new" / "report.html"
    write_page(*on_page(results), path)
    write_page(*on_page(results), path)
    other = tmp_path / "thesis.html"
    other.write_text("<!DOCTYPE html><title>mine</title>")
    with pytest.raises(UsageError, match="choose another name with -o"):
        write_page(*on_page(results), other)
    with pytest.raises(UsageError, match="is a folder"):
        write_page(*on_page(results), tmp_path)
    assert other.read_text() == "<!DOCTYPE html><title>mine</title>"


def test_figures_and_tables_are_files(tmp_path: Path) -> None:
    results = [Results(name="x", scaling=made_scalings.lab11())]
    written = {path.name for path in write_figures(results, tmp_path / "figures")}
    assert written == {
        f"{name}.{ending}" for name in ("speedup", "waterfall", "phases") for ending in ("pdf", "svg", "png")
    }
    two = result_tables([full(), Results(name="../b", scaling=curves())], tmp_path / "tables")
    names = {str(path.relative_to(tmp_path / "tables")) for path in two}
    assert names == {
        *(f"1-study/{name}" for name in ("scaling.tex", "scaling.csv", "estimate.csv", "explanation.csv")),
        *(f"2-b/{name}" for name in ("scaling.tex", "scaling.csv")),
    }


def test_the_verb_writes_the_page_and_ends_with_its_words(scalescope, tmp_path: Path) -> None:
    paths = list(map(str, folders(tmp_path / "results")))
    done = scalescope.in_this_process("report", *paths)
    page = tmp_path / "results" / "estimate" / "report.html"
    assert done.stdout.startswith("Use 8 processes with batch 512 each and ddp: 7.09x expected")
    assert f"Page: {page.relative_to(tmp_path)}" in done.stdout
    assert len(done.stdout.splitlines()) <= 20
    read = Read(page.read_text())
    assert "scalescope measure --np 1,2,4 --batch 32 --launches 7 --seed 11 -- python train.py" in read.text
    assert "Xeon" in read.text
    next_line = next(line for line in done.stdout.splitlines() if line.startswith("Next: "))
    assert next_line.removeprefix("Next: ") in read.text
    told = json.loads(scalescope.in_this_process("report", *paths, "--json", "-o", str(page)).stdout)
    assert told["results"][0]["holds"] == ["explanation", "prediction", "scaling", "tuning"]
    assert told["results"][0]["answer"] in done.stdout
    assert HOSTILE not in page.read_text()


def test_facts_begin_with_a_capital_and_ddp_with_three() -> None:
    facts = ["ddp itself costs 2 ms", "largest batch: 8", "2 cells", "bucket_cap_mb 25"]
    assert [*map(capital, facts)] == ["DDP itself costs 2 ms", "Largest batch: 8", "2 cells", "bucket_cap_mb 25"]
