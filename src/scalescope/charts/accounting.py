"""Where a step goes: one bar per rank, or per number of ranks, cut into its parts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt

from scalescope.records.explanation import Explanation
from scalescope.records.timeline import Breakdown
from scalescope.report.explanation import (
    DARK,
    HIDDEN_COLOUR,
    PARTS,
    Part,
    engine_words,
    parts_shown,
    seconds_of,
    share,
    straggler_words,
)
from scalescope.show.charts.parts import Rows, data, frame, lane_axis, named
from scalescope.text import plain, plural
from scalescope.units import format_seconds, unit_of

_WIDTH = 560
_MANY, _MOST = 10, 64  # Bars from which on they are low, and that are drawn at most
_ROOM = 0.055  # Of the axis, for a percentage inside its part
_HIDDEN, _POSSIBLY = "hidden communication", "possibly hidden communication"
_BAR, _BELOW = (0.12, 0.72), (0.76, 0.92)  # Of a row's height: the parts, and what is hidden below them


class _Bar(NamedTuple):
    """One step."""

    label: str
    parts: Breakdown
    possibly_s: float | None
    late_s: float | None


def accounting_chart(explanation: Explanation) -> Any:
    """The typical steady step of every rank; None without steps."""
    accounts = explanation.per_rank
    if explanation.accounting is None:
        return None
    slowest = max(accounts, key=lambda account: account.parts.step_s).rank if len(accounts) > 1 else None
    kept = [account for account in accounts if account.rank in (slowest, explanation.straggler)]
    kept += [account for account in accounts if account not in kept][: _MOST - len(kept)]
    bars = [
        _Bar(
            f"rank {account.rank}" + (" (straggler)" if account.rank == explanation.straggler else ""),
            account.parts,
            explanation.possibly_hidden_s if len(accounts) == 1 else None,
            account.late_s,
        )
        for account in sorted(kept, key=lambda account: account.rank)
    ] or [_Bar("mean", explanation.accounting, explanation.possibly_hidden_s, None)]
    fewer = f"{len(bars)} of {len(accounts):,} ranks are drawn" if len(bars) < len(accounts) else ""
    return _chart(
        bars,
        f"Where a step goes: {plain(explanation.what, 60)}",
        f"mean over steady steps, {engine_words(explanation)}",
        straggler_words(explanation),
        fewer,
    )


def accounting_over_np(explanations: Sequence[Explanation], names: Sequence[str] = ()) -> Any:
    """The mean step of several jobs, from few ranks to many; None without steps.

    Args:
        explanations: The jobs.
        names: Of their files or folders, which tell jobs of the same size apart.
    """
    told = names or [""] * len(explanations)
    known = [(each, each.accounting, name) for each, name in zip(explanations, told, strict=True) if each.accounting]
    if not known:
        return None
    known.sort(key=lambda job: (_ranks(job[0]), job[0].engine))
    several_engines = len({each.engine for each, _, _ in known}) > 1
    sizes = [
        plural(_ranks(each), "rank") + (f", {plain(each.engine, 24)}" if several_engines else "")
        for each, _, _ in known
    ]
    if len(set(sizes)) < len(sizes) and names:
        alike = len(set(sizes)) == 1
        sizes = [
            plain(name, 40) if alike else f"{plain(name, 40)}: {size}"
            for size, (_, _, name) in zip(sizes, known, strict=True)
        ]
    bars = [
        _Bar(f"{size} #{again + 1}" if (again := sizes[:at].count(size)) else size, parts, each.possibly_hidden_s, None)
        for at, (size, (each, parts, _)) in enumerate(zip(sizes, known[:_MOST], strict=False))
    ]
    models = list(dict.fromkeys(plain(each.what, 40) for each, _, _ in known))
    what = models[0] if len(models) == 1 else f"{len(known)} jobs"
    return _chart(bars, f"Where a step goes over ranks: {what}", "mean over steady steps and ranks")


def _ranks(explanation: Explanation) -> int:
    return explanation.world_size or len(explanation.ranks)


def _chart(bars: Sequence[_Bar], title: str, *lines: str) -> Any:
    longest = max(bar.parts.step_s for bar in bars) or 1.0
    unit, factor = unit_of(longest)
    shown = parts_shown([bar.parts for bar in bars])
    rows = [row for index, bar in enumerate(bars) for row in _rows(index, bar, factor, longest, shown)]
    totals = [
        {"row": index, "end": factor * bar.parts.step_s, "words": format_seconds(bar.parts.step_s)}
        for index, bar in enumerate(bars)
    ]
    colours = {**{part.name: part.colour for part in shown}, _HIDDEN: HIDDEN_COLOUR, _POSSIBLY: "#f3e488"}
    there = {row["part"] for row in rows}
    domain = [0, 1.1 * factor * longest]
    x = alt.X(
        "start:Q", title=f"{unit} of a step", scale=alt.Scale(domain=domain, nice=False), axis=alt.Axis(grid=False)
    )
    y = lane_axis({index + sum(_BAR) / 2: bar.label for index, bar in enumerate(bars)}, len(bars))
    legend = alt.Legend(title=None, orient="bottom", symbolType="square", columns=4, labelLimit=200)
    color = named("part", {name: colour for name, colour in colours.items() if name in there}, legend)
    tooltip = [
        alt.Tooltip("rank:N", title="step of"),
        alt.Tooltip("part:N", title="part"),
        alt.Tooltip("took:N", title="time"),
        alt.Tooltip("percent:N", title="of the step"),
        alt.Tooltip("late:N", title="late to collectives"),
    ]
    base = alt.Chart(data(rows))
    place = {"x": x, "x2": alt.X2("end"), "y": y, "y2": alt.Y2("bottom")}
    absent = [part.name for part in PARTS if all(seconds_of(part, bar.parts) is None for bar in bars)]
    note = f"not told by this source, and in other: {', '.join(absent)}" if absent else ""
    return alt.layer(
        base.mark_rect(stroke="white", strokeWidth=0.6).encode(**place, color=color, tooltip=tooltip),
        base.transform_filter("datum.words != ''")
        .transform_calculate(middle="(datum.start + datum.end) / 2", height="(datum.top + datum.bottom) / 2")
        .mark_text(fontSize=10)
        .encode(
            x=alt.X("middle:Q"),
            y=alt.Y("height:Q"),
            text="words:N",
            color=alt.condition("datum.dark", alt.value("white"), alt.value("#222222")),
        ),
        alt.Chart(data(totals))
        .transform_calculate(height=f"datum.row + {sum(_BAR) / 2}")
        .mark_text(align="left", dx=5, fontSize=11, color="#333333")
        .encode(x=alt.X("end:Q"), y=alt.Y("height:Q"), text="words:N"),
        width=_WIDTH,
        height=(36 if len(bars) <= _MANY else 24) * len(bars),
        **frame(title, *lines, note),
    )


def _rows(index: int, bar: _Bar, factor: float, longest: float, shown: Sequence[Part]) -> Rows:
    """The parts one after the other, and what is hidden below what hides it."""
    rows: Rows = []
    parts, at, compute_end = bar.parts, 0.0, 0.0
    for part in shown:
        seconds = seconds_of(part, parts)
        if seconds:
            lane = {"top": index + _BAR[0], "bottom": index + _BAR[1], "dark": part.key in DARK}
            words = f"{100 * share(seconds, parts):.0f} %" if seconds > _ROOM * longest else ""
            rows.append({**_fields(bar, part.name, at, seconds, factor), **lane, "words": words})
            at += seconds
        compute_end = at if part.key == "compute" else compute_end
    below = {"top": index + _BELOW[0], "bottom": index + _BELOW[1], "dark": False, "words": ""}
    if parts.hidden_s:
        begin = max(0.0, compute_end - parts.hidden_s)
        rows.append({**_fields(bar, _HIDDEN, begin, parts.hidden_s, factor), **below})
    elif bar.possibly_s:
        begin = max(0.0, at - bar.possibly_s)
        rows.append({**_fields(bar, _POSSIBLY, begin, bar.possibly_s, factor), **below})
    return rows


def _fields(bar: _Bar, part: str, begin: float, seconds: float, factor: float) -> dict[str, Any]:
    return {
        "rank": bar.label,
        "part": part,
        "start": factor * begin,
        "end": factor * (begin + seconds),
        "took": format_seconds(seconds),
        "percent": f"{100 * share(seconds, bar.parts):.1f} %",
        "late": "-" if bar.late_s is None else format_seconds(bar.late_s),
    }
