"""A prediction for programs: the JSON document, CSV with every cell, Markdown with the map."""

import csv
import io
from pathlib import Path
from typing import Any

import msgspec

from scalescope.records.prediction import Cell, Prediction
from scalescope.report.map_words import map_words
from scalescope.report.prediction import (
    BATCH_WORDS,
    Grid,
    advice_words,
    check_words,
    grids,
    headline,
    is_slower,
    left_out_words,
    recommended_cell,
    reduced,
    speedup_number,
    trust_words,
)
from scalescope.report.tables import csv_cell, markdown_table, markdown_text, write_texts


def as_document(prediction: Prediction) -> dict[str, Any]:
    """What `--json` prints: units are SI and in the names; device_hours are for a million samples."""
    document: dict[str, Any] = msgspec.to_builtins(prediction)
    first = {
        "kind": document.pop("kind"),
        "what": document.pop("what"),
        "cells": document.pop("cells"),
        "recommended": document.pop("recommended"),
        "trusted": prediction.trusted,
        "in_words": map_words(prediction),
    }
    knobs = document.pop("knobs")["values"]
    checks = [
        {**written, "error": check.error, "inside": check.inside}
        for written, check in zip(document.pop("checks"), prediction.checks, strict=True)
    ]
    return {**first, **document, "knobs": knobs, "checks": checks}


# Columns whose field does not say its unit.
_NAMES = {"throughput": "samples_per_s", "device_hours": "device_hours_per_million_samples"}
_MOST_ROWS, _MOST_COLUMNS = 40, 16  # What a page takes


def write_tables(prediction: Prediction, folder: Path) -> list[Path]:
    """Write estimate.csv and estimate.md; the files."""
    return write_texts(folder, {"estimate.csv": as_csv(prediction), "estimate.md": as_markdown(prediction)})


def as_csv(prediction: Prediction) -> str:
    """One row per cell; plain numbers with units in the names, 1 and 0 for yes and no."""
    fields = msgspec.structs.fields(Cell)
    same = {"engine": prediction.engine, "cluster": prediction.cluster, "what": prediction.what}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(_NAMES.get(field.name, field.name) for field in fields), *same])
    ends = [csv_cell(value) for value in same.values()]
    for cell in prediction.cells:
        writer.writerow([*(csv_cell(getattr(cell, field.name)) for field in fields), *ends])
    return text.getvalue()


def as_markdown(prediction: Prediction) -> str:
    """A GitHub table of speedups for each kind of scaling, and what to make of it."""
    blocks = [_map(grid, prediction) for grid in grids(prediction)]
    advice = advice_words(prediction)
    notes = [*map_words(prediction), f"Recommended: {advice}", trust_words(prediction), check_words(prediction)]
    notes += prediction.warnings
    blocks.append("\n".join(f"- {markdown_text(note)}" for note in notes if note))
    return "\n\n".join(blocks) + "\n"


def _map(grid: Grid, prediction: Prediction) -> str:
    shown = reduced(grid, _MOST_ROWS, _MOST_COLUMNS, prediction)
    best = recommended_cell(prediction)
    columns = BATCH_WORDS[grid.scaling]
    caption = f"Predicted speedup, {grid.scaling} scaling: {headline(prediction)}; columns are the {columns}"
    key = "**bold**: recommended; *italic*: slower than one process; mem: does not fit into memory"
    left_out = f"; {words}" if (words := left_out_words(grid, shown)) else ""
    heading = ["processes", "nodes", *(f"{batch:,}" for batch in shown.batches)]
    nodes = shown.nodes()
    rows = [
        [f"{np:,}", f"{nodes.get(np, 0):,}", *(_cell(shown.cells.get((np, batch)), best) for batch in shown.batches)]
        for np in shown.counts
    ]
    return f"{markdown_text(caption)}.\n\n{markdown_table([heading, *rows])}\n\n{key}{left_out}"


def _cell(cell: Cell | None, best: Cell | None) -> str:
    if cell is None:
        return ""
    if not cell.fits:
        return "mem"
    text = speedup_number(cell.speedup)
    return f"**{text}**" if cell is best else f"*{text}*" if is_slower(cell) else text
