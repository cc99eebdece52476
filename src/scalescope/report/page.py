"""All results on one page: a file that needs no network. Records and figures in, HTML out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scalescope import __version__
from scalescope.records.results import Results
from scalescope.report.comparison import pair_rows
from scalescope.report.comparison import sentence as what_changed
from scalescope.report.environment import citation, environment_rows, method_words
from scalescope.report.map_words import map_words
from scalescope.report.page_contents import (
    Shown,
    facts_of,
    of_prediction,
    of_scaling,
    of_traces,
    of_tuning,
    shown_findings,
)
from scalescope.report.study import answer
from scalescope.report.tables import Table
from scalescope.report.terminal import Answer
from scalescope.text import clean, inside_script, plain

CAPTIONS = {
    "map": "Each cell is a setting; brighter is faster. Where a row is no brighter than the one below it, more "
    "processes do not pay.",
    "checks": "Points on the dashed diagonal were predicted right; bars are intervals.",
    "strong": "The same work on more processes: the further below the dashed line, the more is lost.",
    "weak": "Work that grows with the processes: the further below the dashed line, the more is lost.",
    "batch": "How fast the smallest size runs at every batch size; the ring marks the fastest.",
    "speedup": "Three answers to how much faster it is: for a long training, from the first to the last step, and from "
    "launch to end. The gap between them is one-time cost.",
    "waterfall": "From ideal to real: each orange bar is speedup that is lost, named by what takes it.",
    "phases": "Where the wall time of a launch went; only the steady part is training at full speed.",
    "step": "One step of every rank: compute above, exchange below. Red-orange marks exposed communication, in which "
    "nothing is computed. Ctrl and wheel, or the buttons, zoom; dragging moves.",
    "accounting": "Where a step goes on every rank; the longest part is the first to work on.",
    "accounting_over_np": "The mean step of every traced launch: which part grows with the ranks?",
    "accounting_compared": "The mean step of each result, in one accounting: the part that differs is the reason.",
    "step_times": "Every step in its order: look for a slow start, sudden changes and slow steps that come back.",
    "transfers": "What messages of each size reached; large points cost most time in all.",
    "landscape": "Step time over the knobs that matter; the ring marks what was found.",
    "convergence": "Samples in the order in which they were tried, and the best so far.",
    "autotune_scores": "Scores in their order; joined points are one setting sampled again, which shows the noise.",
    "autotune_landscape": "Where in the space of knobs the samples lie, and how they scored.",
    "links": "What a collective takes by message size: flat is latency, rising is bandwidth.",
}  # What to see in a figure, by the beginning of its name
_LONGEST = 3000  # Characters of any text; a command may be long
_ZOOMED = "wheel![event.ctrlKey]"  # A bare wheel scrolls the page


class Figure(NamedTuple):
    """One chart with its caption."""

    id: str
    title: str
    caption: str
    lines: Sequence[str]
    spec: Mapping[str, Any]
    image: str = ""  # A data address; empty: drawn from the spec
    zooms: bool = False


class Section(NamedTuple):
    """One question and what answers it."""

    id: str
    heading: str
    lines: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    findings: Sequence["Shown"] = ()
    code: Sequence[str] = ()
    facts: Sequence[str] = ()
    wordy: bool = False  # Whether its tables hold words
    is_told: bool = False  # Whether its lines stand on the first screen already


class Chapter(NamedTuple):
    """One training."""

    id: str
    title: str
    answer: Answer
    follow: str
    sections: Sequence[Section]


def page(
    results: Sequence[Results],
    specs: Sequence[Mapping[str, Mapping[str, Any]]],
    script: str,
    *,
    compared: Any = None,
    compared_specs: Mapping[str, Mapping[str, Any]] | None = None,
    images: Mapping[str, str] | None = None,
) -> str:
    """The page as one text.

    Args:
        results: One per training; several are compared.
        specs: Of every training, its figures as Vega-Lite by name.
        script: What draws them in the browser.
        compared: The Comparison of the first two, if any.
        compared_specs: Figures that show all of them.
        images: By the id of a figure, a picture to show instead of drawing it.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    here = Path(__file__).parent
    several = len(results) > 1
    chapters = [
        _chapter(each, drawn, f"c{index}" if several else "", images or {})
        for index, (each, drawn) in enumerate(zip(results, specs, strict=True), start=1)
    ]
    extra = _compared(compared, compared_specs or {}, images or {}) if several else None
    figures = [figure for chapter in chapters for section in chapter.sections for figure in section.figures]
    figures += extra.figures if extra else []
    source = (here / "page.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_harmless).from_string(
        source
    )
    names = list(dict.fromkeys(chapter.title for chapter in chapters))
    return template.render(
        title=" and ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more",
        version=__version__,
        chapters=chapters,
        compared=extra,
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
        behaviour=Markup((here / "page.js").read_text(encoding="utf-8")),
        script=Markup(script),
        specs=Markup(inside_script({each.id: each.spec for each in figures if not each.image})),
    )


def _harmless(value: Any) -> Any:
    """What the template is given, unless it is ours: no terminal escapes, no letters that turn others round."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return clean(value) if len(value) <= _LONGEST else clean(value[:_LONGEST]) + "..."


def _chapter(
    results: Results, specs: Mapping[str, Mapping[str, Any]], prefix: str, images: Mapping[str, str]
) -> Chapter:
    seen = {"map": map_words(results.prediction)} if results.prediction else {}

    def section(name: str, heading: str, drawn: Sequence[str] = (), **more: Any) -> Section | None:
        beginnings = [name for name in specs if name.partition("-")[0] in drawn]
        figures = [_figure(each, specs[each], prefix, images, seen.get(each, ())) for each in beginnings]
        there = figures or more.get("lines") or more.get("tables") or more.get("findings")
        return Section(_id(prefix, name), heading, figures=figures, **more) if there else None

    sections = [
        section("predicted", "Prediction and how wrong it was", ("map", "checks"), **of_prediction(results)),
        section("scaling", "Weak and strong scaling", ("strong", "weak", "batch"), **of_scaling(results)),
        section("speedups", "Three speedups and what they lose", ("speedup", "waterfall", "phases")),
        section("step", "One step of all ranks", ("step",)),
        section(
            "accounting",
            "Where the time goes",
            ("accounting", "accounting_over_np", "step_times", "transfers"),
            **of_traces(results.explanations),
        ),
        section("findings", "What to change, the largest gain first", findings=shown_findings(results.explanations)),
        section("tuning", "Tuning", ("landscape", "convergence"), **of_tuning(results)),
        section("autotune", "Horovod's autotune log", ("autotune_scores", "autotune_landscape")),
        section("links", "Links", ("links",)),
        section("environment", "To reproduce it", **environment_rows(results), wordy=True),
        section("cite", "How to cite", lines=[method_words(results)], code=[citation()]),
    ]
    title = plain(results.what, 80)
    name = plain(results.name, 60)
    return Chapter(
        _id(prefix, "results"),
        title if name in title else f"{title} ({name})",
        answer(results),
        results.follow,
        [each for each in sections if each],
    )


def _id(prefix: str, name: str) -> str:
    return f"{prefix}-{name}" if prefix else name


def _figure(
    name: str, spec: Mapping[str, Any], prefix: str, images: Mapping[str, str], seen: Sequence[str] = ()
) -> Figure:
    """Title and notes become the caption's, where they wrap and can be read aloud, after what is `seen` in it."""
    own = dict(spec)
    title = own.pop("title", {})
    told = plain(str(title.get("text", name)), 120)
    caption = CAPTIONS[name.partition("-")[0]]
    own |= {"description": f"{told}. {caption}", "background": "transparent"}
    zooms = name.partition("-")[0] == "step"
    if zooms:
        own["params"] = [_with_key(param) for param in own.get("params", [])]
    lines = [plain(str(line), 600) for line in (*seen, *title.get("subtitle", []))]
    image = images.get(_id(prefix, name), "")
    return Figure(_id(prefix, name), told, caption, lines, own, image, zooms)


def _with_key(param: Mapping[str, Any]) -> Mapping[str, Any]:
    select = param.get("select")
    return {**param, "select": {**select, "zoom": _ZOOMED}} if isinstance(select, Mapping) else param


def _compared(comparison: Any, specs: Mapping[str, Mapping[str, Any]], images: Mapping[str, str]) -> Section | None:
    """What changed from the first to the second."""
    figures = [_figure(name, spec, "", images) for name, spec in specs.items()]
    if comparison is None:
        return Section("compared", "Compared", figures=figures) if figures else None
    rows = pair_rows(comparison)
    table = Table(f"{comparison.a} and {comparison.b}", rows[0], [row for row in rows[1:] if len(row) > 1])
    return Section(
        "compared",
        "Compared: B over A, above 1 is slower",
        [what_changed(comparison)],
        figures,
        [table],
        facts=facts_of(comparison.notes),
        is_told=True,
    )
