"""Records that others wrote: their texts do nothing to a terminal, and their paths lead nowhere else."""

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made_explanation
import made_predictions
import made_scalings
import made_tunings
import msgspec
import pytest
from made_results import curves, folder_of
from test_measurement import measurement, run

from command_line import CommandLine
from scalescope.cli import run as command_line
from scalescope.errors import UsageError
from scalescope.records.explanation import TRACE_RECORD, RankTrace, TraceFolder
from scalescope.records.run import Failure, Measurement, Point
from scalescope.records.store import Record, decode, encode
from scalescope.show import document_of, terminal

ESCAPE = "\x1b]0;owned\x07\x1b[31m\u202ered"
POINT = Point(engine="ddp", np=2, batch=8, threads_per_rank=1)


def measured() -> Measurement:
    failed = Failure(point=POINT, folder="launches/y", problem="it failed", details="why")
    made = measurement(run("none", 1, 100), run("ddp", 2, 180), run("ddp", 2, 190, 2), run("none", 1, 101, 2))
    return msgspec.structs.replace(made, failures=(failed,), warnings=("odd",), stopped="enough", traces=("traces/x",))


RECORDS: dict[str, tuple[str, Callable[[], Record]]] = {
    "measurement": ("measure", measured),
    "scaling": ("measure", curves),
    "estimate": ("estimate", made_predictions.checked),
    "explanation": ("explain", made_explanation.compared),
    "tuning": ("tune", made_tunings.two_hosts),
}


def texts(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where texts stand; the first of a list stands for all."""
    if isinstance(document, str):
        yield place
    if isinstance(document, dict):
        for key, value in document.items():
            yield from texts(value, (*place, key))
    if isinstance(document, list) and document:
        yield from texts(document[0], (*place, 0))


def with_escape(document: Any, place: tuple[Any, ...]) -> Any:
    if not place:
        return document + ESCAPE
    copied = document.copy()
    copied[place[0]] = with_escape(document[place[0]], place[1:])
    return copied


@pytest.mark.parametrize("kind", RECORDS)
def test_no_text_of_a_record_reaches_the_terminal_as_an_escape(tmp_path: Path, kind: str) -> None:
    verb, make = RECORDS[kind]
    record = make()
    document = everywhere = json.loads(encode(record))
    path = folder_of(tmp_path / "out", verb, **{kind: record}) / f"{kind}.json"
    for place in texts(document):
        changed = json.dumps(with_escape(document, place)).encode()
        try:
            decode(changed, type(record), kind)
        except UsageError:  # the kind, or one of a few words
            continue
        if kind == "measurement":
            path.write_bytes(changed)
            assert check(tmp_path, "explain", "out", "--details") in (0, 2)
        if place[-1] != "engine":  # an unknown one is refused
            everywhere = with_escape(everywhere, place)
    assert everywhere != document
    path.write_text(json.dumps(everywhere))
    assert check(tmp_path, "report", "out") == 0
    assert check(tmp_path, "compare", "out", "out", "--details") in (0, 2)  # 2: nothing to compare


def check(folder: Path, *words: str) -> int:
    """The exit code; what the command prints is plain text."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = command_line(list(words))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", printed.getvalue()), words
    return code


def no_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("words", [("explain", "a"), ("report", "a", "-o", "all.html"), ("compare", "a", "b")])
def test_json_is_json_whatever_a_record_says(scalescope: CommandLine, words: tuple[str, ...]) -> None:
    tiny = {"step_s": 1e-11, "mean_step_s": 1e-11, "wall_s": 1e-11, "phases": {"steady": 1e-11}}
    slow = {"step_s": 1e10, "mean_step_s": 1e10, "wall_s": 1e10, "phases": {"steady": 1e10}}
    made = measurement(run("none", 1, 1e-150, **slow), run("ddp", 2, 1e200, **tiny), run("ddp", 2, 1e200, 2, **tiny))
    for name in ("a", "b"):
        folder_of(scalescope.folder / name, "measure", measurement=made)
    done = scalescope.in_this_process(*words, "--json")
    assert json.loads(done.stdout, parse_constant=no_number)


@pytest.mark.parametrize("path", ["/etc", "..", "../other", "traces/../../other", "traces/.."])
def test_paths_of_records_stay_inside_their_folder(scalescope: CommandLine, path: str) -> None:
    trace = TraceFolder(
        what="x", point=POINT, engine="ddp", backend="gloo", np=2, ranks=(), steps=5, untraced_step_s=None
    )
    ranks = [RankTrace(rank=0, host="h", profile=path), RankTrace(rank=0, host="h", profile="p", marks=path)]
    replaced = msgspec.structs.replace
    for name, record in (
        ("measurement.json", replaced(measured(), traces=("traces/x", path))),
        ("measurement.json", measurement(run("none", 1, 100, folder=path))),
        ("measurement.json", replaced(measured(), failures=(replaced(measured().failures[0], folder=path),))),
        (TRACE_RECORD, replaced(trace, timeline=path)),
        *((TRACE_RECORD, replaced(trace, ranks=(rank,))) for rank in ranks),
    ):
        folder = scalescope.folder / "out"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(encode(record))
        done = scalescope.in_this_process("explain", "out", code=2)
        (folder / name).unlink()
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert f"out/{name} is not a readable scalescope record (Expected a path inside its folder" in done.stderr


def test_a_name_with_colons_is_printed_as_it_is(scalescope: CommandLine) -> None:
    (scalescope.folder / "a:boom:.csv").write_text("np,train_s\n1,100\n2,60\n")
    done = scalescope.in_this_process("explain", "a:boom:.csv")
    assert "Next: scalescope explain a:boom:.csv -o results/a:boom:\n" in done.stdout


COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("make", [made_scalings.measured, made_explanation.ddp, made_tunings.two_hosts])
def test_no_line_of_a_terminal_ends_in_blanks(make: Callable[[], Record]) -> None:
    written = io.StringIO()
    console = terminal.open_console(file=written, width=60, force_terminal=True, color_system="truecolor")
    terminal.show(document_of(make()), console, details=True)
    lines = written.getvalue().split("\n")
    assert any(COLOUR.search(line) for line in lines)
    assert [line for line in lines if COLOUR.sub("", line).endswith(" ")] == []
