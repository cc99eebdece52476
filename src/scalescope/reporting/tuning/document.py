"""A tuning as the JSON document that scripts rely on."""

from typing import Any

import msgspec

from scalescope.records.tuning import Tuning
from scalescope.reporting.tuning.words import against_default, total_steps


def as_document(tuning: Tuning) -> dict[str, Any]:
    """What `--json` prints: units are SI and in the names; a gain is a fraction of the finalist's step time."""
    plain: dict[str, Any] = msgspec.to_builtins(tuning)
    return {
        "kind": plain["kind"],
        "what": tuning.what,
        "decision": tuning.decision,
        "knobs": {**tuning.held, **tuning.values},
        "gain": plain["gain"],
        "samples": len(tuning.samples),
        "steps": total_steps(tuning),
        "complete": tuning.complete,
        "reason": tuning.reason,
        "engine": tuning.engine,
        "np": tuning.np,
        "nodes": tuning.nodes,
        "method": tuning.method,
        "default_step_s": tuning.default_step_s,
        "winner_step_s": tuning.winner_step_s,
        "found": dict(tuning.values),
        "finalist": dict(tuning.finalist),
        "held": dict(tuning.held),
        "left_out": dict(tuning.left_out),
        "cost": plain["cost"],
        "trials": [
            {**_without_kind(trial), "speedup": against_default(tuning, sample.step_s)}
            for trial, sample in zip(plain["samples"], tuning.samples, strict=True)
        ],
        "searched": plain["knobs"],
        "cells": plain["cells"],
        "prior": tuning.prior,
        "notes": list(tuning.notes),
        "command": list(tuning.command),
        "created": tuning.created,
        "scalescope": tuning.scalescope,
    }


def _without_kind(trial: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in trial.items() if name not in ("kind", "version")}
