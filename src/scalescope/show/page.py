"""Documents on one page: a file that needs no network. The template shows any Document; figures are drawn here."""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scalescope import __version__
from scalescope.errors import UsageError, WorkFailed
from scalescope.named_paths import reading
from scalescope.records.store import write_whole
from scalescope.show.charts.saving import rendered, start_renderer, vega_script
from scalescope.show.document import Chapter, Figure, Section, Table, printed, spec_of
from scalescope.show.files import full_caption
from scalescope.show.words import capital
from scalescope.text import clean, inside_script, plain, plural

PAGE = "report.html"
MOST_BYTES = 3_000_000  # Of a page: it is sent by mail
_BEGINNING = b"<!DOCTYPE html>"
_OURS = b'content="scalescope '  # In the head of every page of ours
_PARTS = ("lines", "facts", "figures", "tables", "items", "code")  # Of a section, any of which makes it worth showing
_LONGEST_HEADLINE = 90  # Characters
_LONGEST = 3000  # Characters of any text; a command may be long


class Drawn(NamedTuple):
    """A figure as the template shows it."""

    id: str
    title: str
    caption: str
    lines: Sequence[str]
    spec: Mapping[str, Any]
    zooms: bool
    leads: bool
    image: str = ""  # A data address; empty: drawn from the spec in the browser


def write_page(chapters: Sequence[Chapter], over_all: Section | None, path: Path) -> str:
    """Write the page whole.

    Args:
        chapters: One per training.
        over_all: What shows several of them together, if anything.
        path: The file; an earlier page is replaced, anything else not.

    Returns:
        Why it shows no figures, where they cannot be drawn; otherwise nothing.

    Raises:
        UsageError: The file is there and no page of ours.
    """
    check_page(path)
    missing = ""
    try:
        text = page_of(chapters, over_all)
    except WorkFailed as problem:
        missing = f"No figures on the page: {problem}; then write it again"
        text = _rendered(*_laid_out(chapters, over_all, with_figures=False), "")
    write_whole(path, text.encode())
    return missing


def check_page(path: Path) -> None:
    """Refuse to replace a file that is no page of ours."""
    if path.is_dir():
        raise UsageError(f"'{path}' is a folder: name a file with -o, such as {path / PAGE}")
    if path.exists():
        with reading(path), open(path, "rb") as file:
            head = file.read(1000)
        if not (head.startswith(_BEGINNING) and _OURS in head):
            raise UsageError(f"'{path}' exists and is no page of scalescope: choose another name with -o")


def page_of(chapters: Sequence[Chapter], over_all: Section | None = None) -> str:
    """The page as one text of at most MOST_BYTES; figures that do not fit are pictures.

    Raises:
        UsageError: Even with pictures it would be larger.
        WorkFailed: Figures cannot be drawn.
    """
    start_renderer()
    laid_out, compared = _laid_out(chapters, over_all)
    script, groups = vega_script(), _figure_groups(laid_out, compared)
    waiting = sorted(
        ((figures, at) for figures in groups for at in range(len(figures))),
        key=lambda place: len(str(place[0][place[1]].spec)),
    )
    while len((text := _rendered(laid_out, compared, script)).encode()) > MOST_BYTES:
        if not waiting:
            raise UsageError(f"{plural(len(chapters), 'result')}: too much for one page: name fewer of them")
        figures, at = waiting.pop()
        picture = base64.b64encode(rendered(dict(figures[at].spec), "png")).decode()
        if len(picture) < len(str(figures[at].spec)):
            figures[at] = figures[at]._replace(image=f"data:image/png;base64,{picture}")
    return text


Laid = dict[str, Any]  # A chapter or a section as the template takes it


def _laid_out(
    chapters: Sequence[Chapter], over_all: Section | None, *, with_figures: bool = True
) -> tuple[list[Laid], Laid | None]:
    """Every chapter with its sections, one figure next to its answer; and the section over all."""
    laid_out = []
    for index, chapter in enumerate(chapters, start=1):
        prefix = f"c{index}-" if len(chapters) > 1 else ""
        sections = [_section(section, prefix, with_figures) for section in chapter.document.sections]
        drawn = [figure for section in sections for figure in section["figures"]]
        lead = [figure for figure in drawn if figure.leads][:1] or drawn[:1]
        for section in sections:
            section["figures"] = [figure for figure in section["figures"] if figure not in lead]
        sections = [section for section in sections if any(section[part] for part in _PARTS)]
        laid_out.append({"id": f"{prefix}results", **chapter._asdict(), "sections": sections, "lead": lead})
    if over_all is None:
        return laid_out, None
    answer = over_all.lines[0] if over_all.lines else ""  # on the first screen
    return laid_out, {**_section(over_all._replace(lines=()), "", with_figures), "answer": answer}


def _figure_groups(chapters: Sequence[Laid], compared: Laid | None) -> list[list[Drawn]]:
    """Lists of all figures of the page, in which pictures may take their places."""
    sections = [section for chapter in chapters for section in chapter["sections"]] + ([compared] if compared else [])
    return [*(chapter["lead"] for chapter in chapters), *(section["figures"] for section in sections)]


def _halves(answer: str) -> tuple[str, str, str]:
    """The part of an answer that is read from afar, the mark that ends it, and the rest.

    It ends before a bracket or with a clause, so that `Use 2 processes: 1.77x measured` holds the number; where that
    is too long it ends at a colon.
    """
    for end in (r"\.(?= )|;|(?= \()", ":"):
        found = re.match(rf"(.{{20,{_LONGEST_HEADLINE}}}?)({end}) (.*)", answer, re.DOTALL)
        if found:
            return found[1], found[2], found[3]
    return answer, "", ""


def _section(section: Section, prefix: str, with_figures: bool) -> Laid:
    """Lay out a section as the template takes it."""
    return {
        "id": f"{prefix}on-{section.name}",  # a figure may have the same name
        "heading": section.heading,
        "lines": list(section.lines),
        "facts": [capital(line) for line in dict.fromkeys(plain(each, 600) for each in section.facts if each)],
        "tables": [_table(table) for table in section.tables if table.rows],
        "figures": list(_drawn(section.figures(), prefix)) if with_figures else [],
        "items": section.items,
        "code": section.code,
    }


def _table(table: Table) -> dict[str, Any]:
    columns, rows, left_out = printed(table)
    more = [f"{plural(left_out, table.noun)} more in the CSV file"] if left_out else []
    return {
        "caption": full_caption(table),
        "headings": [column.heading for column in columns],
        "rows": [[text or "-" for text in row] for row in rows],
        "notes": [capital(plain(note, 600)) for note in (*table.notes, *more) if note],
        "wordy": any(column.words for column in columns[1:]),
    }


def _drawn(figures: Sequence[Figure], prefix: str) -> Sequence[Drawn]:
    """Title and notes become the caption's, where they wrap and can be read aloud."""
    found = []
    for figure in figures:
        if (spec := spec_of(figure)) is None:
            continue
        title = spec.pop("title", {})
        told = plain(str(title.get("text", figure.name)), 120)
        spec |= {"description": f"{told}. {figure.caption}", "background": "transparent"}
        lines = [plain(str(line), 600) for line in title.get("subtitle", [])]
        found.append(Drawn(prefix + figure.name, told, figure.caption, lines, spec, figure.zooms, figure.leads))
    return found


def _rendered(chapters: Sequence[Laid], compared: Laid | None, script: str) -> str:
    from jinja2 import Environment
    from markupsafe import Markup

    def file(name: str) -> str:
        return Path(__file__).with_name(name).read_text(encoding="utf-8")

    figures = [figure for group in _figure_groups(chapters, compared) for figure in group]
    names = list(dict.fromkeys(chapter["title"] for chapter in chapters))
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_harmless)
    environment.filters["capital"] = capital
    return environment.from_string(file("page.html")).render(
        title=" and ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more",
        version=__version__,
        chapters=chapters,
        halves=_halves,
        compared=compared,
        style=Markup(file("page.css")),
        behaviour=Markup(file("page.js")),
        script=Markup(script),
        specs=Markup(inside_script({each.id: each.spec for each in figures if not each.image})),
    )


def _harmless(value: Any) -> Any:
    """Make text of others harmless: no terminal escapes, no letters that turn others round."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return clean(value) if len(value) <= _LONGEST else clean(value[:_LONGEST]) + "..."
