"""An explanation for programs: the JSON document, CSV with every step of every rank, Markdown per rank."""

import csv
import io
from pathlib import Path
from typing import Any

import msgspec

from scalescope.records.explanation import Explanation, RankAccount
from scalescope.records.timeline import Breakdown
from scalescope.report.explanation import (
    DIVIDED,
    accounting_columns,
    by_gain,
    engine_words,
    first_steady,
    loss_words,
    rank_words,
    saved_words,
    seconds_of,
    sentence,
    share,
    shares,
    step_count,
    straggler_words,
)
from scalescope.report.tables import csv_cell, markdown_table, markdown_text, write_texts
from scalescope.text import plain


def as_document(explanation: Explanation) -> dict[str, Any]:
    """What `--json` prints: units are SI and in the names; accounting is in fractions of the step.

    What the source cannot separate is absent, and its time is in other; without steps the accounting is empty.
    """
    parts, possibly = explanation.accounting, explanation.possibly_hidden_s
    document: dict[str, Any] = {
        "kind": explanation.kind,
        "what": explanation.what,
        "files": list(explanation.files),
        "ranks": len(explanation.ranks),
        "rank_numbers": list(explanation.ranks),
        "world_size": explanation.world_size,
        "engine": explanation.engine,
        "collectives": dict(explanation.collectives),
        "backend": explanation.backend,
        "device": explanation.device,
        "steps": step_count(explanation),
        "steps_from": explanation.steps_from,
        "warmup_steps": explanation.warmup_steps,
        "step_s": explanation.step_s,
        "traced_step_s": explanation.traced_step_s,
        "accounting": shares(parts) if parts else {},
    }
    if parts and parts.waiting_s is not None:
        document["exposed"] = _exposed(parts)
    if parts and parts.hidden_s is not None:
        document["hidden_communication"] = share(parts.hidden_s, parts)
    if parts and possibly is not None:
        document["possibly_hidden_communication"] = share(possibly, parts)
    return {
        **document,
        "lost": _plain(explanation.lost),
        "findings": [_plain(finding) for finding in by_gain(explanation.findings)],
        "per_rank": [_rank(account) for account in explanation.per_rank],
        "transfers": [_known(transfer) for transfer in explanation.transfers],
        "bucket_bytes": list(explanation.bucket_bytes),
        "horovod": _known(explanation.horovod) if explanation.horovod else None,
        "clocks": [_plain(clock) for clock in explanation.clocks],
        "skew_s": list(explanation.skew_s),
        "straggler": explanation.straggler,
        "straggler_note": explanation.straggler_note,
        "changes": [_plain(change) for change in explanation.changes],
        "periods": [_plain(period) for period in explanation.periods],
        "epochs": [_known(epoch) for epoch in explanation.epochs],
        "first_steps": _plain(explanation.first_steps) if explanation.first_steps else None,
        "overhead": explanation.overhead,
        "shown_step": explanation.shown_index,
        "notes": list(explanation.notes),
    }


def _rank(account: RankAccount) -> dict[str, Any]:
    parts = account.parts
    told: dict[str, Any] = {"rank": account.rank, "steps": account.steps, "step_s": parts.step_s}
    told["accounting"] = shares(parts)
    if parts.waiting_s is not None:
        told["exposed"] = _exposed(parts)
    if parts.hidden_s is not None:
        told["hidden_communication"] = share(parts.hidden_s, parts)
    return told if account.late_s is None else {**told, "late_s": account.late_s}


def _exposed(parts: Breakdown) -> dict[str, float]:
    """Exposed communication divided, in fractions of the step."""
    return {part.key: share(seconds_of(part, parts) or 0.0, parts) for part in DIVIDED}


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(record, str_keys=True)
    return told


def _known(record: msgspec.Struct) -> dict[str, Any]:
    """Without what the source cannot tell."""
    return {name: value for name, value in _plain(record).items() if value is not None}


_MOST_ROWS = 64  # What a page takes


def write_tables(explanation: Explanation, folder: Path) -> list[Path]:
    """Write explanation.csv and explanation.md; the files."""
    return write_texts(folder, {"explanation.csv": as_csv(explanation), "explanation.md": as_markdown(explanation)})


def as_csv(explanation: Explanation) -> str:
    """One row per step and rank, in seconds; warm-up steps say so, and what the source cannot tell is empty."""
    fields = [field.name for field in msgspec.structs.fields(Breakdown)]
    what = csv_cell(plain(explanation.what, 200))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "step", "warmup", "start_s", *fields, "what"])
    steady = first_steady(explanation)
    for step in explanation.steps:
        warmup = int(step.index < steady)
        values = [csv_cell(getattr(step.parts, field)) for field in fields]
        writer.writerow([step.rank, step.index, warmup, csv_cell(step.start_s), *values, what])
    return text.getvalue()


def as_markdown(explanation: Explanation) -> str:
    """A GitHub table of the typical step, one row per rank and one for all, and what was found."""
    caption = (
        f"{explanation.kind}: {plain(explanation.what, 60)}, {rank_words(explanation)}, {engine_words(explanation)}"
    )
    blocks = [f"{markdown_text(caption[0].upper() + caption[1:])}."]
    if explanation.accounting:
        blocks.append(_table(explanation, explanation.accounting))
    left_out = len(explanation.per_rank) - _MOST_ROWS
    notes = [f"{left_out:,} more ranks are in the CSV file"] if left_out > 0 else []
    notes += [straggler_words(explanation), loss_words(explanation)]
    notes += [plain(note, 300) for note in explanation.notes]
    blocks.append("\n".join(f"- {markdown_text(note)}" for note in notes if note))
    blocks.append("\n".join(_findings(explanation)))
    blocks.append(markdown_text(sentence(explanation)))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(explanation: Explanation, whole: Breakdown) -> str:
    rows: list[tuple[str, Breakdown, RankAccount | None]] = []
    if len(explanation.per_rank) != 1:
        rows.append(("all", whole, None))
    rows += [(f"{account.rank:,}", account.parts, account) for account in explanation.per_rank[:_MOST_ROWS]]
    columns = accounting_columns(rows)
    return markdown_table([list(columns), *zip(*columns.values(), strict=True)])


def _findings(explanation: Explanation) -> list[str]:
    lines = []
    for index, finding in enumerate(by_gain(explanation.findings), start=1):
        saved = saved_words(finding, explanation.step_s)
        gain = f" ({saved})" if saved else ""
        lines.append(f"{index}. {markdown_text(plain(finding.sentence, 300))}{gain}")
        lines.append(f"   {markdown_text(plain(finding.change, 300))}")
    return lines
