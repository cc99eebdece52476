"""The baseline inside its one process. Standard library and torch only."""

from __future__ import annotations

from typing import Any


def start(device: str, knobs: dict[str, Any]) -> tuple[int, int]:
    """Rank and number of ranks."""
    return 0, 1


def wrap(model: Any, optimizer: Any, knobs: dict[str, Any], passes: int = 1) -> tuple[Any, Any]:
    """Model and optimizer as they are."""
    return model, optimizer


def agree(value: int) -> int:
    """There is nobody else."""
    return value


def finish() -> None:
    """Nothing to close."""
