"""How wrong earlier estimates on this machine were: kept in the user's cache, read by the next estimate.

The cache helps and never stops anything: what cannot be read or written is one warning.
"""

import math
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from scalescope.errors import ScalescopeError
from scalescope.records.prediction import Calibration, Check, Residual
from scalescope.records.store import append, complete_lines, decode, drop_torn_line
from scalescope.simulator.grid import RESIDUAL
from scalescope.stats import robust_deviation

BELIEF = 3  # Estimates, or checks, that it takes until what they say counts half
_LATEST = 40  # Older ones are forgotten: machines change


def file() -> Path:
    """Where they are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "scalescope" / "residuals-v2.jsonl"


def remember(checks: Sequence[Check], factor: float, engine: str, model: str) -> str:
    """Remember the undisturbed checks of one estimate as one residual; a warning when that fails, otherwise "".

    Args:
        checks: Of one estimate.
        factor: The calibration that their predictions already contain.
        engine: What was estimated.
        model: What was estimated.
    """
    errors = [check.log_error for check in checks if not check.disturbed]
    if not errors:
        return ""
    residual = Residual(
        hostname=platform.node(),
        engine=engine,
        model=model,
        checks=len(errors),
        log_error=median(errors) + math.log(factor),
        seconds_since_epoch=time.time(),
    )
    try:
        drop_torn_line(file())
        append(residual, file())
    except (OSError, ScalescopeError):
        return f"this estimate's error could not be remembered: {file()} cannot be written; make it writable"
    return ""


def calibration(engine: str) -> tuple[Calibration | None, str]:
    """What is remembered of this engine on this machine, and a warning when some of it cannot be read."""
    found, damaged = [], 0
    try:
        for line in complete_lines(file()):
            try:
                found.append(decode(line, Residual, str(file())))
            except ScalescopeError:
                damaged += 1
    except OSError as problem:
        return None, f"what earlier estimates here learned cannot be read ({file()}: {problem.strerror}); remove it"
    here = [one.log_error for one in found if (one.hostname, one.engine) == (platform.node(), engine)]
    said = f"{damaged} damaged lines of {file()} were skipped; remove that file to forget them" if damaged else ""
    return calibrate([error for error in here if math.isfinite(error)][-_LATEST:]), said


def calibrate(log_errors: Sequence[float]) -> Calibration | None:
    """A factor that is believed the more, the more estimates were checked, and what remains uncertain.

    Both come from medians: one estimate that went wrong moves neither.
    """
    if not log_errors:
        return None
    count, middle = len(log_errors), median(log_errors)
    believed = count / (count + BELIEF)
    shift = believed * middle
    own = max(robust_deviation(log_errors), RESIDUAL / 2) if count > 2 else RESIDUAL
    spread = math.sqrt(believed * own**2 + (1 - believed) * RESIDUAL**2 + (middle - shift) ** 2)
    return Calibration(
        estimates=count,
        factor=math.exp(shift),
        spread=spread,
        mean_error=fmean(abs(math.expm1(-error)) for error in log_errors),
    )
