"""Searches over the landscapes that are kept: constants were chosen on some of them, the others report."""

from typing import Any

from benchmarks.tune_grid import load, truth_of
from benchmarks.tune_peers import compare
from benchmarks.tune_record import CASES, KEPT
from benchmarks.tune_section import decisions
from scalescope.tuner.search import ONLINE


def run() -> list[dict[str, Any]]:
    """Per landscape: how well the simulator orders it, and every method's samples to a good setting."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        landscape = load(KEPT / f"{case.name}.json")
        if landscape is None:
            continue
        assert landscape.survey
        landscape.predicted = landscape.space.predict(landscape.survey)  # by the simulator of today
        truth = truth_of(landscape)
        about = {
            "landscape": case.name,
            "constants": "chosen on it" if case.chosen_on else "held out",
            "settings": len(truth.step_s),
            "good": len(truth.good),
            "best gain %": 100 * truth.gain(truth.best),
            "order of the simulator": order(landscape.predicted or [], truth.step_s),
        }
        found = [*compare(landscape, truth, ONLINE), decisions(landscape, truth, ONLINE)]
        rows += [{**(about if row is found[0] else dict.fromkeys(about)), **_short(row)} for row in found]
    return rows


def order(predicted: list[float], measured: list[float]) -> float | None:
    """Spearman's rank correlation: 1 is the right order."""
    from scipy.stats import spearmanr

    return float(spearmanr(predicted, measured).statistic) if predicted else None


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = ("method", "samples, median", "90 %", "samples made", "from the best %", "true gain %", "decision")
    return {name: row.get(name) for name in names}
