"""An explanation as the JSON document that scripts rely on."""

from typing import Any

import msgspec

from scalescope.records.explanation import Explanation, RankAccount
from scalescope.reporting.explanation.words import by_gain, share, shares, step_count


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
        "backend": explanation.backend,
        "device": explanation.device,
        "steps": step_count(explanation),
        "steps_from": explanation.steps_from,
        "warmup_steps": explanation.warmup_steps,
        "step_s": explanation.step_s,
        "accounting": shares(parts) if parts else {},
    }
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
        "overhead": explanation.overhead,
        "shown_step": explanation.shown_index,
        "notes": list(explanation.notes),
    }


def _rank(account: RankAccount) -> dict[str, Any]:
    parts = account.parts
    told: dict[str, Any] = {"rank": account.rank, "steps": account.steps, "step_s": parts.step_s}
    told["accounting"] = shares(parts)
    if parts.hidden_s is not None:
        told["hidden_communication"] = share(parts.hidden_s, parts)
    return told if account.late_s is None else {**told, "late_s": account.late_s}


def _plain(record: msgspec.Struct) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(record, str_keys=True)
    return told


def _known(record: msgspec.Struct) -> dict[str, Any]:
    """Without what the source cannot tell."""
    return {name: value for name, value in _plain(record).items() if value is not None}
