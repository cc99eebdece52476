"""What verbs share when they say where their results are."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from scalescope.records.scaling import Scaling


def from_here(path: Path) -> Path:
    """The path as short as it can be typed in this folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def again() -> str:
    """The command as it was typed, for another folder."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if word != "-o" or not next(words, "")]
    return shlex.join(["scalescope", *kept])


def write(scaling: "Scaling", folder: Path) -> list[str]:
    """Save the record, its tables and its pictures; lines that say where they are."""
    from scalescope.records.store import save
    from scalescope.report.tables import write_tables

    save(scaling, folder / "scaling.json")
    write_tables(scaling, folder)
    here = from_here(folder)

    def draw() -> list[Path]:
        from scalescope.charts import write_charts

        return write_charts(scaling, folder)

    return [*pictures(draw), f"Tables: {here}/scaling.csv, .md, .tex", f"Records: {here}"]


def pictures(draw: "Callable[[], list[Path]]") -> list[str]:
    """Draw, and lines that say where the pictures are, or why there are none."""
    try:
        written = draw()
    except ModuleNotFoundError as missing:
        if missing.name not in ("altair", "vl_convert"):
            raise
        return [f"No pictures: there is no {missing.name} here; pip install altair vl-convert-python"]
    shown = [path for path in written if path.suffix == ".png"]
    others = ", ".join(dict.fromkeys(path.suffix for path in written if path.suffix != ".png"))
    return ["Pictures:", *(f"  {from_here(path)} ({others})" for path in shown)] if shown else []


def tell(
    console: "Console",
    show: "Callable[[], None]",
    said: "Sequence[str]",
    sentence: str,
    follow: str,
    as_document: "Callable[[], dict[str, Any]]",
    *,
    json: bool,
    quiet: bool,
) -> None:
    """The answer, why, where things are, the next command, and the document."""
    from json import dumps

    console.print(sentence, style="bold", markup=False, highlight=False, soft_wrap=True)
    if not quiet:
        show()
        for line in said:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print(f"Next: {follow}", markup=False, highlight=False, soft_wrap=True)
    if json:
        print(dumps(as_document()))
