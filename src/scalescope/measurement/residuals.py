"""What earlier checks on this machine said about estimates: kept in the user's cache, read by the next estimate."""

import math
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from scalescope.prediction.grid import RESIDUAL
from scalescope.records.prediction import Calibration, Check, Residual
from scalescope.records.store import append, drop_torn_line, load_lines

_BELIEF = 3
"""Checks that it takes until what they say counts more than that nothing is wrong."""
_LATEST = 40
"""Older checks are forgotten: machines change."""


def file() -> Path:
    """Where they are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "scalescope" / "residuals.jsonl"


def keep(checks: Sequence[Check], factor: float, engine: str, model: str) -> None:
    """Remember checks; `factor` is the calibration that their predictions already contain."""
    drop_torn_line(file())
    for check in checks:
        append(
            Residual(
                hostname=platform.node(),
                engine=engine,
                model=model,
                np=check.np,
                batch=check.batch,
                log_error=math.log(check.measured_s / check.predicted_s * factor),
                seconds_since_epoch=time.time(),
            ),
            file(),
        )


def calibration(engine: str) -> Calibration | None:
    """What is remembered of this engine on this machine; None when nothing is."""
    here = [one for one in load_lines(file(), Residual) if one.hostname == platform.node() and one.engine == engine]
    return calibrate([one.log_error for one in here[-_LATEST:]])


def calibrate(log_errors: Sequence[float]) -> Calibration | None:
    """A factor that is believed the more, the more checks there are, and what remains uncertain beside it."""
    if not log_errors:
        return None
    count = len(log_errors)
    believed = count / (count + _BELIEF)
    shift = believed * fmean(log_errors)
    own = stdev(log_errors) if count > 1 else RESIDUAL
    spread = math.sqrt(believed * own**2 + (1 - believed) * RESIDUAL**2 + (fmean(log_errors) - shift) ** 2)
    return Calibration(
        checks=count,
        factor=math.exp(shift),
        spread=spread,
        mean_error=fmean(abs(math.expm1(-error)) for error in log_errors),
    )
