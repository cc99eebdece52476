"""Options of every verb that ends with an answer."""

import os
import subprocess
from pathlib import Path

import pytest
import typer

from command_line import CommandLine
from scalescope.cli import application

TABLE = str(Path(__file__).parents[2] / "examples" / "data" / "lab11.csv")


@pytest.mark.parametrize("verb", ["estimate", "explain", "measure", "probe", "tune"])
def test_every_verb_that_ends_with_an_answer_has_them(verb: str) -> None:
    command = typer.main.get_command(application()).commands[verb]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--details", "--quiet", "--verbose", "--formats", "-o", "--output"} <= options
    panels = {getattr(parameter, "rich_help_panel", None) for parameter in command.params if "-o" in parameter.opts}
    assert panels == {"Output"}


def test_pictures_come_in_the_formats_that_are_asked_for(scalescope: CommandLine) -> None:
    said = scalescope.in_this_process("explain", TABLE, "-o", "out", "--formats", "svg, pdf").stdout
    drawn = {path.suffix for path in (scalescope.folder / "out").glob("speedup.*")}
    assert drawn == {".svg", ".pdf"}
    assert "Pictures: out/speedup.svg, " in said
    assert "(also .pdf)" in said


def test_an_unknown_format_is_told_before_the_work(scalescope: CommandLine) -> None:
    told = scalescope.in_this_process("measure", "mlp", "--formats", "gif", "-o", "out", code=2).stderr
    assert told.count("\n") == 1
    assert "'gif': choose from html, png, svg, pdf" in told
    assert not (scalescope.folder / "out").exists()


def test_details_are_shown_on_request(scalescope: CommandLine) -> None:
    short = scalescope.in_this_process("explain", TABLE).stdout.splitlines()
    long = scalescope.in_this_process("explain", TABLE, "--details").stdout.splitlines()
    assert len(short) < len(long)
    assert short[0] == long[0]  # the answer comes first
    assert short[-1] == long[-1]  # and the next command last
    assert short[-1].startswith("Next: scalescope ")


def test_a_table_is_not_explained_into_its_own_place(scalescope: CommandLine) -> None:
    scalescope.in_this_process("explain", TABLE, "-o", "out", "--formats", "svg")
    before = (scalescope.folder / "out" / "scaling.csv").read_bytes()
    told = scalescope.in_this_process("explain", "out/scaling.csv", "-o", "out", code=2).stderr
    assert "'out/scaling.csv' is read and would be overwritten" in told
    assert (scalescope.folder / "out" / "scaling.csv").read_bytes() == before


@pytest.mark.launches
def test_a_reader_that_went_away_ends_the_command_without_a_word(scalescope: CommandLine) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        words = scalescope.words("explain", TABLE)
        done = subprocess.run(words, stdout=gone, stderr=subprocess.PIPE, cwd=scalescope.folder, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
