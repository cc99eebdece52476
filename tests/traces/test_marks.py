"""The agent's marks: read from whole and from torn files, and laid beside a Horovod timeline."""

import json
from pathlib import Path

import numpy as np
import pytest

from scalescope.errors import UsageError
from scalescope.intervals import Intervals, union, without
from scalescope.traces.marks import RankMarks, arrivals, read_marks, separate
from scalescope.traces.trace import Activities, Collectives, Trace, parts_of

EPOCH_S = 1_700_000_000.0
STEP_S = 0.1
"""Every step made here: 10 ms input, 30 ms forward, 40 ms backward, 10 ms of waiting and 5 ms for the optimizer."""


def made(
    path: Path, rank: int, *, steps: int = 6, late_s: float = 0.0, host: str = "a", clock_s: float = 0.0
) -> RankMarks:
    """A file as the agent writes it, read; `late_s` is spent before the backward ends and is not waited for."""

    def at(seconds: float) -> int:
        return round((5000 + seconds) * 1e9)

    def span(step: int, begin: float, end: float) -> list[list[int]]:
        return [[at(step * STEP_S + begin), at(step * STEP_S + end)]]

    hello = {"kind": "hello", "version": 1, "rank": rank, "world_size": 2, "host": host, "engine": "horovod"}
    lines = [{**hello, "device": "cpu", "t": at(0), "wall_ns": round((EPOCH_S + clock_s) * 1e9)}]
    for number in range(steps):
        parts = {
            "input": span(number, 0.0, 0.010),
            "forward": span(number, 0.010, 0.040),
            "backward": span(number, 0.040, 0.080 + late_s),
            "synchronize": span(number, 0.080 + late_s, 0.090),
            "optimizer": span(number, 0.080 + late_s, 0.095),
        }
        moments = {"s": at(number * STEP_S), "t": at((number + 1) * STEP_S)}
        lines.append({"kind": "step", "n": number, **moments, "traced": int(number < 4), **parts})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_marks(path)


def timeline(*, began_s: float = 2.0, steps: int = 4, epoch: bool = True) -> Trace:
    """A timeline that began before the first step, with an exchange from the middle of backward to the wait's end."""
    starts = began_s + np.arange(steps) * STEP_S
    exchange = Intervals(starts + 0.060, starts + 0.090)
    nothing = Collectives(np.zeros(0, object), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    parts = parts_of(Activities(exchange=exchange), [], [])
    return Trace(
        path=Path("timeline.json"),
        engine="horovod",
        rank=None,
        world_size=2,
        backend="gloo",
        device="cpu",
        epoch_s=EPOCH_S - began_s if epoch else 0.0,
        steps_from="gradients",
        starts_s=np.zeros(0),
        ends_s=np.zeros(0),
        parts=parts,
        collectives=nothing,
        exchange=exchange,
        notes=("as it was",),
    )


def test_moments_are_read_as_seconds_since_1970(tmp_path: Path) -> None:
    marks = made(tmp_path / "marks-rank1.jsonl", 1)
    assert (marks.rank, marks.world_size, marks.host, marks.engine) == (1, 2, "a", "horovod")
    assert marks.starts_s == pytest.approx(EPOCH_S + np.arange(6) * STEP_S, abs=1e-6)
    assert marks.backward.starts == pytest.approx(EPOCH_S + np.arange(6) * STEP_S + 0.04, abs=1e-6)
    assert marks.traced.tolist() == [True] * 4 + [False] * 2


def test_a_file_cut_anywhere_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "marks-rank0.jsonl"
    made(path, 0, steps=3)
    data = path.read_bytes()
    first = data.index(b"\n")
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        if cut < first:
            with pytest.raises(UsageError, match="holds no marks"):
                read_marks(path)
            continue
        # a line is whole without its break, too
        assert len(read_marks(path).numbers) == sum(cut >= end for end in _ends_of_steps(data))


def _ends_of_steps(data: bytes) -> list[int]:
    ends = [index for index, byte in enumerate(data) if byte == ord("\n")]
    return ends[1:]


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe not text",
        b'{"kind":"step","n":1,"s":5,"t":4}',
        b'{"kind":"step","n":1,"s":-5,"t":4}',
        b'{"kind":"step","n":1,"s":1,"t":99999999999999999999999999}',
        b'{"kind":"step","n":1,"s":1,"t":2,"forward":[[1]]}',
        b"[" * 5000,
        b"x" * 3_000_000,
        b"null",
    ],
    ids=["bytes", "backwards", "negative", "overflow", "half a span", "deep", "long", "null"],
)
def test_a_bad_line_is_left_out(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "marks-rank0.jsonl"
    made(path, 0, steps=3)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:3], line, *lines[3:]]) + b"\n")
    marks = read_marks(path)
    assert marks.numbers.tolist() == [0, 1, 2]


def test_every_part_of_a_step_is_apart_and_they_add_up(tmp_path: Path) -> None:
    marks = [made(tmp_path / f"marks-rank{rank}.jsonl", rank, late_s=rank * 0.005) for rank in (0, 1)]
    first, second = separate(timeline(), marks[::-1])
    assert (first.rank, second.rank) == (0, 1)
    assert first.steps_from == "marks"
    assert first.starts_s == pytest.approx(2.0 + np.arange(4) * STEP_S, abs=1e-6)  # only those the timeline covers
    expected = {"compute": 0.070, "exposed": 0.010, "hidden": 0.020, "input": 0.010, "optimizer": 0.005, "other": 0.005}
    for part, seconds in expected.items():
        assert getattr(first.parts, part) == pytest.approx(np.full(4, seconds), abs=2e-6), part
    assert second.parts.compute == pytest.approx(np.full(4, 0.075), abs=2e-6)
    assert second.parts.exposed == pytest.approx(np.full(4, 0.005), abs=2e-6)
    assert second.parts.hidden == pytest.approx(np.full(4, 0.025), abs=2e-6)
    parts = second.parts
    total = parts.compute + parts.exposed + parts.input + parts.optimizer + parts.other
    assert total == pytest.approx(parts.step, abs=1e-9)


def test_negotiation_before_a_ranks_backward_is_not_its_time(tmp_path: Path) -> None:
    marks = made(tmp_path / "marks-rank0.jsonl", 0)
    bare = timeline()
    long = Intervals(bare.exchange.starts - 0.055, bare.exchange.ends)  # another rank began 5 ms into this one's step
    (only,) = separate(Trace(**{**vars(bare), "exchange": long}), [marks])
    assert only.parts.input == pytest.approx(np.full(4, 0.010), abs=2e-6)
    assert only.parts.exposed == pytest.approx(np.full(4, 0.010), abs=2e-6)


def test_waiting_for_gradients_is_communication_even_where_the_timeline_shows_none(tmp_path: Path) -> None:
    marks = made(tmp_path / "marks-rank0.jsonl", 0)
    bare = timeline()
    short = Intervals(bare.exchange.starts, bare.exchange.ends - 0.008)
    (only,) = separate(Trace(**{**vars(bare), "exchange": short}), [marks])
    assert only.parts.exposed == pytest.approx(np.full(4, 0.010), abs=2e-6)


def test_a_timeline_without_a_date_stays_as_it_is_and_says_so(tmp_path: Path) -> None:
    marks = made(tmp_path / "marks-rank0.jsonl", 0)
    (only,) = separate(timeline(epoch=False), [marks])
    assert only.rank is None
    assert len(only.notes) == 2


def test_without_input_marks_input_is_absent_and_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "marks-rank0.jsonl"
    made(path, 0)
    path.write_text(path.read_text().replace('"input"', '"unknown"'))
    (only,) = separate(timeline(), [read_marks(path)])
    assert only.parts.input is None
    assert only.parts.other == pytest.approx(np.full(4, 0.015), abs=2e-6)


def test_compute_of_a_gpu_is_not_taken_from_host_marks(tmp_path: Path) -> None:
    path = tmp_path / "marks-rank0.jsonl"
    made(path, 0)
    path.write_text(path.read_text().replace('"cpu"', '"cuda"'))
    (only,) = separate(timeline(), [read_marks(path)])
    assert only.parts.compute is None
    assert only.parts.optimizer is None
    assert only.parts.hidden is None


def test_a_clock_of_another_host_is_moved_to_where_gradients_are_there_at_once(tmp_path: Path) -> None:
    here = made(tmp_path / "marks-rank0.jsonl", 0)
    there = made(tmp_path / "marks-rank1.jsonl", 1, host="b", clock_s=3.0, late_s=0.004)
    first, second = separate(timeline(), [here, there])
    assert second.starts_s == pytest.approx(first.starts_s, abs=1e-5)
    assert any("rank 1's clock was moved by -3.0" in note for note in second.notes)
    assert first.notes == ("as it was",)
    late = {rank: float(np.median(each)) for rank, each in arrivals([here, there]).items()}
    assert late == pytest.approx({0: 0.0, 1: 0.004}, abs=1e-5)


def test_no_rank_is_late_where_none_waits(tmp_path: Path) -> None:
    paths = [tmp_path / f"marks-rank{rank}.jsonl" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        made(path, rank)
        path.write_text(path.read_text().replace('"synchronize"', '"unknown"'))
    assert arrivals([read_marks(path) for path in paths]) == {}
    assert arrivals([]) == {}


def test_without_takes_the_second_set_out_of_the_first() -> None:
    left = without(union([0, 10], [5, 20]), union([1, 4, 12, 30], [2, 11, 13, 40]))
    assert left.starts.tolist() == [0, 2, 11, 13]
    assert left.ends.tolist() == [1, 4, 12, 20]
    assert without(union([], []), union([1], [2])).length == 0
    assert without(union([1], [2]), union([], [])).length == 1


def test_steps_without_the_tracer_say_who_is_late(tmp_path: Path) -> None:
    few = [made(tmp_path / f"few{rank}.jsonl", rank, steps=8) for rank in range(2)]
    many = [made(tmp_path / f"many{rank}.jsonl", rank, steps=20) for rank in range(2)]
    assert len(arrivals(few)[0]) == 8, "four untraced steps are too few"
    assert len(arrivals(many)[0]) == 16, "the traced ones are left out"


def test_exposed_communication_is_divided_into_waiting_for_the_last_rank_and_transfer(tmp_path: Path) -> None:
    ranks = [made(tmp_path / f"marks-rank{rank}.jsonl", rank, late_s=late) for rank, late in ((0, 0.0), (1, 0.006))]
    first, second = separate(timeline(), ranks)
    assert first.parts.exposed == pytest.approx(np.full(4, 0.010), abs=1e-6)
    assert first.parts.waiting == pytest.approx(np.full(4, 0.006), abs=1e-6), "until the other rank has its gradients"
    assert second.parts.waiting == pytest.approx(np.zeros(4), abs=1e-6)
    (alone,) = separate(timeline(), ranks[:1])
    assert alone.parts.waiting is None, "one rank does not know when others came"
