"""Remembers how wrong earlier estimates on this machine were: kept in the user's cache, read by the next estimate.

The cache helps and never stops anything: what cannot be read or written is one warning.
"""

import math
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from scalescope.engines import find_engine
from scalescope.engines.base import Engine
from scalescope.errors import ScalescopeError
from scalescope.records.prediction import Calibration, Check, Residual
from scalescope.records.store import append, complete_lines, decode, drop_torn_line
from scalescope.stats import robust_deviation

BELIEF = 3  # Estimates, or checks, that it takes until what they say counts half
_LATEST = 40  # Older ones are forgotten: machines change


def file() -> Path:
    """File of the residuals."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "scalescope" / "residuals-v2.jsonl"


def remember(checks: Sequence[Check], factor: float, engine: str, model: str) -> str:
    """Remember the undisturbed checks of one estimate as one residual; a warning when that fails, otherwise "".

    Args:
        checks: Checks of one estimate.
        factor: The calibration that their predictions already contain.
        engine: Engine that was estimated.
        model: Model that was estimated.
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


def calibration(engine: str, model: str) -> tuple[Calibration | None, str]:
    """Read what is remembered of this engine on this machine, and a warning when some of it cannot be read."""
    found, damaged = [], 0
    try:
        for line in complete_lines(file()):
            try:
                found.append(decode(line, Residual, str(file())))
            except ScalescopeError:
                damaged += 1
    except OSError as problem:
        return None, f"what earlier estimates here learned cannot be read ({file()}: {problem.strerror}); remove it"
    by_model: dict[str, list[float]] = {}
    here = [one for one in found if (one.hostname, one.engine) == (platform.node(), engine)]
    for one in [one for one in here if math.isfinite(one.log_error)][-_LATEST:]:
        by_model.setdefault(one.model, []).append(one.log_error)
    own = by_model.pop(model, [])
    warning = f"{damaged} damaged lines of {file()} were skipped; remove that file to forget them" if damaged else ""
    return calibrate(own, list(by_model.values()), find_engine(engine).model_error), warning


def calibrate(
    own: Sequence[float], others: Sequence[Sequence[float]] = (), usual: float = Engine.model_error
) -> Calibration | None:
    """A factor that is believed the more, the more estimates were checked, and what remains uncertain.

    All come from medians: one estimate that went wrong moves none. Another model counts once however often it was
    estimated, and this one corrects what the others say.

    Args:
        own: Logarithms of measured over predicted, of this model.
        others: Those of other models, a list each.
        usual: Spread before anything was checked.
    """
    everything = [*own, *(error for errors in others for error in errors)]
    if not everything:
        return None
    shift = 0.0
    for errors in ([median(errors) for errors in others], own):
        if errors:
            shift += len(errors) / (len(errors) + BELIEF) * (median(errors) - shift)
    believed = len(everything) / (len(everything) + BELIEF)
    seen = max(robust_deviation(everything), usual / 2) if len(everything) > 2 else usual
    left = median(own or everything) - shift
    return Calibration(
        estimates=len(everything),
        factor=math.exp(shift),
        spread=math.sqrt(believed * seen**2 + (1 - believed) * usual**2 + left**2),
        mean_error=fmean(abs(math.expm1(-error)) for error in everything),
    )
