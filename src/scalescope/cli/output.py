"""The one way to end a verb: the answer, why, files, the next command, and with --json the document."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.cli.options import OutputOptions
from scalescope.errors import Interrupted, UsageError
from scalescope.text import clean

if TYPE_CHECKING:
    from scalescope.records.scaling import Scaling


class Ending:
    """Where a verb shows what it does and what came out."""

    def __init__(self, shown: OutputOptions, folder: Path | None, *, keep_stdout: bool = False) -> None:
        from rich.console import Console

        from scalescope.charts import check_formats

        if folder and folder.exists() and not folder.is_dir():
            raise UsageError(f"-o names a folder, and '{folder}' is a file: choose another name")
        self.shown = shown
        self.formats = tuple(dict.fromkeys(name.strip() for name in shown.formats.split(",")))
        check_formats(self.formats)  # before hours of work
        self.console = Console(stderr=shown.json or keep_stdout)
        self.progress: dict[str, Any] = {"quiet": shown.quiet, "verbose": shown.verbose}

    def say(self, text: str, style: str | None = None) -> None:
        """A line as it is, however long."""
        self.console.print(clean(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def tell(
        self,
        show: Callable[..., None],
        record: Any,
        *,
        files: Sequence[str],
        answer: str,
        follow: str,
        document: Callable[[], Any],
    ) -> None:
        """What came out: `show` prints reasons, or with --details all tables; `document` is made for --json."""
        self.say(answer, style="bold")
        if not self.shown.quiet:
            show(record, self.console, details=self.shown.details)
            for line in files:
                self.say(line)
            self.say(f"Next: {follow}")
        if self.shown.json:
            print(json.dumps(document()))

    def pictures(self, draw: Callable[[Sequence[str]], list[Path]]) -> list[str]:
        """Draw, and a line that says where the pictures are, or why there are none."""
        try:
            written = draw(self.formats)
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

        return self.pictures(lambda formats: draw(record, folder, formats))

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
