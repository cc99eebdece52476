"""Verbs, how they end, and the commands that verbs advise."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scalescope.errors import UsageError, WorkFailed
from scalescope.options import typed
from scalescope.progress import Progress
from scalescope.records.request import RunOptions
from scalescope.records.store import in_folder, load
from scalescope.show import document_of
from scalescope.show.document import Document
from scalescope.text import as_json, clean, plural

if TYPE_CHECKING:
    from scalescope.records.results import Results

LAUNCH_STEPS_S = 6.0  # About what the steps of a MODEL take in a launch: it ends as soon as their mean is known
SHOWN = ("json", "details", "quiet", "verbose", "formats")


class Verb(NamedTuple):
    """One verb of the command line and of the API."""

    name: str
    request: type[msgspec.Struct]
    help: str
    ask: Callable[..., Any]  # Options by keyword, as texts or values: the request. What it remarks is a Python warning.
    run: Callable[[Any, Progress], Any]  # The record, which names its folder
    takes: tuple[str, ...] = SHOWN  # Fields of RunOptions
    dry_run: Callable[[Any], Iterable[str]] | None = None
    resume: Callable[[Path, Mapping[str, Any], Progress], Any] | None = None  # Folder, new limits
    kept: Callable[[Any, str], str] = lambda request, said: ""  # After Ctrl-C, by what the work said when it stopped
    end: Callable[[Any, Any, "Screen"], "Ending"] = lambda record, request, screen: Ending(document_of(record))
    plan: Callable[[], Any] | None = None  # The type of its plan.json
    record: Callable[[Path], Any] | None = None  # What a job left in a result folder; None: it is not submitted
    finished: Callable[[Path], Sequence[str]] = lambda folder: ()  # Lines about what is finished while a job runs


class Ending(NamedTuple):
    """The end of a verb: its document, files and next command."""

    document: Document
    follow: str = ""  # The next command
    write: Callable[[], Sequence[str]] = tuple  # Writes records, tables and pictures; lines that say where they are
    json: Callable[[], Any] | None = None  # Of --json, where it is more than the document's own
    details: bool = False  # Whether every section is shown, asked for or not
    code: int = 0


class Screen:
    """The terminal, where a verb shows what it does and what came out."""

    def __init__(self, shown: RunOptions, folder: str) -> None:
        from scalescope.show.charts.saving import check_formats
        from scalescope.show.terminal import open_console

        if folder and Path(folder).exists() and not Path(folder).is_dir():
            raise UsageError(f"-o names a folder, and '{folder}' is a file: choose another name")
        check_formats(shown.formats)  # before hours of work
        self.shown = shown
        self.console = open_console(stderr=shown.json or shown.dry_run or bool(shown.join))

    def say(self, text: str, style: str | None = None) -> None:
        """A line as it is, however long."""
        self.console.print(clean(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def tell(self, ending: Ending, folder: Path | None = None) -> None:
        """Show what came out, and then files, so that a full disk does not cost the answer.

        `folder` holds the results: the command with --details would launch them again.
        """
        from scalescope.show.terminal import show

        self.say(ending.document.answer, style="bold")
        if not self.shown.quiet:
            all_by = folder_command("report", folder, "--details") if folder else ""
            show(ending.document, self.console, details=self.shown.details or ending.details, all_by=all_by)
        if self.shown.json:
            print(as_json((ending.json or ending.document.json)()), flush=True)
        lines = ending.write()
        if not self.shown.quiet:
            for line in [*lines, *([f"Next: {ending.follow}"] if ending.follow else [])]:
                self.say(line)

    def files(self, document: Document, folder: Path) -> list[str]:
        """Write tables and figures of a document into a result folder; lines that say where they are."""
        from scalescope.show.files import write_tables

        here, written = from_here(folder), write_tables(document, folder)
        names = ", ".join([written[0].name, *(path.suffix for path in written[1:])])
        return [*self.figures(document, folder), f"Tables: {here}/{names}", f"Records: {here}"]

    def figures(self, document: Document, folder: Path) -> list[str]:
        """Draw into a result folder, and a line that says where the pictures are, or why there are none."""
        from scalescope.show.files import write_figures

        formats, here = self.shown.formats, str(from_here(folder))
        try:
            written = write_figures(document, folder, formats)
        except WorkFailed as problem:
            return [f"No pictures: {problem}; then: {shlex.join(['scalescope', 'report', here, '--figures', here])}"]
        except ModuleNotFoundError as missing:
            module = str(missing.name).partition(".")[0]
            if module not in ("altair", "vl_convert"):
                raise
            return [f"No pictures: {module} is not installed; run pip install altair vl-convert-python"]
        first = "png" if "png" in formats else formats[0]
        shown = ", ".join(str(from_here(path)) for path in written if path.suffix == f".{first}")
        others = ", ".join(f".{name}" for name in formats if name != first)
        return [f"Pictures: {shown}" + (f" (also {others})" if others else "")] if written else []

    def page(self, results: "Sequence[Results]", path: Path) -> list[str]:
        """Write the page of a result folder; lines that say where it is, or why there is none."""
        from scalescope.show.page import write_page
        from scalescope.show.study import on_page
        from scalescope.verbs.report import comparison_of

        try:
            missing = write_page(*on_page(results, comparison_of(results)), path)
        except WorkFailed as problem:
            return [f"No page: {problem}; then: {shlex.join(['scalescope', 'report', str(from_here(path.parent))])}"]
        return [f"Page: {from_here(path)}", *([missing] if missing else [])]


def kept(name: str, of: str) -> Callable[[Path], Any]:
    """Loads the record of this name in a result folder; `of` is its module and its type, imported when it is called."""
    module, _, record = of.rpartition(".")
    return lambda folder: in_folder(load(folder / name, getattr(import_module(module), record)), folder)


def room(module: str, function: str) -> Callable[..., Any]:
    """A function of a room, imported when it is called."""
    return lambda *given, **named: getattr(import_module(module), function)(*given, **named)


def retyped(verb: str, request: msgspec.Struct, **changes: Any) -> str:
    """The command that asks a verb for the training of a request; `changes` are options of the verb by keyword."""
    return typed(["scalescope", verb], import_module("scalescope.verbs").find_verb(verb).request, request, **changes)


def folder_command(verb: str, folder: Path, *words: str) -> str:
    """`scalescope VERB FOLDER ...`, or with an option before the folder."""
    return shlex.join(["scalescope", *verb.split(), str(from_here(folder)), *words])


def training_length(steps: int | None) -> str:
    """Say how long a launch of a script takes: to its end, where it is not stopped after some steps."""
    if steps is None:
        return "as long as the training takes, checkpoints included"
    return f"as long as {plural(steps, 'step')} take, and a shorter training to its end, checkpoints included"


def launch_costs(processes: Sequence[int], *, length: str = "", most: bool = False) -> str:
    """A comment below a dry run: how many launches, about how long, how many device-hours.

    Args:
        processes: Of every launch.
        length: Of a launch, in words, where the training decides it; empty: it ends as soon as its mean is known.
        most: Fewer launches may do.
    """
    from scalescope.jobs.rank_program import starting_s
    from scalescope.units import digits, format_seconds

    limit, count = "at most " if most else "", plural(len(processes), "launch")
    each_s = [starting_s(np) + (0.0 if length else LAUNCH_STEPS_S) for np in processes]
    hours = sum(np * seconds for np, seconds in zip(processes, each_s, strict=True)) / 3600
    if not length:
        return f"# {limit}{count}: about {format_seconds(sum(each_s))}, {digits(hours, 2)} device-hours"
    return (
        f"# {limit}{count}: about {format_seconds(sum(each_s))} to start, and {length}; "
        f"{sum(processes):,} device-hours for every hour of a run, and {digits(hours, 2)} to start"
    )


def from_here(path: Path) -> Path:
    """The path as short as it can be typed in this folder."""
    path = path.absolute()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def folder_of(record: Any) -> Path:
    """The result folder of a record that was made just now."""
    assert record.folder
    return record.folder  # type: ignore[no-any-return]
