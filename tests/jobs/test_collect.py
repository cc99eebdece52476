"""What a launch's records add up to: the numbers of a Run, and what is said about them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_up_ranks import S, launch, rank_log, span, step

from scalescope import host
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.collect import collect, collect_matches, collect_pairs, split_into_phases
from scalescope.jobs.interleaved import Pairs
from scalescope.jobs.output import Match
from scalescope.jobs.rank_log import RankLog
from scalescope.records.job import Ending
from scalescope.records.run import Point, Run, Unsteady
from scalescope.steady import UNSETTLED

ALONE = Point(engine="none", np=1, batch=8, threads_per_rank=1)
BOTH = Point(engine="ddp", np=2, batch=8, threads_per_rank=1)


def two_ranks(folder: Path, *lines: dict[str, Any], samples: int = 8, steps: int = 20) -> list[RankLog]:
    """Ranks 0 and 1 of a group, the second half as fast in its build, with steps of two seconds after a slow one."""
    logs = []
    for rank in range(2):
        made = [
            step(60, 68, samples=samples),
            *(step(66 + 2 * at, 68 + 2 * at, samples=samples) for at in range(1, steps)),
        ]
        group = {"kind": "rank", "rank": rank, "world_size": 2, "backend": "gloo"}
        logs.append(rank_log(folder, group, *lines, *made, pid=rank + 11, rank=rank, began_s=50 + 4 * rank))
    return logs


def collected(point: Point, logs: list[RankLog], ending: Ending | None = None) -> Run:
    return collect(point, logs, ending or launch(48, 108), "launches/01", own=False)


def test_a_run_has_the_numbers_of_its_ranks(tmp_path: Path) -> None:
    run = collected(BOTH, two_ranks(tmp_path, {"kind": "engine", "name": "ddp"}))
    assert (run.point, run.folder, run.source, run.engine_seen, run.backend) == (
        *(BOTH, "launches/01", "optimizer", "ddp"),
        "gloo",
    )
    assert (run.steps, run.warmup_steps, run.exchanges, run.warnings) == (20, 1, True, ())
    assert (run.wall_s, run.step_s, run.mean_step_s) == pytest.approx((60, 2, 2))
    assert run.blocks == pytest.approx([2.0] * 6)
    assert run.samples_per_step == 16
    assert run.throughput == pytest.approx(8)
    expected = {"launch": 4, "build": 8, "warmup": 8, "steady": 38, "teardown": 2}
    assert {name: seconds for name, seconds in run.phases.items() if seconds} == pytest.approx(expected)
    first, second = run.ranks
    assert (first.rank, first.host, first.pid, first.steps) == (0, "h", 11, 20)
    assert (second.rank, second.pid, second.samples_per_step) == (1, 12, 8)
    assert second.step_s == pytest.approx(2)
    assert (first.phases["launch"], second.phases["launch"]) == pytest.approx((2, 6))


def test_samples_that_no_rank_counted_are_those_that_were_asked_for(tmp_path: Path) -> None:
    run = collected(BOTH, two_ranks(tmp_path, samples=0))
    assert (run.samples_per_step, run.ranks[0].samples_per_step) == (16.0, None)
    assert run.throughput == pytest.approx(8.0)
    unknown = msgspec.structs.replace(BOTH, batch=None)
    run = collected(unknown, two_ranks(tmp_path, samples=0))
    assert (run.samples_per_step, run.throughput) == (None, None)


@pytest.mark.parametrize(("batch", "said"), [(100, False), (104, False), (97, False), (106, True), (94, True)])
def test_another_batch_than_asked_for_triggers_a_warning(tmp_path: Path, batch: int, said: bool) -> None:
    run = collected(msgspec.structs.replace(BOTH, batch=batch), two_ranks(tmp_path, samples=100))
    start = f"--batch says {2 * batch} samples per step over all processes and the ranks trained on 200: pass {{batch}}"
    assert [warning.startswith(start) for warning in run.warnings] == ([True] if said else [])


@pytest.mark.parametrize(("paths", "named"), [(("/b",), "/b,"), (("/c", "/a", "/b"), "/a and 2 more,")])
def test_reading_a_file_of_an_earlier_launch_triggers_a_warning(
    tmp_path: Path, paths: tuple[str, ...], named: str
) -> None:
    lines = [{"kind": "read_changed_file", "path": path} for path in paths]
    (warning,) = collected(BOTH, two_ranks(tmp_path, *lines)).warnings
    assert warning.startswith(f"this launch read {named} which an earlier launch changed")


@pytest.mark.parametrize(
    ("counts", "exchanges"), [((20, 20), True), ((19, 20), True), ((19, 3), False), ((None, 20), True), ((), None)]
)
def test_ranks_exchange_when_there_is_a_collective_for_every_step(
    tmp_path: Path, counts: tuple[int | None, ...], exchanges: bool | None
) -> None:
    logs = two_ranks(tmp_path)
    for log, count in zip(logs, counts, strict=False):
        log.collectives = count
    assert collected(BOTH, logs).exchanges is exchanges


def test_one_rank_alone_has_no_exchange(tmp_path: Path) -> None:
    made = [step(at, at + 1) for at in range(60, 70)]
    lines = {"kind": "engine", "name": "ddp"}, {"kind": "collectives", "n": 99}
    run = collected(ALONE, [rank_log(tmp_path, *lines, *made)], launch(50, 70))
    assert (run.exchanges, run.engine_seen) == (None, "ddp")
    assert collected(ALONE, [rank_log(tmp_path, *made)], launch(50, 70)).engine_seen == "none"


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"only 4 steps in a launch, fewer than warm-up needs: train for at least 5"):
        collected(ALONE, [rank_log(tmp_path, *(step(at, at + 1) for at in range(60, 64)))])
    assert collected(ALONE, [rank_log(tmp_path, *(step(at, at + 1) for at in range(60, 65)))]).steps == 5


def test_steps_without_a_steady_state_trigger_a_warning(tmp_path: Path) -> None:
    ends = [60.0]
    for at in range(12):
        ends.append(ends[-1] + 10 * 0.8**at)
    made = [step(start, end) for start, end in pairwise(ends)]
    run = collected(ALONE, [rank_log(tmp_path, *made)], launch(50, 120))
    assert run.warnings == (UNSETTLED,)
    assert run.unsteady == Unsteady(kind="faster", sentence=UNSETTLED)


@pytest.mark.parametrize(
    ("seconds", "kind", "drift"),
    [
        ([1 + at / 100 for at in range(60)], "slower", 0.42),
        ([1 + 0.5 * (at % 2) for at in range(60)], "kinds", 0.0),
    ],
)
def test_steps_that_keep_no_even_pace_are_said_and_told_apart(
    tmp_path: Path, seconds: list[float], kind: str, drift: float
) -> None:
    ends = [60.0, *(60.0 + sum(seconds[: at + 1]) for at in range(len(seconds)))]
    run = collected(ALONE, [rank_log(tmp_path, *(step(*pair) for pair in pairwise(ends)))], launch(50, 200))
    assert run.unsteady
    assert run.warnings == (run.unsteady.sentence,)
    assert (run.unsteady.kind, run.unsteady.drift) == (kind, pytest.approx(drift, abs=0.02))


def test_a_launch_whose_ranks_outlast_it_ends_with_them(tmp_path: Path) -> None:
    log = rank_log(tmp_path, span("init", 45, 51), span("evaluation", 52, 54), step(60, 62), span("evaluation", 62, 70))
    phases = split_into_phases(log, log.steps(), 0, launch(55, 61))
    assert phases["launch"] == 0
    assert (phases["init"], phases["evaluation"], phases["build"]) == pytest.approx((1, 2, 7))
    assert (phases["steady"], phases["pause"], phases["teardown"]) == pytest.approx((2, 0, 0))


def test_imports_never_take_the_time_of_an_evaluation_before_the_first_step(tmp_path: Path) -> None:
    early = span("init", 51, 53), span("evaluation", 53, 54)
    log = rank_log(tmp_path, {"kind": "import", "ns": 30 * S}, *early, step(55, 56))
    phases = split_into_phases(log, log.steps(), 0, launch(50, 60))
    assert (phases["import"], phases["init"], phases["evaluation"], phases["build"]) == pytest.approx((2, 2, 1, 0))


def matches(*at_s: float, **values: float) -> list[Match]:
    return [Match(int(at * S), values) for at in at_s]


def test_steps_between_lines_begin_with_the_first_line() -> None:
    found = matches(*(20 + 2 * at for at in range(13)))
    run = collect_matches(BOTH, found, 15 * S, launch(10, 50), "launches/01", "step")
    assert (run.steps, run.warmup_steps, run.source) == (12, 0, "pattern")
    assert (run.wall_s, run.step_s, run.mean_step_s, run.throughput) == pytest.approx((40, 2, 2, 8))
    assert run.blocks == pytest.approx([2.0] * 4)
    assert run.phases == pytest.approx({"launch": 5, "build": 5, "warmup": 0, "steady": 24, "teardown": 6})
    assert (run.samples_per_step, run.warnings, run.ranks) == (16.0, (), ())


def test_steps_that_lines_tell_begin_one_step_before_the_first_line() -> None:
    found = [*matches(28, step_s=8.0), *matches(*(30 + 2 * at for at in range(11)), step_s=2.0)]
    run = collect_matches(BOTH, found, 15 * S, launch(10, 60), "launches/01", "step")
    assert (run.steps, run.warmup_steps) == (12, 1)
    assert (run.step_s, run.mean_step_s) == pytest.approx((2, 2))
    assert run.phases == pytest.approx({"launch": 5, "build": 5, "warmup": 8, "steady": 22, "teardown": 10})
    early = collect_matches(BOTH, found, 25 * S, launch(10, 60), "launches/01", "step")
    assert early.phases["build"] == 0, "nothing can have been printed before the first output"


def test_a_rate_that_lines_tell_is_averaged_over_time() -> None:
    found = [*matches(*range(20, 26), examples_per_s=10.0), *matches(*range(26, 32), examples_per_s=30.0)]
    run = collect_matches(BOTH, found, 15 * S, launch(10, 50), "f", "step")
    assert run.throughput == pytest.approx(15.0)
    unknown = msgspec.structs.replace(BOTH, batch=None)
    assert collect_matches(unknown, found, 15 * S, launch(10, 50), "f", "step").throughput == pytest.approx(15.0)
    silent = collect_matches(unknown, matches(*range(20, 32)), 15 * S, launch(10, 50), "f", "step")
    assert (silent.throughput, silent.samples_per_step) == (None, None)


@pytest.mark.parametrize(("together", "told"), [(0, False), (5, False), (6, True), (10, True)])
def test_lines_that_arrive_together_trigger_a_warning_unless_they_hold_times(together: int, told: bool) -> None:
    found = [Match(at * S, {}, number < together) for number, at in enumerate(range(20, 30))]
    run = collect_matches(BOTH, found, 15 * S, launch(10, 50), "f", "step")
    assert [warning.split(",")[0] for warning in run.warnings] == ["matching lines arrived several at a time"] * told
    timed = [match._replace(values={"step_s": 1.0}) for match in found]
    assert collect_matches(BOTH, timed, 15 * S, launch(10, 50), "f", "step").warnings == ()


def test_too_few_lines_are_refused() -> None:
    with pytest.raises(WorkFailed, match=r"--pattern 'x' matched 1 lines and at least 2 are needed"):
        collect_matches(BOTH, matches(20), 15 * S, launch(10, 50), "f", "x")
    with pytest.raises(UsageError, match="only 1 step in a launch"):
        collect_matches(BOTH, matches(20, 21), 15 * S, launch(10, 50), "f", "x")


def test_a_quick_launch_has_the_times_of_its_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 7.0, 9.0))
    pairs = Pairs(((1.0, 2.0), (1.0, 3.0), (1.5, 4.0)), 0.125)
    logs = two_ranks(tmp_path, {"kind": "engine", "name": "ddp"})
    run = collect_pairs(BOTH, logs, launch(10, 50), "f", pairs)
    assert (run.steps, run.warmup_steps, run.step_s, run.mean_step_s) == (3, 0, 3.0, 3.0)
    assert (run.pairs, run.phases, run.source) == (pairs.seconds, {}, "turns")
    assert [(rank.rank, rank.host, rank.phases) for rank in run.ranks] == [(0, "h", {}), (1, "h", {})]
    assert (run.wall_s, run.throughput, run.samples_per_step) == pytest.approx((40, 16 / 3, 16))
    assert (run.engine_seen, run.backend) == ("ddp", "gloo")
    assert run.load is not None
    assert (run.load.foreign_cores, run.load.cores) == (0.125, host.cores().machine_logical)
    assert run.load.load_average == 0.5
    two = Pairs(pairs.seconds[:2], 0.0)
    unknown = msgspec.structs.replace(BOTH, batch=None)
    assert collect_pairs(unknown, logs, launch(10, 50), "f", two).throughput is None
    with pytest.raises(WorkFailed, match="only 1 pairs of blocks were made: raise --budget"):
        collect_pairs(BOTH, logs, launch(10, 50), "f", Pairs(pairs.seconds[:1], 0.0))
    with pytest.raises(WorkFailed, match="2 ranks were launched and 1 made steps"):
        collect_pairs(BOTH, logs[:1], launch(10, 50), "f", pairs)


def test_a_command_that_starts_as_many_ranks_as_asked_is_good(tmp_path: Path) -> None:
    logs = two_ranks(tmp_path)
    assert collect(BOTH, logs, launch(48, 108), "f", own=True).steps == 20
    with pytest.raises(WorkFailed, match="--np 1 was asked for and the command started 2 ranks"):
        collect(ALONE, logs, launch(48, 108), "f", own=True)
