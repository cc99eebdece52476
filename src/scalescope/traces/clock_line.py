"""The line that brings one clock to another, through moments of which some were written down late."""

import numpy as np

from scalescope.intervals import Times

_FITTED = 400  # Pairs from which the slope is found; more are thinned out evenly
_GREATEST_DRIFT = 1e-3
_SURE = 4.0  # Standard errors that a drift must be away from none
_OUTLIER = 3.0


def line(mine: Times, first: Times) -> tuple[float, float, float]:
    """Offset, drift and typical distance; a drift only where the pairs are sure of it."""
    difference = first - mine
    drift = _drift(mine, difference)
    rest = difference - drift * mine
    offset, _ = densest(rest, 1 / 3)
    _, residual = densest(rest, 1 / 2)
    return offset, drift, residual


def densest(values: Times, share: float) -> tuple[float, float]:
    """Middle and half width of the shortest stretch with this share of the values.

    A busy rank writes down its ends late, and always late: the middle of all values would be pulled to one side.
    """
    ordered = np.sort(values)
    count = min(len(ordered), max(5, int(np.ceil(share * len(ordered)))))
    widths = ordered[count - 1 :] - ordered[: len(ordered) - count + 1]
    at = int(widths.argmin())
    return float(np.median(ordered[at : at + count])), float(widths[at]) / 2


def _drift(times: Times, difference: Times) -> float:
    """The median slope, made better by a line through what is not an outlier."""
    if len(times) < 8:
        return 0.0
    thin = np.linspace(0, len(times) - 1, min(_FITTED, len(times))).astype(int)
    first, second = np.triu_indices(len(thin), k=1)
    run = times[thin][second] - times[thin][first]
    rise = difference[thin][second] - difference[thin][first]
    slope = float(np.median(rise[run != 0] / run[run != 0])) if run.any() else 0.0
    error = np.inf
    for _ in range(5):
        rest = difference - slope * times
        middle, width = densest(rest, 1 / 2)
        kept = np.abs(rest - middle) <= _OUTLIER * max(width, 1e-7)
        centred = times[kept] - times[kept].mean()
        spread = float((centred**2).sum())
        if kept.sum() < 8 or spread <= 0:
            return 0.0
        slope = float((centred * difference[kept]).sum() / spread)
        error = float(np.std(rest[kept])) / np.sqrt(spread)
    return slope if _SURE * error < abs(slope) <= _GREATEST_DRIFT else 0.0
