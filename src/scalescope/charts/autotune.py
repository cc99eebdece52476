"""Drawings of an autotune log: scores as they came, and where in the space of knobs they lie."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from scalescope.charts.parts import IDEAL_COLOUR, IDEAL_DASH, Rows, data, frame, named, palette, panel_title, ring
from scalescope.records.autotune import (
    CYCLE_SPACE_MS,
    DEFAULT_CYCLE_MS,
    DEFAULT_FUSION_MB,
    DEFAULT_SWITCHES,
    FUSION_SPACE_MB,
    Autotune,
    Knobs,
    Sample,
)
from scalescope.report.autotune import DEFAULT_WORDS, SWITCH_WORDS, knob_words, recommended, verdict_words, winning
from scalescope.text import plain, plural

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#332288", "#d55e00", "#56b4e9", "#808080")
_USE_COLOUR = "#111111"
_WIDTH, _HEIGHT = 560, 300
_MOST = 2000  # Samples that are drawn
_LEAST_CYCLE_MS = 0.1
_CYCLE_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_FUSION_TICKS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOOLTIP = [
    alt.Tooltip("sample:Q", title="sample"),
    alt.Tooltip("line:Q", title="line of the log"),
    alt.Tooltip("knobs:N", title="setting"),
    alt.Tooltip("score:Q", title="score (MB/s)", format=".4~g"),
    alt.Tooltip("repeats:Q", title="samples of this setting"),
]
_SETTING_TOOLTIP = [
    alt.Tooltip("knobs:N", title="setting"),
    alt.Tooltip("score:Q", title="score (MB/s)", format=".4~g"),
    alt.Tooltip("repeats:Q", title="samples"),
    alt.Tooltip("low:Q", title="lowest", format=".4~g"),
    alt.Tooltip("high:Q", title="highest", format=".4~g"),
]


def scores_chart(record: Autotune) -> Any:
    """Scores in the order of the samples, the best so far, and samples of one setting joined."""
    rows = _rows(record)
    combinations = list(dict.fromkeys(row["switches"] for row in rows))
    colours = palette(_COLOURS, len(combinations))
    legend = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=400) if len(combinations) > 1 else None
    colour = named("switches", dict(zip(combinations, colours, strict=True)), legend)
    x = alt.X("sample:Q", title="sample", scale=alt.Scale(domain=[0, len(record.samples) + 1], nice=False))
    y = alt.Y("score:Q", title="score, MB/s (higher is better)", scale=alt.Scale(zero=True))
    running = _running_best(record.samples)
    repeated = [row for row in rows if row["repeats"] > 1]
    layers = [
        alt.Chart(data(running))
        .mark_line(interpolate="step-after", color=IDEAL_COLOUR, strokeDash=IDEAL_DASH, strokeWidth=1.3)
        .encode(x=x, y=y)
    ]
    if repeated:
        joined = alt.Chart(data(repeated)).mark_line(strokeWidth=1.4, opacity=0.75)
        layers.append(joined.encode(x=x, y=y, color=colour, detail="setting:N", order="sample:Q"))
    layers.append(
        alt.Chart(data(rows))
        .mark_point(filled=True, size=55, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=_TOOLTIP)
    )
    layers.append(_ring(record).encode(x=x, y=y))
    return alt.layer(
        *layers,
        width=_WIDTH,
        height=_HEIGHT,
        **frame(
            f"What autotune tried: {plain(record.file, 60)}",
            *_headlines(record),
            f"dashed: the best so far; ring: {'its choice' if record.finished else 'the best'}"
            + ("; joined: samples of one setting" if repeated else ""),
            _left_out(record),
        ),
    )


def autotune_landscape_chart(record: Autotune) -> Any:
    """Settings over cycle time and fusion threshold, coloured by score, one panel per position of the switches."""
    rows = _setting_rows(record)
    combinations = list(dict.fromkeys(row["switches"] for row in rows))
    scores = [row["score"] for row in rows]
    domain = [min(scores) if min(scores) < max(scores) else 0.0, max(scores)]
    repeated = max(row["repeats"] for row in rows)
    look = {
        "color": alt.Color("score:Q", title="score, MB/s", scale=alt.Scale(scheme="viridis", domain=domain)),
        "size": alt.Size("repeats:Q", scale=alt.Scale(domain=[1, max(repeated, 2)], range=[90, 220]), legend=None),
    }
    x, y = _axes(rows)
    several = len(combinations) > 1
    choice = "its choice" if record.finished else "the best"
    return alt.concat(
        *(
            _panel(record, [row for row in rows if row["switches"] == name], x, y, look, several)
            for name in combinations
        ),
        columns=2,
        spacing=26,
        **frame(
            f"Where autotune looked: {plain(record.file, 60)}",
            *_headlines(record),
            f"ring: {choice}; square: recommended; cross: {DEFAULT_WORDS}"
            + ("" if record.default_tried else ", never tried"),
            "grey: the space that autotune searches" + ("; large: sampled again, the mean" if repeated > 1 else ""),
            _left_out(record),
        ),
    )


def _panel(record: Autotune, rows: Rows, x: alt.X, y: alt.Y, look: dict[str, Any], several: bool) -> Any:
    """The settings of one position of the switches."""
    name = rows[0]["switches"]
    (left, right), (low, high) = CYCLE_SPACE_MS, FUSION_SPACE_MB
    space = alt.Chart(data([{"cycle": left, "right": right, "fusion": low, "top": high}]))
    settings = alt.Chart(data(rows)).mark_point(filled=True, opacity=1, stroke="white", strokeWidth=0.8)
    layers = [
        space.mark_rect(color="#f1f1f1").encode(x=x, x2="right", y=y, y2="top"),
        settings.encode(x=x, y=y, tooltip=_SETTING_TOOLTIP, **look),
    ]
    if name == _switch_words(record, DEFAULT_SWITCHES):
        cross = alt.Chart(data([{"cycle": DEFAULT_CYCLE_MS, "fusion": DEFAULT_FUSION_MB}]))
        shape = "M-1,-1L1,1M-1,1L1,-1"
        layers.append(cross.mark_point(shape=shape, size=45, stroke="#555555", strokeWidth=1.8).encode(x=x, y=y))
    use = recommended(record).knobs
    if name == _switch_words(record, use.switches):
        square = alt.Chart(data([{"cycle": _drawn_cycle(use), "fusion": use.fusion_threshold_mb}]))
        layers.append(
            square.mark_point(
                shape="square", size=420, fill=None, stroke=_USE_COLOUR, strokeWidth=1.6, opacity=1
            ).encode(x=x, y=y)
        )
    if name == _switch_words(record, winning(record).knobs.switches):
        layers.append(_ring(record).encode(x=x, y=y))
    title = panel_title(name) if several else alt.Undefined
    size = {"width": 330, "height": 240} if several else {"width": _WIDTH, "height": 340}
    return alt.layer(*layers, title=title, **size)


def _axes(rows: Rows) -> tuple[alt.X, alt.Y]:
    """Octaves of the cycle time, and of the fusion threshold above 1 MiB."""
    cycles = [CYCLE_SPACE_MS[0], CYCLE_SPACE_MS[1], *(row["cycle"] for row in rows)]
    fusions = [FUSION_SPACE_MB[0], DEFAULT_FUSION_MB, *(row["fusion"] for row in rows)]
    low, high = min(cycles) / 1.25, max(cycles) * 1.25
    across = alt.X(
        "cycle:Q",
        title="cycle time, ms",
        scale=alt.Scale(type="log", domain=[low, high], nice=False, clamp=True),
        axis=_whole_ticks([tick for tick in _CYCLE_TICKS if low <= tick <= high]),
    )
    top = max(fusions) * 1.4
    down = alt.Y(
        "fusion:Q",
        title="fusion threshold, MiB",
        scale=alt.Scale(type="symlog", constant=1, domain=[min(fusions) - 0.15, top], nice=False),
        axis=_whole_ticks([tick for tick in _FUSION_TICKS if tick <= top]),
    )
    return across, down


def _whole_ticks(values: list[float]) -> alt.Axis:
    """Ticks that are written as they are: the axis' own format rounds 128 to two digits."""
    return alt.Axis(values=values, labelExpr="toString(datum.value)", grid=False)


def _rows(record: Autotune) -> Rows:
    """One row per sample; of very many the first."""
    return [
        {
            "sample": number,
            "line": sample.line,
            "setting": sample.setting,
            "repeats": record.settings[sample.setting].samples,
            "score": sample.score,
            "knobs": knob_words(record, sample.knobs),
            "switches": _switch_words(record, sample.knobs.switches),
        }
        for number, sample in enumerate(record.samples[:_MOST], start=1)
    ]


def _drawn_cycle(knobs: Knobs) -> float:
    """On a logarithmic axis."""
    return max(knobs.cycle_time_ms, _LEAST_CYCLE_MS)


def _setting_rows(record: Autotune) -> Rows:
    return [
        {
            "repeats": setting.samples,
            "cycle": _drawn_cycle(setting.knobs),
            "fusion": setting.knobs.fusion_threshold_mb,
            "score": setting.score,
            "low": setting.low,
            "high": setting.high,
            "knobs": knob_words(record, setting.knobs),
            "switches": _switch_words(record, setting.knobs.switches),
        }
        for setting in record.settings[:_MOST]
    ]


def _running_best(samples: Sequence[Sample]) -> Rows:
    rows: Rows = []
    for number, sample in enumerate(samples, start=1):
        if not rows or sample.score > rows[-1]["score"]:
            rows.append({"sample": number, "score": sample.score})
    return [*rows, {"sample": len(samples), "score": rows[-1]["score"]}]


def _ring(record: Autotune) -> Any:
    winner = record.samples[record.winner]
    row = {
        "sample": record.winner + 1,
        "score": winner.score,
        "cycle": _drawn_cycle(winner.knobs),
        "fusion": winner.knobs.fusion_threshold_mb,
    }
    return ring(row)


def _switch_words(record: Autotune, switches: dict[str, bool]) -> str:
    """`hierarchical allgather off, cache on`: of those that were tried both ways."""
    named = [f"{SWITCH_WORDS[each.name]} {'on' if switches[each.name] else 'off'}" for each in record.walked]
    return ", ".join(named) or "all samples"


def _headlines(record: Autotune) -> list[str]:
    count = f"{plural(len(record.samples), 'sample')} of {plural(len(record.settings), 'setting')}"
    leads, colon, beats = verdict_words(record).partition(": ")
    return [f"{count}; the winner {leads}{colon.rstrip()}", beats]


def _left_out(record: Autotune) -> str:
    more = len(record.samples) - _MOST
    return f"of {len(record.samples):,} samples the first {_MOST:,} are drawn" if more > 0 else ""
