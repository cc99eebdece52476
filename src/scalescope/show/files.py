"""Documents as files: CSV for programs, Markdown and LaTeX for papers and proposals."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalescope.records.store import write_whole
from scalescope.show.document import Column, Document, Table, printed, spec_of
from scalescope.show.words import capital
from scalescope.text import clean, plain, plural

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # What a spreadsheet takes for a formula at the beginning of a cell
_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{each: f"\\{each}" for each in "\\`*_[]#|~"}}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    **{each: f"\\{each}" for each in "%&_#${}"},
}


def write_tables(document: Document, folder: Path) -> list[Path]:
    """Write the document's tables as NAME.csv, and all of it as NAME.md and NAME.tex by the first; the files."""
    texts = {f"{name}.csv": as_csv(table) for name, table in document.files.items()}
    if name := next(iter(document.files), ""):
        texts |= {f"{name}.md": as_markdown(document), f"{name}.tex": as_latex(document, name)}
    for file, text in texts.items():
        write_whole(folder / file, text.encode())
    return [folder / file for file in texts]


def write_figures(document: Document, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draw every figure that there are numbers for as NAME.FORMAT; the files.

    Raises:
        UsageError: A format is not known, or the folder cannot be written to.
        WorkFailed: Figures cannot be drawn.
    """
    from scalescope.show.charts.saving import check_formats, save_charts, start_renderer

    check_formats(formats)
    start_renderer()
    specs = {figure.name: spec for figure in document.figures if (spec := spec_of(figure))}
    return save_charts(specs, folder, formats)


def as_csv(table: Table) -> str:
    """One line per row, equal ones once; plain numbers with units in the names, empty where nothing is known."""
    columns = [column for column in table.columns if column.key and column.csv]
    heading = [column.key + end for column in columns for end in (("", "_low", "_high") if column.ends else ("",))]
    lines = dict.fromkeys(
        tuple(csv_cell(value) for column in columns for value in _values(column, row)) for row in table.rows
    )
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([heading, *lines])
    return text.getvalue()


def _values(column: Column, row: Any) -> list[Any]:
    value = column.value(row)
    if column.ends:
        return [None] * 3 if value is None else [value.value, value.low, value.high]
    return [value]


def csv_cell(value: Any) -> str:
    """A value as a CSV cell; text that a spreadsheet would run is kept from it."""
    if isinstance(value, str):
        text = clean(" ".join(value.split()))
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else f"{value:.10g}"


def as_markdown(document: Document) -> str:
    """Write its tables with their captions and notes, then facts and findings, then the answer."""
    blocks: list[str] = []
    for section in document.sections:
        for table in section.tables:
            if table.paper and (lines := _markdown_table(table)):
                notes = "\n".join(f"- {markdown_text(note)}" for note in table.notes)
                blocks += [markdown_text(full_caption(table)), lines, notes]
        for at, item in enumerate(section.items, start=1):
            gain = f" ({markdown_text(item.gain)})" if item.gain else ""
            blocks.append(f"{at}. {markdown_text(item.sentence)}{gain}\n   {markdown_text(item.change)}")
    noted = [note for section in document.sections for table in section.tables for note in table.notes]
    noted += [item.sentence.removesuffix(".") for section in document.sections for item in section.items]
    told = [line for line in (*document.reasons, *document.warnings) if not line.startswith(tuple(filter(None, noted)))]
    blocks += ["\n".join(f"- {markdown_text(line)}" for line in told), markdown_text(document.answer)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def full_caption(table: Table) -> str:
    """The caption, and how to read the cells."""
    return f"{table.caption.removesuffix('.')}. {capital(table.key)}." if table.key else table.caption


def _markdown_table(table: Table) -> str:
    columns, rows, left_out = printed(table)
    if not columns:
        return ""
    lines = [
        [markdown_text(column.heading) for column in columns],
        [":---" if column.words else "---:" for column in columns],
        *([markdown_text(text) or "-" for text in row] for row in rows),
    ]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{text}\n\n{plural(left_out, table.noun)} more" if left_out else text


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(_MARKDOWN.get(letter, letter) for letter in clean(" ".join(text.split())))


def as_latex(document: Document, name: str) -> str:
    """Write its tables for a LaTeX document that uses booktabs and nothing else."""
    blocks = [r"% \usepackage{booktabs}"]
    tables = [table for section in document.sections for table in section.tables if table.paper]
    for index, table in enumerate(tables, start=1):
        columns, rows, _ = printed(table)
        if not columns:
            continue
        label = re.sub(r"[^a-z0-9]+", "-", (table.title or table.caption).lower()).strip("-")[:40].strip("-")
        halves = [latex_text(column.heading).partition(" ") for column in columns]  # so that columns stay narrow
        first, second = [half[0] for half in halves], [half[2] for half in halves]
        lines = [
            r"\begin{table}[htbp]",
            r"  \centering\footnotesize\setlength{\tabcolsep}{4pt}",
            f"  \\caption{{{latex_text(full_caption(table))}}}",
            f"  \\label{{tab:{name}-{index}-{label}}}",
            f"  \\begin{{tabular}}{{{''.join('l' if column.words else 'r' for column in columns)}}}",
            r"    \toprule",
            *(_latex_row(heads) for heads in (first, second) if any(heads)),
            r"    \midrule",
            *(_latex_row([latex_text(text) or "--" for text in row]) for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def latex_text(text: str) -> str:
    """Every special character escaped; what pdfLaTeX has no letter for becomes a question mark."""
    known = plain(text, max(len(text), 1)).encode("latin-1", "replace").decode("latin-1")
    escaped = "".join(_LATEX.get(letter, letter) for letter in known)
    without = re.sub("-(?=-)", "-{}", escaped)  # an option's two dashes are no dash
    return re.sub(r"(?<=\d)-(?=[\d.,]+[)\]])", "--", without)  # the two ends of an interval
