"""Engines, which exchange gradients: one file for each and its live half, one visible list."""

import importlib.util
import re
from collections.abc import Collection

from scalescope.engines.base import Engine
from scalescope.engines.ddp import DDP
from scalescope.engines.fsdp2 import FSDP2
from scalescope.engines.horovod import HOROVOD
from scalescope.engines.plain import PLAIN
from scalescope.engines.seen import COLLECTIVES, FSDP1, HSDP, REPLICATED
from scalescope.errors import UsageError
from scalescope.records.cluster import BACKENDS
from scalescope.records.job import Knobs
from scalescope.text import did_you_mean

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (DDP, HOROVOD, FSDP2, PLAIN)}
SEEN: dict[str, Engine] = {engine.name: engine for engine in (HSDP, REPLICATED, FSDP1, COLLECTIVES)}
KNOWN: dict[str, Engine] = {**ENGINES, **SEEN}  # What records name
USUAL = DDP  # Where nothing is given and nothing shows another: it needs only torch


def find_engine(name: str) -> Engine:
    """The engine of that name."""
    if name not in ENGINES:
        use = f"use {choices()}"
        if name in SEEN:
            raise UsageError(f"--engine {name} cannot be launched: {use}, or a script of your own after --")
        raise UsageError(f"no engine '{name}'{did_you_mean(name, ENGINES)}: {use}")
    return ENGINES[name]


def engine_named(name: str) -> Engine:
    """The engine of that name, those that are only seen included; for what records hold."""
    return SEEN.get(name) or find_engine(name)


def engine_of_trace(names: Collection[str], *, collectives: bool, own: Collection[str] = ()) -> Engine:
    """The engine that a profile shows.

    Args:
        names: Of its ranges and operators.
        collectives: Whether ranks called any collective.
        own: Those called inside the engine's ranges, as far as ranges tell; they tell engines apart that mark alike.
    """
    for engine in KNOWN.values():
        if any(name.startswith(engine.trace_marks) for name in names if engine.trace_marks):
            alike = (each for each in KNOWN.values() if each.trace_marks == engine.trace_marks)
            return next((each for each in alike if set(each.operations) == set(own)), engine)
    return COLLECTIVES if collectives else PLAIN


def exchanging() -> list[str]:
    """Names of the engines that exchange gradients."""
    return [name for name in ENGINES if name != PLAIN.name]


def choices() -> str:
    """The same, for a sentence."""
    *most, last = exchanging()
    return f"{', '.join(most)} or {last}"


def tunable() -> list[str]:
    """Names of the engines whose knobs tune can change."""
    return [name for name, engine in ENGINES.items() if engine.is_tuned]


def engine_of_source(text: str) -> Engine:
    """The engine whose package a Python source imports; the usual one when it imports none."""
    for engine in ENGINES.values():
        if engine.package and re.search(rf"^\s*(import|from)\b.*\b{engine.package}\b", text, re.MULTILINE):
            return engine
    return USUAL


def engine_of_backend(backend: str) -> Engine:
    """The engine that uses a backend, as clusters name it."""
    prefixed = [engine for engine in ENGINES.values() if engine.backend_prefix]
    return next((engine for engine in prefixed if backend.startswith(engine.backend_prefix)), USUAL)


def check_backend(backend: str, device: str) -> None:
    """A clear line for a backend that is not here."""
    if backend not in BACKENDS:
        raise UsageError(f"there is no backend '{backend}': choose from {', '.join(BACKENDS)}")
    if backend.endswith("nccl") and device != "cuda":
        raise UsageError(f"{backend} needs GPUs and there are none here: probe gloo instead")
    engine = engine_of_backend(backend)
    if engine.package and not importlib.util.find_spec(engine.package):
        where = f"docs/guides/{engine.package}.md"
        raise UsageError(f"{backend} needs {engine.title}, which this Python does not have: {where}")


def knobs_of(backend: str) -> Knobs:
    """The engine and the knobs that use a backend."""
    engine = engine_of_backend(backend)
    return Knobs(engine=engine.name, values=engine.values_for(backend.removeprefix(engine.backend_prefix)))


__all__ = [
    "COLLECTIVES",
    "DDP",
    "ENGINES",
    "KNOWN",
    "PLAIN",
    "SEEN",
    "USUAL",
    "Engine",
    "check_backend",
    "choices",
    "engine_named",
    "engine_of_backend",
    "engine_of_source",
    "engine_of_trace",
    "exchanging",
    "find_engine",
    "knobs_of",
    "tunable",
]
