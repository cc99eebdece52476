"""Answers and records do not hang on pictures: with little address space, and on a full disk."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import CommandLine
from small_disk import small_disk

SAMPLE = str(Path(__file__).parents[1] / "data" / "traces" / "kineto" / "gloo_small" / "rank0.json.gz")
TABLE = str(Path(__file__).parents[2] / "examples" / "data" / "lab11.csv")
KILOBYTES = 40_000_000  # Below what V8 reserves; schedulers set such limits
LIMITED = (
    f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({KILOBYTES * 1024},) * 2); "
    "from scalescope.cli import main; main()"
)


def limited(line: CommandLine, *words: str, code: int = 0) -> str:
    """What a command prints under `ulimit -v`, where no page was ever written before."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *words],
        cwd=line.folder,
        env={**os.environ, "XDG_CACHE_HOME": str(line.folder / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""  # no native stack
    return done.stdout


def test_under_an_address_space_limit_everything_but_pictures_is_there(scalescope: CommandLine) -> None:
    said = limited(scalescope, "explain", SAMPLE, "-o", "out").splitlines()
    assert said[0] == scalescope.in_this_process("explain", SAMPLE).stdout.splitlines()[0]
    (line,) = [line for line in said if line.startswith("No pictures: ")]
    assert f"(ulimit -v {KILOBYTES})" in line
    folder = scalescope.folder / "out"
    assert {path.name for path in folder.iterdir()} == {
        *(".scalescope", "lock", "explanation.json", "explanation.csv", "explanation.md", "explanation.tex"),
    }
    page = limited(scalescope, "report", "out", "-o", "all.html")
    assert page.splitlines()[0] == said[0]
    assert "No figures on the page: " in page
    text = (scalescope.folder / "all.html").read_text()
    assert all(part in text for part in said[0].split("; "))  # its first words stand in large letters
    assert '<div class="chart"' not in text
    command = shlex.split(line.rpartition("; then: ")[2])
    assert command[0] == "scalescope"
    scalescope(*command[1:], pictures=True)  # where there is room
    assert (folder / "step.png").read_bytes().startswith(b"\x89PNG")


def test_the_api_says_why_it_cannot_draw(scalescope: CommandLine) -> None:
    program = f"""
import resource, scalescope, scalescope.errors
resource.setrlimit(resource.RLIMIT_AS, ({KILOBYTES * 1024},) * 2)
found = scalescope.explain({TABLE!r})
assert "No figures: the drawing engine" in found._repr_html_()
try:
    scalescope.draw(found, "out")
except scalescope.errors.WorkFailed as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=scalescope.folder, capture_output=True, text=True)
    assert done.stdout.startswith("the drawing engine does not fit into the address space"), done.stderr
    assert not (scalescope.folder / "out").exists()


@pytest.fixture
def disk(scalescope: CommandLine) -> Iterator[Path]:
    """A disk with room for records and some pictures, but not for a page."""
    with small_disk(scalescope.folder, "700k") as disk:
        yield disk


def test_on_a_full_disk_the_answer_comes_and_no_file_is_torn(scalescope: CommandLine, disk: Path) -> None:
    words = ("explain", SAMPLE, "-o", str(disk / "out"), "--formats", "png,html", "--json")
    done = scalescope(*words, pictures=True)
    assert json.loads(done.stdout)["kind"] == "profiler traces"
    assert "No pictures: the disk is full" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Next: ")
    written = {path.name for path in (disk / "out").iterdir()}
    assert "explanation.json" in written
    assert not [name for name in written if name.endswith((".html", ".partial"))]
    page = scalescope("report", str(disk / "out"), pictures=True, code=1)  # the page is what was asked for
    assert page.stdout.splitlines()[0] == done.stderr.splitlines()[0]
    assert page.stderr.startswith("scalescope: the disk is full")
    assert not [path for path in (disk / "out").iterdir() if path.name.startswith("report")]
