"""How many collectives a rank has made: fewer than steps mean that its gradients were never exchanged."""

from __future__ import annotations

import functools
import sys
from typing import Any

from .recorder import Recorder


def watch_groups(module: Any, recorder: Recorder) -> None:
    """A group that is destroyed cannot be asked any more."""
    original = module.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(*arguments: Any, **options: Any) -> Any:
        record_collectives(recorder)
        return original(*arguments, **options)

    module.destroy_process_group = destroy_process_group


def record_collectives(recorder: Recorder) -> None:
    """Ask all groups of this process, which count their collectives anyway."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        groups = list(distributed._world.pg_map)
        count = sum(group._get_sequence_number_for_group() for group in groups)
    except Exception:  # there is no torch.distributed, or this torch or backend does not count
        return
    if groups and recorder.is_rank:
        recorder.line("collectives", n=count)
