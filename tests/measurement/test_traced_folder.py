"""A traced launch, and what its folder says afterwards; ranks are files, and no launch starts anything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobs.made_up_ranks import S, rank_log, step
from measurement.made_sweeps import request, settled
from measurement.observed import launch as observed
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.plan import Settings
from scalescope.measurement import capture
from scalescope.measurement.capture import Window, describe, overhead, steps_of, traced_launch
from scalescope.records.explanation import TRACE_RECORD, RankTrace, TraceFolder
from scalescope.records.run import Failure, Load, Point, Run
from scalescope.records.store import load
from told import Told

POINT = Point(engine="ddp", np=2, batch=8, threads_per_rank=1)
WINDOW = Window(6, 8, 4)  # 1 to 5 untraced, 6 to 14 traced, 16 to 20 untraced


def write_rank(
    folder: Path, rank: int, steps: int, traced: Callable[[int], bool], step_s: Callable[[int], float]
) -> None:
    """What one rank leaves: its log and its marks."""
    folder.mkdir(parents=True, exist_ok=True)
    moments = [100.0]
    for number in range(steps):
        moments.append(moments[-1] + step_s(number))
    rank_log(folder, *(step(moments[n], moments[n + 1]) for n in range(steps)), pid=10 + rank, rank=rank)
    hello = {"kind": "hello", "version": 1, "rank": rank, "world_size": 2, "host": "abc"[rank], "engine": "ddp"}
    lines: list[dict[str, Any]] = [{**hello, "device": "cpu", "t": 0, "wall_ns": S}]
    for n in range(steps):
        lines.append(
            {
                "kind": "step",
                "n": n,
                "s": int(moments[n] * S),
                "t": int(moments[n + 1] * S),
                "traced": int(traced(n)),
            }
        )
    (folder / f"marks-rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def in_window(number: int) -> bool:
    return WINDOW.first <= number < WINDOW.end


def slower_when_traced(number: int) -> float:
    return 0.3 if in_window(number) else 0.25


def run_of(steps: int = 21, **more: Any) -> Run:
    made = observed(np=2, steps=steps)
    fields = {"phases": {"launch": 1.0, "import": 2.0, "init": 0.0, "steady": 5.0}, **more}
    return msgspec.structs.replace(made, **fields)


def folder_of_two(folder: Path, *, profiles: tuple[int, ...] = (0, 1), ends: tuple[int, int] = (21, 21)) -> Path:
    for rank in (0, 1):
        write_rank(folder, rank, ends[rank], in_window, slower_when_traced)
    for rank in profiles:
        (folder / f"trace-rank{rank}.json.gz").write_text("")
    return folder


def described(folder: Path, run: Run | None = None, window: Window = WINDOW) -> TraceFolder:
    return describe(folder, POINT, run or run_of(), window, what="cnn", command=("python", "train.py"))


def test_a_traced_folder_records_captured_steps_and_overhead(tmp_path: Path) -> None:
    (tmp_path / "timeline-again.json").write_text("")
    found = described(folder_of_two(tmp_path))
    assert found.steps == 8
    assert found.ranks == (
        RankTrace(rank=0, host="a", profile="trace-rank0.json.gz", marks="marks-rank0.jsonl"),
        RankTrace(rank=1, host="b", profile="trace-rank1.json.gz", marks="marks-rank1.jsonl"),
    )
    assert found.overhead is not None
    assert found.overhead.value == pytest.approx(0.2)
    assert found.untraced_step_s == pytest.approx(0.25)
    assert found.before_s == {"launch": 1.0, "import": 2.0}
    assert (found.engine, found.np, found.timeline, found.notes) == ("ddp", 2, "", ())
    assert found.cores is None, "nobody knows the cores of other machines"
    assert not found.from_start
    assert not (tmp_path / "timeline-again.json").exists()


def test_only_steps_that_all_ranks_captured_count(tmp_path: Path) -> None:
    found = described(folder_of_two(tmp_path, ends=(21, 10)))
    assert found.steps == 4
    loaded = described(tmp_path, run_of(load=Load(foreign_cores=0.1, cores=2, load_average=1.0)))
    assert loaded.cores is not None
    assert loaded.cores >= 1


def test_a_rank_without_a_trace_is_named_with_its_reason(tmp_path: Path) -> None:
    folder_of_two(tmp_path, profiles=(0,))
    (tmp_path / "rank-1.out").write_text("a line\nscalescope: this rank is not traced: the disk is full\n")
    found = described(tmp_path)
    assert found.notes == ("rank 1 left no trace (the disk is full)",)
    assert found.steps == 8
    assert [rank.profile for rank in found.ranks] == ["trace-rank0.json.gz", ""]
    nothing = described(folder_of_two(tmp_path / "none", profiles=()))
    assert nothing.steps == 0
    assert nothing.notes == ("rank 0, 1 left no trace",)


def test_a_timeline_stands_for_all_ranks(tmp_path: Path) -> None:
    folder_of_two(tmp_path, profiles=())
    (tmp_path / "timeline.json").write_text("[")
    run = msgspec.structs.replace(run_of(), engine_seen="horovod")
    found = described(tmp_path, run, Window(6, 8, 0))
    assert (found.timeline, found.steps) == ("timeline.json", 8)
    assert found.overhead is None
    assert found.notes == (
        "what tracing cost is not known: there were too few steps without it; "
        "Horovod's timeline slows small steps on CPUs by 14 to 30 %",
    )
    assert described(tmp_path, window=Window(0, 8, 0)).from_start


def test_blocks_in_which_the_tracer_was_not_as_planned_are_not_compared(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_rank(tmp_path, rank, 21, lambda n: n >= 6, slower_when_traced)
        (tmp_path / f"trace-rank{rank}.json.gz").write_text("")
    found = described(tmp_path)
    assert found.overhead is not None
    assert found.untraced_step_s == pytest.approx(0.25)
    for rank in (0, 1):
        write_rank(tmp_path, rank, 21, lambda n: True, slower_when_traced)
    always = described(tmp_path)
    assert (always.overhead, always.untraced_step_s) == (None, None)
    assert always.notes == ("what tracing cost is not known: there were too few steps without it",)


def test_a_step_is_as_long_as_its_ranks_took_on_average(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, 4, lambda n: False, lambda n: 0.25)
    write_rank(tmp_path, 1, 4, lambda n: False, lambda n: 0.75)
    assert steps_of(tmp_path) == pytest.approx([0.5] * 4)


def test_blocks_that_are_all_traced_tell_no_overhead() -> None:
    times = [1.0] * 8
    assert overhead(times, [(0, 4, True), (4, 8, True)]) is None
    assert overhead(times, [(0, 4, False), (4, 8, False)]) is None
    assert overhead(times, [(0, 4, False), (4, 6, True)]) is None, "two steps are too few"
    assert overhead(times, [(0, 4, False), (4, 7, True)]) is not None


def test_windows_are_written_as_the_agent_reads_them() -> None:
    assert str(Window(6, 8, 4)) == "6:8:4"
    assert str(Window(6, 8, 4, "full")) == "6:8:4:full"
    assert Window(6, 8, 4).blocks(timeline=False) == [(1, 5, False), (6, 14, True), (16, 20, False)]
    assert Window(6, 8, 4).blocks(timeline=True) == [(6, 14, True), (15, 18, False), (19, 22, True), (23, 26, False)]
    assert Window(6, 8, 0).blocks(timeline=False) == [(6, 14, True)]
    assert [Window(6, 8, each).total(timeline=False) for each in (0, 4)] == [15, 20]
    assert Window(6, 8, 4).total(timeline=True) == 26


class Launches:
    """Takes the place of `launch`; `leaves` writes what ranks would."""

    def __init__(self, leaves: Callable[[Path, int], Run | Failure]) -> None:
        self._leaves = leaves
        self.asked: list[tuple[str, int, Point, int | None]] = []

    def __call__(self, settings: Settings, number: int, point: Point, steps: int, progress: object) -> Run | Failure:
        self.asked.append((settings.trace, steps, point, settings.request.steps))
        return self._leaves(Path(settings.folder, "traces", "ddp-np2"), len(self.asked))


def in_folder(run: Run) -> Run:
    return msgspec.structs.replace(run, folder="traces/ddp-np2")


def test_a_traced_launch_is_described_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(folder: Path, attempt: int) -> Run:
        for rank in (0, 1):
            write_rank(folder, rank, 53, lambda n: 21 <= n < 41, lambda n: 0.25)
            (folder / f"trace-rank{rank}.json.gz").write_text("")
        return in_folder(run_of(53))

    launches, told = Launches(leaves), Told()
    monkeypatch.setattr(capture, "launch", launches)
    folder, record = traced_launch(settled(folder=str(tmp_path)), POINT, None, told)
    assert folder == tmp_path / "traces" / "ddp-np2"
    assert record.steps == 20
    assert load(folder / TRACE_RECORD, TraceFolder) == record
    assert launches.asked == [("21:20:10", 53, msgspec.structs.replace(POINT, arm="traced"), 53)]
    assert told.stages == [("capture of ddp-np2-b8", None, 53)]


def test_a_script_that_ended_before_is_launched_once_more_for_the_steps_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaves(folder: Path, attempt: int) -> Run:
        first = 21 if attempt == 1 else 5
        for rank in (0, 1):
            write_rank(folder, rank, 15, lambda n: n >= first, lambda n: 0.25)
            (folder / f"trace-rank{rank}.json.gz").write_text("")
        return in_folder(run_of(15))

    launches = Launches(leaves)
    monkeypatch.setattr(capture, "launch", launches)
    _, record = traced_launch(settled(folder=str(tmp_path)), POINT, None, Told())
    assert [trace for trace, *_ in launches.asked] == ["21:20:10", "4:10:0"]
    assert record.steps == 9
    known = run_of(15, warmup_steps=2, step_s=0.1)
    again = Launches(lambda folder, attempt: leaves(folder, 2))
    monkeypatch.setattr(capture, "launch", again)
    traced_launch(settled(folder=str(tmp_path)), POINT, known, Told())
    assert [trace for trace, *_ in again.asked] == ["4:10:0"], "its steps are known"


def test_a_launch_without_a_captured_step_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(folder: Path, attempt: int) -> Run:
        for rank in (0, 1):
            write_rank(folder, rank, 60, lambda n: False, lambda n: 0.25)
        (folder / "rank-0.out").write_text("scalescope: this rank is not traced: it has a profiler of its own\n")
        return in_folder(run_of(60))

    monkeypatch.setattr(capture, "launch", Launches(leaves))
    with pytest.raises(WorkFailed) as caught:
        traced_launch(settled(folder=str(tmp_path)), POINT, None, Told())
    assert str(caught.value).startswith(
        "ddp-np2-b8: 60 steps were made and none was captured (it has a profiler of its own); see the ranks' output in"
    )


def test_a_traced_launch_that_fails_names_its_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()

    def fails(folder: Path, attempt: int) -> Failure:
        return Failure(point=POINT, folder="", problem="rank 1 died", details="its last lines")

    def refuses(folder: Path, attempt: int) -> Failure:
        raise UsageError("the port is taken")

    monkeypatch.setattr(capture, "launch", Launches(fails))
    with pytest.raises(WorkFailed, match="ddp-np2-b8-traced: rank 1 died; nothing was traced\nits last lines"):
        traced_launch(settled(folder=str(tmp_path)), POINT, None, told)
    monkeypatch.setattr(capture, "launch", Launches(refuses))
    with pytest.raises(UsageError, match="ddp-np2-b8-traced: the port is taken"):
        traced_launch(settled(folder=str(tmp_path), request=request(steps=30)), POINT, None, told)
