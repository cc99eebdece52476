"""How gradients are exchanged: one file per engine and its live half, one visible list."""

import re

from scalescope.engines.base import Engine
from scalescope.engines.ddp import DDP
from scalescope.engines.horovod import HOROVOD
from scalescope.engines.plain import PLAIN
from scalescope.errors import UsageError
from scalescope.text import did_you_mean

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (DDP, HOROVOD, PLAIN)}


def find_engine(name: str) -> Engine:
    """The engine of that name."""
    if name not in ENGINES:
        raise UsageError(f"no engine '{name}'{did_you_mean(name, ENGINES)}: use {' or '.join(exchanging())}")
    return ENGINES[name]


def exchanging() -> list[str]:
    """Names of the engines that exchange gradients."""
    return [name for name in ENGINES if name != PLAIN.name]


def engine_of_source(text: str) -> Engine:
    """The engine whose package a Python source imports; DDP, which needs only torch, when it imports none."""
    for engine in ENGINES.values():
        if engine.package and re.search(rf"^\s*(import|from)\b.*\b{engine.package}\b", text, re.MULTILINE):
            return engine
    return DDP


def engine_of_backend(backend: str) -> Engine:
    """The engine that uses a backend, as clusters name it."""
    prefixed = [engine for engine in ENGINES.values() if engine.backend_prefix]
    return next((engine for engine in prefixed if backend.startswith(engine.backend_prefix)), DDP)


__all__ = ["DDP", "ENGINES", "PLAIN", "Engine", "engine_of_backend", "engine_of_source", "exchanging", "find_engine"]
