"""Estimates that were interrupted: found again, and continued in their folder."""

import contextlib
import time
from pathlib import Path

import msgspec

from scalescope.errors import ScalescopeError, UsageError
from scalescope.jobs.folders import check_record, held
from scalescope.records.files import PLAN
from scalescope.records.request import EstimatePlan
from scalescope.records.store import load

_CONTINUED_S = 3600.0  # Within this time; later the machine may be busy with other things


def unfinished_estimate(plan: EstimatePlan) -> str:
    """The newest folder in which this very estimate was interrupted a short while ago; empty when there is none."""
    for path in sorted(Path("results").glob("estimate-*/plan.json"), reverse=True):
        with contextlib.suppress(ScalescopeError, OSError):
            recent = time.time() - path.stat().st_mtime < _CONTINUED_S
            if recent and load(path, EstimatePlan) == plan:
                with held(path.parent):  # another process may be at it
                    return str(path.parent)
    return ""


def is_begun(folder: Path, plan: EstimatePlan) -> bool:
    """True when the folder holds this very estimate, interrupted; UsageError for another one or a finished one."""
    if not (folder / PLAN).exists():
        return False
    check_record(folder / PLAN, EstimatePlan)
    before = load(folder / PLAN, EstimatePlan)
    here = msgspec.structs.replace(plan.fingerprint, host=before.fingerprint.host)  # another node of a cluster is alike
    if before != msgspec.structs.replace(plan, fingerprint=here):
        raise UsageError(f"{folder} already holds an estimate: choose another folder with -o, or remove this one")
    return True
