"""Detection of the FSDP or replicate() that a model is wrapped in. Standard library and torch only."""

from __future__ import annotations

import functools
from typing import Any

NOT_TUNED = (
    "the model is sharded by FSDP, or replicated by it, whose knobs cannot be switched: wrap it in "
    "DistributedDataParallel if it fits"
)
_DEEPEST = 16  # Frames between a collective of FSDP2 and the group of parameters that it is for
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
    """True if shards have copies: on a mesh with two dimensions fully_shard replicates along the first."""
    placed = [parameter.placements for parameter in root.parameters() if hasattr(parameter, "placements")]
    return any(len(each) > 1 and each[0].is_replicate() for each in placed)


def owner_of(frame: Any) -> tuple[str, bool, int]:
    """The module whose parameters a collective carries, whether it was issued ahead, and the id of their group.

    Args:
        frame: The innermost frame of the call.
    """
    for _ in range(_DEEPEST):
        if frame is None:
            break
        if frame.f_code.co_varnames[:1] == ("self",):  # to look into a frame is what takes time
            own = frame.f_locals["self"]
            if type(own).__name__ == "FSDPParamGroup":
                after = _past_decorators(frame.f_back)
                return own._module_fqn or "", after == "_prefetch_unshard", id(own)
        frame = frame.f_back
    return "", False, 0


def _past_decorators(frame: Any) -> str:
    """The name of the function that called, behind those that torch wraps around its own."""
    while frame is not None and frame.f_code.co_name in ("fn", "wrapper", "inner"):
        frame = frame.f_back
    return frame.f_code.co_name if frame is not None else ""


def watch(module: Any, agent: Any) -> None:
    """See when FSDP2 needs what it gathered and reduced, for a script that runs as rank 0 of N."""
    if not agent.rank_zero:
        return
    recording, never_compile = agent.rank_zero.recording, agent.rank_zero.never_compile
    kind = module.FSDPParamGroup
    wait_for_unshard, finalize_backward = kind.wait_for_unshard, kind.finalize_backward

    @functools.wraps(wait_for_unshard)
    def waits(group: Any) -> Any:
        if recording.is_on:
            recording.gather_is_needed(id(group))
        return wait_for_unshard(group)

    @functools.wraps(finalize_backward)
    def finalizes(group: Any) -> Any:
        if recording.is_on:
            recording.backward_is_over()
        return finalize_backward(group)

    for function in (waits, finalizes):
        never_compile(function)
    kind.wait_for_unshard, kind.finalize_backward = waits, finalizes
