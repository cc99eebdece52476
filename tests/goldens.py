"""Texts that users and their scripts read, kept in tests/golden and compared; `make goldens` writes them anew.

A commit that does so says why the words or keys changed.
"""

import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "tests" / "golden"
WRITE = os.environ.get("SCALESCOPE_GOLDENS") == "write"
WIDTH = 100

_BLOCKS = {"title", "h1", "h2", "h3", "h4", "p", "li", "pre", "tr", "figure", "figcaption", "summary", "div", "dl"}
_UNREAD = {"script", "style", "button", "noscript"}


def compare(name: str, text: str) -> None:
    """Compare with the kept file; with SCALESCOPE_GOLDENS=write keep this text instead."""
    path = KEPT / name
    if WRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert text == path.read_text(), f"{name} changed: see the difference, then run 'make goldens' and say why"


def as_json(document: Any) -> str:
    """One key or value per line, numbers to four digits: the last ones differ between processors."""
    return json.dumps(_rounded(document), indent=1, sort_keys=True) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


def page_text(page: str) -> str:
    """The visible text of a page, a line per element, headings and charts marked; then the axes of every chart."""
    reader = _Page()
    reader.feed(page)
    reader.end_line()
    titles = {name: sorted(set(_titles(chart))) for name, chart in json.loads(reader.specs).items()}
    axes = [f"chart {name}: {'; '.join(words)}" for name, words in titles.items()]
    return "\n".join([*reader.lines, "", *axes]).rstrip() + "\n"


def _titles(chart: Any) -> list[str]:
    """Titles of axes, legends and tooltips: what a reader of the chart sees besides its data."""
    if isinstance(chart, list):
        return [title for each in chart for title in _titles(each)]
    if not isinstance(chart, dict):
        return []
    own = chart.get("title")
    own = own if isinstance(own, list) else [own] if isinstance(own, str) else []
    inner = [_titles(value) for key, value in chart.items() if key not in ("config", "datasets", "data")]
    return [*own, *(title for titles in inner for title in titles)]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.specs = ""
        self._words: list[str] = []
        self._mark = ""
        self._inside = ""

    def end_line(self) -> None:
        if text := " ".join(" ".join(self._words).split()):
            text = re.sub(" ([:;]) ", r"\1 ", text)  # the mark that ends a headline is an element of its own
            self.lines.append(self._mark + text)
        self._words, self._mark = [], ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in _UNREAD and not self._inside:
            self._inside = "specs" if named.get("id") == "specs" else tag
        if tag in _BLOCKS:
            self.end_line()
        if tag in ("h1", "h2", "h3", "h4"):
            self._mark = "#" * int(tag[1]) + " "
        if tag == "figure":
            self.lines.append(f"[chart {named['id']}]")
        if tag in ("td", "th") and self._words:
            self._words.append("|")

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNREAD and self._inside:
            self._inside = ""
        if tag in _BLOCKS:
            self.end_line()

    def handle_data(self, data: str) -> None:
        if self._inside == "specs":
            self.specs += data
        elif not self._inside:
            self._words.append(data)
