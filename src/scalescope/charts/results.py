"""The figures of everything that is known about one training, for the page and for --figures."""

from collections.abc import Sequence
from typing import Any

from scalescope.records.results import Results

MOST_CELLS = 1600  # Of the maps on a page: it stays below 3 MB, and nobody reads more


def results_charts(results: Results, *, most_cells: int = MOST_CELLS) -> dict[str, Any]:
    """Every figure by name, in the order of the page; what nothing is known for is absent.

    Args:
        results: What was predicted, measured, explained and tuned.
        most_cells: Cells that the map draws.
    """
    from scalescope.charts import charts
    from scalescope.charts.checks import checks_chart
    from scalescope.charts.map import map_chart
    from scalescope.report.study import with_measured
    from scalescope.show.charts.explanation import accounting_over_np, timelines_chart

    drawn: dict[str, Any] = {}
    if results.prediction:
        checked = with_measured(results.prediction, results.scaling)
        drawn |= {
            "map": map_chart(results.prediction, checks=checked.checks, most=most_cells),
            "checks": checks_chart(checked),
        }
    if results.scaling:
        of_scaling = charts(results.scaling)
        drawn |= {name: of_scaling.get(name) for name in ("strong", "weak", "batch", "speedup", "waterfall", "phases")}
    if results.predicted_step and not results.explanations:
        drawn["step"] = timelines_chart({"": results.predicted_step}, "One step, predicted: the recommended setting")
    for index, explanation in enumerate(results.explanations, start=1):
        ending = f"-{index}" if len(results.explanations) > 1 else ""
        of_traces = charts(explanation)
        for name in ("step", "accounting", "step_times", "transfers"):
            drawn[f"{name}{ending}"] = of_traces.get(name)
    if len(results.explanations) > 1:
        drawn["accounting_over_np"] = accounting_over_np(results.explanations)
    for record in (results.tuning, results.autotune):
        drawn |= charts(record) if record else {}
    if results.cluster and results.cluster.costs:
        drawn |= charts(results.cluster)
    return {name: chart for name, chart in drawn.items() if chart is not None}


def compared_charts(several: Sequence[Results]) -> dict[str, Any]:
    """The accounting of several jobs in one figure; empty where fewer than two have steps."""
    from scalescope.show.charts.explanation import accounting_over_np

    traced = [each for each in several if each.explanations]
    if len(traced) < 2:
        return {}
    chart = accounting_over_np([each.explanations[-1] for each in traced], [each.name for each in traced])
    return {} if chart is None else {"accounting_compared": chart}
