"""Prints rows as a table."""

from typing import Any


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line per row, columns as wide as they must be."""
    if not rows:
        return
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    texts = [[_text(row.get(heading)) for heading in headings] for row in rows]
    widths = [max(len(line[at]) for line in [headings, *texts]) for at in range(len(headings))]
    for line in [headings, ["-" * width for width in widths], *texts]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    print(flush=True)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


class Unfinished(Exception):
    """A section that needs another run; what it has so far."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows
