"""Phases on a made-up clock: exact times, no processes."""

import json
from pathlib import Path

import pytest

from scalescope.measurement.phases import split_into_phases
from scalescope.measurement.rank_log import RankLog
from scalescope.records.run import PHASES

S = 1_000_000_000


def rank_log(folder: Path, *lines: dict) -> RankLog:
    path = folder / "agent-h-1.jsonl"
    hello = {"kind": "hello", "version": 1, "host": "h", "pid": 1, "rank": 0, "wall_ns": 1000 * S, "t": 50 * S}
    path.write_text("".join(json.dumps(line) + "\n" for line in (hello, *lines)))
    log = RankLog(path)
    log.poll()
    return log


def step(start: float, end: float, optimizer: int = 0, samples: int = 8) -> dict:
    times = {"s": int(start * S), "f": int(start * S), "o": int(end * S), "t": int(end * S)}
    return {"kind": "step", **times, "w": 0, "n": samples, "i": optimizer}


def span(kind: str, start: float, end: float) -> dict:
    return {"kind": kind, "s": int(start * S), "t": int(end * S)}


def test_every_second_is_in_one_phase(tmp_path: Path) -> None:
    log = rank_log(
        tmp_path,
        {"kind": "import", "ns": 3 * S},
        span("init", 54, 56),
        step(60, 64),
        step(64, 65),
        step(65, 66),
        span("evaluation", 66.5, 68.5),
        step(70, 71),
        span("evaluation", 71, 72),
        span("save", 72, 72.5),
        {"kind": "end", "t": 73 * S},
    )
    launched, ended = 998 * S, 1024 * S  # the rank's clock shows 50 s at 1,000 s of the wall clock
    phases = split_into_phases(log, log.steps(), 1, (launched, ended))
    assert phases == pytest.approx(
        {
            "launch": 2,
            "import": 3,
            "init": 2,
            "build": 5,
            "warmup": 4,
            "steady": 3,
            "evaluation": 3,
            "pause": 2.5,
            "teardown": 1.5,
        }
    )
    assert tuple(phases) == PHASES
    assert sum(phases.values()) == pytest.approx((ended - launched) / S)


def test_imports_counted_twice_never_make_a_phase_negative(tmp_path: Path) -> None:
    log = rank_log(tmp_path, {"kind": "import", "ns": 30 * S}, span("init", 51, 53), step(55, 56))
    phases = split_into_phases(log, log.steps(), 0, (1000 * S, 1010 * S))
    assert phases["import"] == pytest.approx(3)
    assert phases["build"] == 0


def test_optimizers_in_turn_make_one_step_and_an_interruption_parts_them(tmp_path: Path) -> None:
    log = rank_log(tmp_path, step(60, 61, 0), step(61, 62, 1), step(62, 63, 0), step(63, 64, 1), step(70, 71, 0))
    assert [(each.start / S, each.end / S) for each in log.steps()] == [(60, 62), (62, 64), (70, 71)]


def test_gpu_times_replace_the_clock_where_they_are_known(tmp_path: Path) -> None:
    marks = [["begin", 0, 0], ["end", 1, 3 * S], ["end", 3, 7 * S], ["begin", 3, 9 * S], ["end", 4, 10 * S]]
    steps = [step(second, second + 1) for second in range(60, 65)]
    log = rank_log(tmp_path, *steps, {"kind": "gpu", "marks": marks})
    assert [each.seconds for each in log.steps()] == pytest.approx([3, 2, 2, 1, 1])


def test_a_torn_line_is_left_out_and_the_rest_kept(tmp_path: Path) -> None:
    log = rank_log(tmp_path, step(60, 61))
    with open(tmp_path / "agent-h-1.jsonl", "ab") as file:
        file.write(b'{"kind":"step","s":6\n' + json.dumps(step(61, 62)).encode() + b'\n{"kind":"st')
    log.poll()
    assert log.events == 2
