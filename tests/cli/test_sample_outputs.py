"""What the pages show of commands that read files of the repository is what these commands print."""

import os
import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from command_line import CommandLine

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```\n(\$ scalescope .*?)^```$", re.MULTILINE | re.DOTALL)
READS = ("explain", "compare")  # Verbs that launch nothing when all that they are given are files


class Sample(NamedTuple):
    page: Path
    words: list[str]
    shown: str


def samples() -> list[Sample]:
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in BLOCK.findall(page.read_text()):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, shown = part.replace("\\\n", "").partition("\n")
                words = shlex.split(command, comments=True)[1:]
                paths = [word for word in words[1:] if not word.startswith("-")]
                if shown and words[0] in READS and "--" not in words and all((ROOT / path).is_file() for path in paths):
                    found.append(Sample(page, words, shown))
    return found


def as_on_a_page(line: str) -> str:
    """A line as a terminal of 100 columns wraps it, but for a command, which is to be copied."""
    if len(line) <= 100 or line.startswith("Next: "):
        return line
    return textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)


def test_there_are_samples() -> None:
    assert len(samples()) >= 5


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: f"{sample.page.stem}: {' '.join(sample.words)}")
def test_a_page_shows_what_the_command_prints(sample: Sample, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = CommandLine(ROOT).in_this_process(*sample.words).stdout
    printed = "".join(f"{as_on_a_page(line.rstrip())}\n" for line in said.strip("\n").splitlines())
    if os.environ.get("SCALESCOPE_GOLDENS") == "write":
        sample.page.write_text(sample.page.read_text().replace(sample.shown, printed))
    else:
        assert printed == sample.shown, f"type make goldens, or paste it anew into {sample.page.relative_to(ROOT)}"
