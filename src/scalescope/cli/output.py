"""The one way to end a verb: the answer, why, files, the next command, and with --json the document."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.cli.options import OutputOptions
from scalescope.errors import Interrupted, UsageError, WorkFailed
from scalescope.text import as_json, clean

if TYPE_CHECKING:
    from scalescope.records.results import Results
    from scalescope.records.scaling import Scaling


class Ending:
    """Where a verb shows what it does and what came out."""

    def __init__(self, shown: OutputOptions, folder: Path | None, *, keep_stdout: bool = False) -> None:
        from scalescope.charts import check_formats
        from scalescope.report.terminal import open_console

        if folder and folder.exists() and not folder.is_dir():
            raise UsageError(f"-o names a folder, and '{folder}' is a file: choose another name")
        self.shown = shown
        self.formats = tuple(dict.fromkeys(name.strip() for name in shown.formats.split(",")))
        check_formats(self.formats)  # before hours of work
        self.console = open_console(stderr=shown.json or keep_stdout)
        self.progress: dict[str, Any] = {"quiet": shown.quiet, "verbose": shown.verbose}

    def say(self, text: str, style: str | None = None) -> None:
        """A line as it is, however long."""
        self.console.print(clean(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def tell(
        self,
        show: Callable[..., None],
        record: Any,
        *,
        answer: str,
        follow: str,
        document: Callable[[], Any],
        write: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """What came out, and then files, so that a full disk does not cost the answer.

        Args:
            show: Prints reasons, or with --details all tables.
            record: What is shown.
            answer: The first line.
            follow: The next command.
            document: Is made for --json.
            write: Writes records and tables, then pictures; lines that say where they are.
        """
        self.say(answer, style="bold")
        if not self.shown.quiet:
            show(record, self.console, details=self.shown.details)
        if self.shown.json:
            print(as_json(document()), flush=True)
        lines = write()
        if not self.shown.quiet:
            for line in [*lines, f"Next: {follow}"]:
                self.say(line)

    def pictures(self, draw: Callable[[Sequence[str]], list[Path]], folder: Path) -> list[str]:
        """Draw into a result folder, and a line that says where the pictures are, or why there are none."""
        try:
            written = draw(self.formats)
        except WorkFailed as problem:
            here = str(from_here(folder))
            return [f"No pictures: {problem}; then: {shlex.join(['scalescope', 'report', here, '--figures', here])}"]
        except ModuleNotFoundError as missing:
            module = str(missing.name).partition(".")[0]
            if module not in ("altair", "vl_convert"):
                raise
            return [f"No pictures: {module} is not installed; run pip install altair vl-convert-python"]
        first = "png" if "png" in self.formats else self.formats[0]
        shown = ", ".join(str(from_here(path)) for path in written if path.suffix == f".{first}")
        others = ", ".join(f".{name}" for name in self.formats if name != first)
        return [f"Pictures: {shown}" + (f" (also {others})" if others else "")] if written else []

    def drawn(self, record: Any, folder: Path) -> list[str]:
        """Draw everything that a record has the numbers for; lines that say where the pictures are."""
        from scalescope.api import draw

        return self.pictures(lambda formats: draw(record, folder, formats), folder)

    def page(self, results: "Sequence[Results]", path: Path) -> list[str]:
        """Write the page of a result folder; lines that say where it is, or why there is none."""
        from scalescope.api.reports import write_page

        try:
            missing = write_page(results, path)
        except WorkFailed as problem:
            return [f"No page: {problem}; then: {shlex.join(['scalescope', 'report', str(from_here(path.parent))])}"]
        return [f"Page: {from_here(path)}", *([missing] if missing else [])]

    def write_scaling(self, scaling: "Scaling", folder: Path) -> list[str]:
        """Save curves, their tables and their pictures; lines that say where they are."""
        from scalescope.records.store import save
        from scalescope.report.tables import write_tables

        save(scaling, folder / "scaling.json")
        write_tables(scaling, folder)
        here = from_here(folder)
        return [*self.drawn(scaling, folder), f"Tables: {here}/scaling.csv, .md, .tex", f"Records: {here}"]


@contextlib.contextmanager
def interruptible(kept: Callable[[str], str]) -> Iterator[None]:
    """Ctrl-C ends the verb with a line that says what is kept; `kept` is told what the work said when it stopped."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise Interrupted(f"interrupted: nothing is left running{kept(str(stopped))}") from None


def from_here(path: Path) -> Path:
    """The path as short as it can be typed in this folder."""
    path = path.absolute()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
