"""Which FSDP shards a model. Standard library and torch only."""

from __future__ import annotations

from typing import Any

NOT_TUNED = (
    "the model is sharded by FSDP, whose knobs cannot be switched: wrap it in DistributedDataParallel if it fits"
)
_KINDS = {"FSDPModule": "fsdp2", "FullyShardedDataParallel": "fsdp"}


def engine_of(root: Any) -> str:
    """The engine that shards any part of a model; empty where none does."""
    for part in () if root is None else root.modules():
        for kind in type(part).__mro__:
            if kind.__name__ in _KINDS:
                return _KINDS[kind.__name__]
    return ""
