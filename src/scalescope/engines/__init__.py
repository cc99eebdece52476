"""How gradients are exchanged: one file per engine, one visible list."""

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
        exchanging = [each for each in ENGINES if each != PLAIN.name]
        raise UsageError(f"no engine '{name}'{did_you_mean(name, ENGINES)}: use {' or '.join(exchanging)}")
    return ENGINES[name]


__all__ = ["ENGINES", "Engine", "find_engine"]
