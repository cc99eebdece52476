"""A prediction as the JSON document that scripts rely on."""

from typing import Any

import msgspec

from scalescope.records.prediction import Prediction


def as_document(prediction: Prediction) -> dict[str, Any]:
    """What `--json` prints: units are SI and in the names; device_hours are for a million samples."""
    document: dict[str, Any] = msgspec.to_builtins(prediction)
    first = {
        "kind": document.pop("kind"),
        "what": document.pop("what"),
        "cells": document.pop("cells"),
        "recommended": document.pop("recommended"),
        "trusted": prediction.trusted,
    }
    knobs = document.pop("knobs")["values"]
    checks = [
        {**written, "error": check.error, "inside": check.inside}
        for written, check in zip(document.pop("checks"), prediction.checks, strict=True)
    ]
    return {**first, **document, "knobs": knobs, "checks": checks}
