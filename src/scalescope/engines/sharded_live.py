"""Which FSDP shards a model, or which replicate() keeps it equal. Standard library and torch only."""

from __future__ import annotations

from typing import Any

NOT_TUNED = (
    "the model is sharded by FSDP, or replicated by it, whose knobs cannot be switched: wrap it in "
    "DistributedDataParallel if it fits"
)
# By the class that torch.distributed adds to a module. DDP is that of the replicate() which makes a wrapper later.
_KINDS = {"ReplicateModule": "replicate", "FSDPModule": "fsdp2", "FullyShardedDataParallel": "fsdp", "DDP": "ddp"}


def engine_of(root: Any) -> str:
    """The engine that was added to any part of a model; empty where none was."""
    for part in () if root is None else root.modules():
        for kind in type(part).__mro__:
            if kind.__name__ in _KINDS and kind.__module__.startswith("torch.distributed."):
                engine = _KINDS[kind.__name__]
                return "hsdp" if engine == "fsdp2" and _has_copies(root) else engine
    return ""


def _has_copies(root: Any) -> bool:
    """Whether shards have copies: of a mesh with two dimensions fully_shard replicates along the first."""
    placed = [parameter.placements for parameter in root.parameters() if hasattr(parameter, "placements")]
    return any(len(each) > 1 and each[0].is_replicate() for each in placed)
