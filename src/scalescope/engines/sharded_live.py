"""Which FSDP shards a model. Standard library and torch only."""

from __future__ import annotations

from typing import Any

NOT_TUNED = (
    "the model is sharded by FSDP, or replicated by it, whose knobs cannot be switched: wrap it in "
    "DistributedDataParallel if it fits"
)
_KINDS = {"ReplicateModule": "replicate", "FSDPModule": "fsdp2", "FullyShardedDataParallel": "fsdp"}


def engine_of(root: Any) -> str:
    """The engine that shards any part of a model; empty where none does."""
    for part in () if root is None else root.modules():
        for kind in type(part).__mro__:
            if kind.__name__ in _KINDS:
                engine = _KINDS[kind.__name__]
                return "hsdp" if engine == "fsdp2" and _has_copies(root) else engine
    return ""


def _has_copies(root: Any) -> bool:
    """Whether shards have copies: of a mesh with two dimensions fully_shard replicates along the first."""
    placed = [parameter.placements for parameter in root.parameters() if hasattr(parameter, "placements")]
    return any(len(each) > 1 and each[0].is_replicate() for each in placed)
