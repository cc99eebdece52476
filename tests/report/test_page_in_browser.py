"""The page in a real browser: drawn, read, zoomed, saved, narrow, dark, printed, and deaf to hostile names."""

import csv
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from made_results import full, hostile

import needs
from browser import Browser, browser
from scalescope.show.page import page_of
from scalescope.show.study import on_page

pytestmark = pytest.mark.launches

# Every text that is shown with its colour and what lies behind it; ratios below 4.5 are hard to read.
CONTRAST = """(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = rgb(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || node.closest("script,style,svg,noscript,.skip,#vg-tooltip-element"))
      continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)}: ${walker.currentNode.textContent.trim().slice(0, 60)}`);
  }
  return poor;
})()"""
# Texts of charts against the mark behind their middle, or the paper: 3.5 there (orange on white has 3.9), 3 on marks.
IN_CHARTS = """(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).slice(0, 3).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const poor = [];
  let read = 0;
  for (const svg of document.querySelectorAll(".chart svg")) {
    const paper = getComputedStyle(svg.closest(".paper")).backgroundColor;
    const painted = [...svg.querySelectorAll("path")].map((path) => [path, getComputedStyle(path)])
      .filter(([, style]) => style.fill.startsWith("rgb(") && Number(style.fillOpacity) * Number(style.opacity) > 0.9)
      .map(([path, style]) => [path, style.fill, path.getBoundingClientRect()])
      .filter(([, , box]) => box.width > 12 && box.height > 7);
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (!text.textContent.trim() || !box.width) continue;
      const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
      const under = painted.filter(([path, , it]) => it.left < x && x < it.right && it.top < y && y < it.bottom
        && path.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING).at(-1);
      const [a, b] = [light(rgb(getComputedStyle(text).fill)), light(rgb(under ? under[1] : paper))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      read += 1;
      const where = `${ratio.toFixed(2)}: ${text.textContent} in ${svg.closest("figure").id}`;
      if (ratio < (under ? 3 : 3.5)) poor.push(where);
    }
  }
  return read > 300 ? poor : [`only ${read} texts`];
})()"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def window(tmp_path_factory) -> Iterator[Browser]:
    needs.programs("chromium")
    with browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(*on_page([full()])))
    return path


def test_every_figure_is_drawn_without_a_complaint_or_a_request(window: Browser, page: Path) -> None:
    window.open(page)
    figures = page.read_text().count('<div class="chart"')
    assert figures >= 10
    assert window.run("document.querySelectorAll('.chart').length") == figures
    drawn = window.run("[...document.querySelectorAll('.chart svg')].map((svg) => svg.querySelectorAll('path').length)")
    assert len(drawn) == figures
    assert min(drawn) > 3
    assert window.problems == []
    assert window.requests == [page.as_uri()]
    assert window.run(OVERFLOW) <= 0
    for part in (".sentence", ".lead .chart", ".first ul"):  # answer, picture and facts are on the first screen
        bottom = f"document.querySelector('.answer {part}').getBoundingClientRect().bottom"
        assert window.run(bottom) < 900, part


def test_what_can_be_seen_can_be_read_in_light_and_dark(window: Browser, page: Path) -> None:
    window.open(page)
    assert window.run(CONTRAST) == []
    white = window.run("getComputedStyle(document.body).backgroundColor")
    window.open(page, dark=True)
    assert window.run(CONTRAST) == []
    assert window.run("getComputedStyle(document.body).backgroundColor") != white


PAPER = "getComputedStyle(document.querySelector('.paper')).backgroundColor"


def test_charts_are_dark_on_a_dark_page_and_their_texts_can_be_read(window: Browser, page: Path) -> None:
    window.open(page)
    assert window.run(IN_CHARTS) == []
    assert window.run(PAPER) == "rgb(255, 255, 255)"
    window.open(page, dark=True)
    assert window.run(IN_CHARTS) == []
    assert window.run(PAPER) == "rgb(43, 49, 56)"
    cells = (
        "[...document.querySelectorAll('[data-figure=map] .mark-rect path')].map((each) => each.getAttribute('fill'))"
    )
    assert {"#1c1c1c", "rgb(253, 231, 37)"} <= set(window.run(cells))  # black is slower and bright is fast here, too


def test_a_narrow_screen_needs_no_sideways_scrolling(window: Browser, page: Path) -> None:
    window.open(page, width=390, height=844)
    assert window.run(OVERFLOW) <= 0
    assert window.problems == []
    widest = window.run("document.querySelector('[data-figure=speedup] svg').getBoundingClientRect().width")
    assert widest <= 390
    assert window.run(CONTRAST) == []


def a_bar(window: Browser) -> list[float]:
    """The middle of the widest bar of the step, brought into view."""
    window.run("document.querySelector('[data-figure=step]').scrollIntoView({block: 'center', behavior: 'instant'})")
    place: list[float] = window.run(
        "(() => { const bars = [...document.querySelectorAll('[data-figure=step] .mark-rect path')];"
        " const wide = bars.map((each) => each.getBoundingClientRect()).sort((a, b) => b.width - a.width)[0];"
        " return [wide.left + wide.width / 2, wide.top + wide.height / 2]; })()"
    )
    return place


def test_a_tooltip_tells_the_numbers_of_a_mark(window: Browser, page: Path) -> None:
    window.open(page)
    window.move(*a_bar(window))
    tooltip = "document.querySelector('#vg-tooltip-element.visible')?.innerText || ''"
    window.wait(lambda: "gloo:all_reduce bucket 1" in window.run(tooltip), "the tooltip shows")
    assert "44 ms" in window.run(tooltip)


def ticks(window: Browser) -> list[str]:
    return window.run(
        "[...document.querySelectorAll('[data-figure=step] .role-axis-label text')].map((each) => each.textContent)"
    )


def test_the_step_is_zoomed_by_buttons_by_keys_and_with_the_wheel(window: Browser, page: Path) -> None:
    window.open(page)
    whole = ticks(window)
    window.run("document.querySelector('[data-zoom=in]').click()")
    window.wait(lambda: ticks(window) != whole, "the button zooms in")
    window.run("document.querySelector('[data-zoom=whole]').focus()")
    window.key("Enter")
    window.wait(lambda: ticks(window) == whole, "the whole step is back")
    box = a_bar(window)
    window.move(*box)
    window.wheel(*box, -300, ctrl=True)
    window.wait(lambda: ticks(window) != whole, "Ctrl and wheel zoom in")
    zoomed, before = ticks(window), window.run("window.scrollY")
    window.wheel(*box, 300)
    window.wait(lambda: window.run("window.scrollY") != before, "the bare wheel scrolls the page")
    assert ticks(window) == zoomed


def test_data_and_pictures_of_a_figure_are_saved(window: Browser, page: Path) -> None:
    window.open(page)
    for kind in ("CSV", "SVG", "PNG"):
        window.run(f"document.querySelector('[data-save={kind}][data-of=accounting]').click()")
    rows = list(csv.DictReader(window.downloaded("accounting.csv").read_text().splitlines()))
    assert {row["part"] for row in rows} >= {"compute", "optimizer", "other"}
    assert window.downloaded("accounting.svg").read_text().startswith("<svg")
    assert window.downloaded("accounting.png").read_bytes().startswith(b"\x89PNG")
    window.run("document.querySelector('details[data-of=accounting]').open = true")
    window.wait(lambda: window.run("document.querySelector('details[data-of=accounting] td')?.innerText"), "rows show")
    assert window.problems == []


def test_a_picture_saved_from_a_dark_page_is_for_white_paper(window: Browser, page: Path) -> None:
    window.open(page, dark=True)
    window.run("document.querySelector('[data-save=SVG][data-of=waterfall]').click()")
    saved = window.downloaded("waterfall.svg").read_text()
    assert "#333333" in saved
    assert "#e8eaed" not in saved
    assert "#e8eaed" in window.run("document.querySelector('[data-figure=waterfall] svg').outerHTML")


def test_keys_reach_everything_and_names_are_spoken(window: Browser, page: Path) -> None:
    window.open(page)
    window.key("Tab")
    assert window.run("document.activeElement.className") == "skip"
    assert window.run("[...document.querySelectorAll('.paper')].every((each) => each.tabIndex === 0)")
    unnamed = window.run(
        "[...document.querySelectorAll('button, [role=region], section, nav')].filter((each) => "
        "!(each.ariaLabel || each.getAttribute('aria-labelledby') || each.innerText.trim())).length"
    )
    assert unnamed == 0
    described = window.run(
        "[...document.querySelectorAll('[role=graphics-document]')]"
        ".filter((each) => (each.getAttribute('aria-label') || '').length > 20).length"
    )
    assert described == page.read_text().count('<div class="chart"')
    levels = window.run("[...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert all(later <= former + 1 for former, later in pairwise(levels))


def test_it_prints_whole_figures_on_paper(window: Browser, page: Path, tmp_path: Path) -> None:
    window.open(page, dark=True)
    window.printed(tmp_path / "report.pdf")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert 5 < printed.count(b"/Type /Page\n") < 30
    inks = colours_of(printed)
    assert b"0 0 0" in inks
    assert b".9098 .9176 .9294" not in inks  # the ink of the dark page
    window.run("window.dispatchEvent(new Event('afterprint'))")
    shown = "document.querySelector('[data-figure=waterfall] svg').outerHTML"
    window.wait(lambda: "#e8eaed" in window.run(shown), "the screen is dark again")


def colours_of(pdf: bytes) -> set[bytes]:
    """What a PDF fills its shapes and letters with."""
    found: set[bytes] = set()
    for stream in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        with suppress(zlib.error):
            found |= set(re.findall(rb"([\d.]+ [\d.]+ [\d.]+) rg", zlib.decompress(stream[1])))
    return found


def test_hostile_names_do_nothing(window: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_of(*on_page([hostile()])))
    for width in (1200, 390):
        window.open(path, width=width)
        assert window.problems == []
        assert window.requests == [path.as_uri()]
        assert not window.run("document.title").startswith("owned")
        assert window.run("document.querySelectorAll('img').length") == 0
        assert not window.run("/[\\u202e\\u200b\\x1b]/.test(document.documentElement.outerHTML)")
        assert window.run(OVERFLOW) <= 0
        assert window.run("document.querySelectorAll('.chart').length") == window.run(
            "document.querySelectorAll('.chart svg').length"
        )
