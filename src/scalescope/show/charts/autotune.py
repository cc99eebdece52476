"""The chart of an autotune log: scores as they came, and samples of one setting joined."""

from typing import Any

import altair as alt

from scalescope.records.autotune import Autotune
from scalescope.show.autotune import SWITCHES, knob_words, verdict_words
from scalescope.show.charts.parts import IDEAL_COLOUR, IDEAL_DASH, Rows, data, frame, named, palette, ring
from scalescope.show.document import Figure
from scalescope.text import plain, plural

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#332288", "#d55e00", "#56b4e9", "#808080")
_MOST = 2000  # Samples that are drawn


def scores_chart(record: Autotune) -> Any:
    """Scores in the order of the samples, the best so far, and samples of one setting joined."""
    rows: Rows = []
    best: Rows = []
    for number, sample in enumerate(record.samples, start=1):
        switches = [
            f"{SWITCHES[each.name]} {'on' if sample.knobs.switches[each.name] else 'off'}" for each in record.walked
        ]
        rows.append(
            {
                "sample": number,
                "group": sample.setting,
                "setting": knob_words(record, sample.knobs),
                "score": sample.score,
                "samples of this setting": record.settings[sample.setting].samples,
                "switches": ", ".join(switches) or "all samples",
            }
        )
        if not best or sample.score > best[-1]["score"]:
            best.append({"sample": number, "score": sample.score})
    best.append({**best[-1], "sample": len(rows)})
    winner, rows = rows[record.winner], rows[:_MOST]
    kinds = list(dict.fromkeys(row["switches"] for row in rows))
    legend = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=400) if len(kinds) > 1 else None
    colour = named("switches", dict(zip(kinds, palette(_COLOURS, len(kinds)), strict=True)), legend)
    x = alt.X("sample:Q", title="sample", scale=alt.Scale(domain=[0, len(record.samples) + 1], nice=False))
    y = alt.Y("score:Q", title="score, MB/s (higher is better)")
    repeated = [row for row in rows if row["samples of this setting"] > 1]
    tooltip = ["sample:Q", "setting:N", alt.Tooltip("score:Q", format=".4~g"), "samples of this setting:Q"]
    leads, colon, beats = verdict_words(record).partition(": ")
    left_out = len(record.samples) > _MOST
    return alt.layer(
        alt.Chart(data(best))
        .mark_line(interpolate="step-after", color=IDEAL_COLOUR, strokeDash=IDEAL_DASH)
        .encode(x=x, y=y),
        alt.Chart(data(repeated)).mark_line().encode(x=x, y=y, color=colour, detail="group:N", order="sample:Q"),
        alt.Chart(data(rows))
        .mark_point(filled=True, size=55, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=tooltip),
        ring(winner).encode(x=x, y=y),
        width=560,
        height=300,
        **frame(
            f"What autotune tried: {plain(record.file, 60)}",
            f"{plural(len(record.samples), 'sample')} of {plural(len(record.settings), 'setting')}; the winner "
            f"{leads}{colon.rstrip()}",
            beats,
            f"dashed: the best so far; ring: {'its choice' if record.finished else 'the best'}"
            + ("; joined: samples of one setting" if repeated else ""),
            f"of {len(record.samples):,} samples the first {_MOST:,} are drawn" if left_out else "",
        ),
    )


CHARTS = (
    Figure(
        "autotune_scores",
        "autotune",
        "Scores in their order; joined points are one setting sampled again, which shows the noise.",
        scores_chart,
    ),
)
