"""Engines inside a rank: their files, wherever this agent lies."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
import types
from typing import Any

_ENGINES = "scalescope_engines"


def engine_file(name: str) -> Any:
    """A file of the engines that needs nothing but torch; where scalescope is not installed, by its path."""
    if __name__.startswith("scalescope."):
        return importlib.import_module(f"scalescope.engines.{name}")
    if _ENGINES not in sys.modules:
        home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - as in the hook
        package = types.ModuleType(_ENGINES)
        package.__path__ = [os.path.join(home, "engines")]  # noqa: PTH118
        package.__spec__ = importlib.machinery.ModuleSpec(_ENGINES, None, is_package=True)
        sys.modules[_ENGINES] = package
    return importlib.import_module(f"{_ENGINES}.{name}")


group_live = engine_file("group_live")


def live_half(engine: str) -> Any:
    """The half of an engine inside a rank; None for one process alone and for collectives of the script itself."""
    name = engine_file("halves_live").OF_ENGINE.get(engine)
    return engine_file(name) if name else None
