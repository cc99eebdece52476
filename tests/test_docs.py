"""The documentation: every link between its pages, to its pictures and to files of the repository leads somewhere."""

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

import scalescope

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for page in ROOT.glob(pattern)
    if "_build" not in page.parts
)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")


def prose(page: Path) -> str:
    """A page without its code, in which brackets mean something else."""
    return re.sub(r"^(```+).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What headings can be linked to, named as GitHub and the site name them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", prose(page), flags=re.MULTILINE):
        name = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found | set(re.findall(r"^\(([\w-]+)\)=$", prose(page), flags=re.MULTILINE))


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    without_code = re.sub(r"`[^`\n]*`", "code", prose(page))
    found = []
    for target in LINK.findall(without_code):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        is_there = file.exists() and ROOT in (file, *file.parents)
        if not is_there or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# A `code` heading: two\n\n# Twice\n\n# Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-code-heading-two) [c](there.md#twice-1) [d](https://example.org) ![e](no.png)\n"
        "[f](gone.md) [g](there.md#gone) [h](../outside.md) `[i](x.md)` [`j`](code.md) `l`\n```\n[k](block.md)\n```\n"
    )
    assert broken(page) == ["no.png", "gone.md", "there.md#gone", "../outside.md", "code.md"]


def test_every_page_is_in_the_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    named = re.findall(r"<([\w/-]+)>$", index, flags=re.MULTILINE)
    docs = ROOT / "docs"
    written = {page.relative_to(docs).with_suffix("").as_posix() for page in PAGES if docs in page.parents}
    assert sorted(written) == sorted([*named, "index"])


def test_every_function_is_in_the_api() -> None:
    named = re.findall(
        r"^\.\. autofunction:: scalescope\.(\w+)$", (ROOT / "docs/reference/api.md").read_text(), re.MULTILINE
    )
    assert sorted(named) == sorted(scalescope.__all__)


def test_make_docs_finds_broken_links_of_a_site(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="sub/">B</a><a href="sub/index.html#here">B</a><a href="#top">A</a>'
        '<a href="https://example.org">C</a><a href="#gone">D</a><img src="no.png"><a href="sub/index.html#gone">E</a>'
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text('<p id="here"><a href="../a.html">A</a>')
    checker = runpy.run_path(str(ROOT / "docs" / "links.py"))
    assert checker["broken"](tmp_path) == ["a.html: #gone", "a.html: no.png", "a.html: sub/index.html#gone"]


def test_readme_lists_every_guide() -> None:
    guides = {page.name for page in (ROOT / "docs" / "guides").glob("*.md")}
    table = (ROOT / "README.md").read_text().split("| guides | |")[1].split("\n\n")[0]
    assert set(re.findall(r"\(docs/guides/([\w-]+\.md)\)", table)) == guides


def test_messages_name_pages_that_exist() -> None:
    """Paths below docs/ in the source, in scripts and in tests."""
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("scripts/*"), *ROOT.glob("tests/**/*.py"), ROOT / "Makefile"]
    named = {name for file in files for name in re.findall(r"\bdocs/[\w/{}.]+\.md", file.read_text())}
    assert sorted(name for name in named if not (ROOT / name.replace("{engine.package}", "horovod")).is_file()) == []


def test_the_tutorial_measures_and_explains_the_batch_that_it_recommends() -> None:
    """One run stands behind it: a study, and the same batch after the fix."""
    text = (ROOT / "docs" / "guides" / "tutorial.md").read_text()
    recommended = re.search(r"^Use 2 processes with batch (\d+) each .* measured", text, re.MULTILINE)
    assert recommended
    commands = re.findall(r"^\$ scalescope (?:study|measure) .*?--batch (\S+) ", text, re.MULTILINE)
    assert commands == [recommended[1], recommended[1]]
    assert "another batch" not in text.split("## What study does")[0]


@pytest.mark.parametrize("guide", sorted((ROOT / "docs" / "guides").glob("*.md")), ids=lambda guide: str(guide.stem))
def test_a_guide_is_short_and_ends_with_its_limits(guide: Path) -> None:
    text = guide.read_text()
    assert len(text.split()) <= 1500
    assert "\n## Limits\n" in text
    assert text.count("make bench") <= 1, "evidence is in docs/concepts/benchmarks.md"


def test_every_picture_is_shown() -> None:
    """Images that no page shows are not kept."""
    shown = {name for page in PAGES for name in re.findall(r"images/([\w-]+\.png)\)", page.read_text())}
    assert {path.name for path in (ROOT / "docs" / "images").iterdir()} == shown
