"""The baseline inside its one process. Standard library and torch only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def start(device: str, knobs: dict[str, Any]) -> tuple[int, int]:
    """Rank and number of ranks."""
    return 0, 1


def wrap(model: Any, make_optimizer: Callable[[Any], Any], knobs: dict[str, Any], passes: int = 1) -> tuple[Any, Any]:
    """The model as it is, and its optimizer."""
    return model, make_optimizer(model.parameters())


def agree(value: int) -> int:
    """There is nobody else."""
    return value


def finish() -> None:
    """Do nothing: there is nothing to close."""
