"""How gradients are exchanged: one file per engine, one visible list."""

import difflib

from scalescope.engines.base import Engine
from scalescope.engines.ddp import DDP
from scalescope.engines.horovod import HOROVOD
from scalescope.engines.plain import PLAIN
from scalescope.errors import UsageError

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (DDP, HOROVOD, PLAIN)}


def find_engine(name: str) -> Engine:
    """The engine of that name."""
    if name not in ENGINES:
        near = difflib.get_close_matches(name, ENGINES, n=1)
        raise UsageError(f"no engine '{name}': " + (f"did you mean {near[0]}?" if near else "use ddp or horovod"))
    return ENGINES[name]


__all__ = ["ENGINES", "Engine", "find_engine"]
