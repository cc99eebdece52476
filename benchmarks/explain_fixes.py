"""What explain says that a fix would save, beside what it saved: every job is run, explained, mended and run again."""

from statistics import median
from typing import Any, NamedTuple

from benchmarks.explain_truth import explained
from benchmarks.table import print_table
from scalescope.records.explanation import Explanation


class Fix(NamedTuple):
    """A slow job, the finding that is expected, and the same job mended."""

    finding: str
    engine: str
    slow: tuple[str, ...]
    mended: tuple[str, ...] = ()
    slow_env: dict[str, str] = {}


FIXES = (
    Fix("straggler", "ddp", ("--late-ms", "20")),
    Fix("straggler", "horovod", ("--late-ms", "20")),
    Fix("input_bound", "ddp", ("--loader-ms", "20"), ("--loader-ms", "20", "--workers", "4")),
    Fix("long_cycle", "horovod", (), (), {"HOROVOD_CYCLE_TIME": "60"}),
    Fix(
        "small_messages",
        "ddp",
        ("--bucket-mb", "0.002", "--layers", "40", "--width", "128"),
        ("--layers", "40", "--width", "128"),
    ),
)
ROUNDS = 3


def run() -> list[dict[str, Any]]:
    """Slow and mended jobs by turns; medians over rounds."""
    rows, details = [], []
    for fix in FIXES:
        saved, predicted, gains, before = [], [], [], []
        for _ in range(ROUNDS):
            slow = explained(fix.engine, "", *fix.slow, env=fix.slow_env)
            mended = explained(fix.engine, "", *fix.mended)
            found = next((each for each in slow.findings if each.id == fix.finding), None)
            step, then = _step_s(slow), _step_s(mended)
            said = step - step / (1 + found.gain) if found and found.gain is not None else 0.0
            saved.append(step - then)
            predicted.append(said)
            gains.append(step / then)
            before.append(step)
            details.append(
                {
                    "finding": fix.finding,
                    "engine": fix.engine,
                    "before ms": step * 1e3,
                    "after ms": then * 1e3,
                    "saved ms": (step - then) * 1e3,
                    "predicted ms": said * 1e3,
                }
            )
        rows.append(
            {
                "finding": fix.finding,
                "engine": fix.engine,
                "step before ms": median(before) * 1e3,
                "real gain": median(gains),
                "saved ms": median(saved) * 1e3,
                "predicted ms": median(predicted) * 1e3,
                "error %": 100 * (median(predicted) / median(saved) - 1),
            }
        )
    print_table(details)
    return rows


def _step_s(explanation: Explanation) -> float:
    """The typical step while it was traced: what the finding is about."""
    assert explanation.step_s is not None
    return explanation.step_s
