"""What a study does within its budget, second by second on a clock of its own."""

import msgspec
import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.progress import Progress
from scalescope.records.study import Study, StudyPart
from scalescope.studies.budget import PAGE_S, conduct, plan_lines, planned
from told import Told

SECONDS = {
    "estimate": 40.0,
    "measure": 45.0,
    "explain": 15.0,
    "tune": 30.0,
    "check": 25.0,
    "refine": 30.0,
    "strong": 20.0,
    "engines": 60.0,
}
NAMES = tuple(SECONDS)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """Parts that take the time they are said to take, unless `takes` knows better."""

    def __init__(self, clock: Clock, takes: dict[str, float | BaseException] | None = None) -> None:
        self._clock, self._takes = clock, takes or {}
        self.ran: list[str] = []
        self.shares: dict[str, float] = {}
        self.unneeded: dict[str, str] = {}

    def seconds(self, part: str) -> float:
        return SECONDS[part]

    def skip_reason(self, part: str) -> str:
        return self.unneeded.get(part, "")

    def run(self, part: str, seconds: float, progress: Progress) -> None:
        progress.stage("its work", 5.0, 12)
        progress.note("what a verb says")
        progress.note("rank 1 died", "problem")
        self.ran.append(part)
        self.shares[part] = seconds
        takes = self._takes.get(part, self.seconds(part))
        if isinstance(takes, BaseException):
            self._clock.now += 1
            raise takes
        self._clock.now += takes


def begun(budget_s: float) -> Study:
    return Study(what="cnn", budget_s=budget_s, parts=tuple(StudyPart(name=name, what=name) for name in NAMES))


def run(budget_s: float, takes: dict[str, float | BaseException] | None = None) -> tuple[Study, Fake, Clock]:
    clock = Clock()
    work = Fake(clock, takes)
    return conduct(begun(budget_s), work, Told(), lambda study: None, clock), work, clock


def states(study: Study) -> dict[str, str]:
    return {part.name: part.state for part in study.parts}


def test_a_sufficient_budget_does_every_part_in_order() -> None:
    study, work, clock = run(600)
    assert work.ran == list(NAMES)
    assert set(states(study).values()) == {"done"}
    assert study.used_s == clock.now - 100 == sum(SECONDS.values())


def test_parts_that_do_not_fit_are_left_out_with_the_time_that_they_take() -> None:
    study, work, clock = run(155 + PAGE_S)
    assert work.ran == ["estimate", "measure", "explain", "tune", "check"]
    assert {states(study)[name] for name in ("refine", "strong", "engines")} == {"left out"}
    nothing = "and nothing of the budget was left"
    assert study.part("refine").why == f"it takes about 30 s {nothing}"
    assert study.part("engines").why == f"it takes about 60 s {nothing}"
    assert clock.now - 100 <= 155


def test_a_short_part_is_done_where_a_longer_one_before_it_did_not_fit() -> None:
    study, work, _ = run(155 + 25 + PAGE_S)
    assert work.ran[-1] == "strong"
    assert "it takes about 30 s and 25 s of the budget were left" in study.part("refine").why


def test_the_plan_says_the_seconds_of_every_part_before_anything_runs() -> None:
    clock, told = Clock(), Told()
    work = Fake(clock)
    work.unneeded = {"check": "the default is kept"}
    conduct(begun(150), work, told, lambda study: None, clock)
    plan = planned(begun(150), work, 150 - PAGE_S)
    assert told.notes[: 1 + len(NAMES)] == plan_lines(plan, 150)
    assert [part.planned_s for part in plan.parts] == [40.0, 45.0, 15.0, 30.0, 0.0, 30.0, 20.0, 60.0]
    assert states(plan) | {"check": "not needed", "tune": "planned", "refine": "left out"} == states(plan)


def test_a_part_that_took_longer_costs_later_ones_their_place_and_one_that_took_less_gives_it_back() -> None:
    late, work, _ = run(200, {"estimate": 120.0})
    assert work.ran == ["estimate", "measure", "explain"]
    assert late.part("tune").why == "it takes about 30 s and 12 s of the budget were left"
    early, _, _ = run(200, {"estimate": 5.0})
    assert states(early)["refine"] == states(early)["check"] == "done"


def test_measure_leaves_time_for_the_first_parts_after_it() -> None:
    work = run(600)[1]
    assert work.shares["estimate"] == 600 - PAGE_S - (45 + 15 + 30 + 25)
    assert work.shares["measure"] == 600 - PAGE_S - 40 - (15 + 30 + 25)
    assert work.shares["check"] == 600 - PAGE_S - 130, "what comes after it takes what is left"
    assert run(100)[1].shares["measure"] == 45, "never less than it needs"


def test_refine_takes_the_time_that_is_left_but_for_the_parts_after_it() -> None:
    first_s = 40 + 45 + 15 + 30 + 25
    assert run(600)[1].shares["refine"] == 600 - PAGE_S - first_s - (20 + 60)
    some = run(first_s + 30 + 25 + PAGE_S)[1]
    assert (some.shares["refine"], some.ran[-1]) == (30 + 5, "strong"), "for strong scaling, but not for other engines"
    none = run(first_s + 30 + 10 + PAGE_S)[1]
    assert (none.shares["refine"], none.ran[-1]) == (30 + 10, "refine")


def test_even_without_time_the_map_and_a_measurement_are_made() -> None:
    study, work, _ = run(12)
    assert work.ran == ["estimate", "measure"]
    assert study.part("explain").state == "left out"


def test_a_part_that_is_not_needed_takes_no_seconds_and_says_why() -> None:
    clock, told = Clock(), Told()
    work = Fake(clock)
    work.unneeded = {"check": "the default is kept"}
    part = conduct(begun(600), work, told, lambda study: None, clock).part("check")
    assert (part.state, part.planned_s, part.used_s, part.why) == ("not needed", 0.0, 0.0, "the default is kept")
    assert told.notes[1 + len(NAMES) + 4] == "check: not needed: the default is kept"
    assert "check" not in work.ran


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (WorkFailed("rank 1 died\nTraceback:\n  no Horovod here"), "rank 1 died (no Horovod here)"),
        (UsageError("not tuned: no DDP"), "not tuned: no DDP"),
    ],
)
def test_a_part_that_fails_does_not_end_the_study(problem: Exception, why: str) -> None:
    study, work, _ = run(600, {"tune": problem})
    assert work.ran == list(NAMES)
    assert (study.part("tune").state, study.part("tune").why) == ("failed", why)


def test_an_interrupted_study_does_not_repeat_finished_parts() -> None:
    kept: list[Study] = []
    clock = Clock()
    with pytest.raises(KeyboardInterrupt):
        conduct(begun(600), Fake(clock, {"measure": KeyboardInterrupt()}), Told(), kept.append, clock)
    assert states(kept[-1]) == dict.fromkeys(NAMES, "planned") | {"estimate": "done", "measure": "running"}
    assert kept[-1].used_s == 41
    again = Fake(clock)
    study = conduct(kept[-1], again, Told(), kept.append, clock)
    assert again.ran == list(NAMES[1:])
    assert study.part("measure").used_s == 1 + 45


def test_parts_left_out_are_done_with_a_new_budget() -> None:
    clock = Clock()
    first = conduct(begun(155 + PAGE_S), Fake(clock), Told(), lambda study: None, clock)
    more = Study(what=first.what, budget_s=first.used_s + 200, parts=first.parts)
    again = Fake(clock)
    assert set(states(conduct(more, again, Told(), lambda study: None, clock)).values()) == {"done"}
    assert again.ran == ["refine", "strong", "engines"]


@pytest.mark.parametrize("budget_s", [12.0, 150.0, 155 + PAGE_S, 260.0])
def test_one_more_budget_holds_all_that_is_missing(budget_s: float) -> None:
    clock = Clock()
    first = conduct(begun(budget_s), Fake(clock), Told(), lambda study: None, clock)
    rest_s = sum(part.planned_s for part in first.unfinished)
    more = msgspec.structs.replace(first, budget_s=first.used_s + rest_s + PAGE_S)
    assert conduct(more, Fake(clock), Told(), lambda study: None, clock).unfinished == ()


def test_time_that_the_plan_or_an_earlier_session_took_is_not_there_any_more() -> None:
    clock, told = Clock(), Told()
    first = begun(600)
    used = first.with_part(msgspec.structs.replace(first.part("estimate"), state="done", used_s=70.0))
    conduct(used, Fake(clock), told, lambda study: None, clock, before_s=30.0)
    assert told.notes[0].endswith("; the budget has 8 min 20 s")
    assert told.stages[:2] == [("measure: measure", 500.0, None), ("measure: its work", 500.0, 12)]


def test_time_of_a_part_that_fails_counts_on_top_of_what_it_used_before() -> None:
    clock, first = Clock(), begun(600)
    used = first.with_part(msgspec.structs.replace(first.part("tune"), used_s=10.0, why="old"))
    part = conduct(used, Fake(clock, {"tune": WorkFailed("died")}), Told(), lambda study: None, clock).part("tune")
    assert (part.state, part.used_s, part.why) == ("failed", 11.0, "died")


def test_every_change_is_kept_as_it_comes() -> None:
    kept: list[Study] = []
    clock = Clock()
    conduct(begun(600), Fake(clock), Told(), kept.append, clock)
    assert len(kept) == 1 + 2 * len(NAMES)
    assert [states(study)["estimate"] for study in kept[:3]] == ["planned", "running", "done"]
    assert [kept[2].used_s, kept[4].used_s] == [40.0, 85.0]


def test_a_finished_part_has_a_line_and_notes_of_its_verb_are_details() -> None:
    clock, told = Clock(), Told()
    conduct(begun(600), Fake(clock, {"tune": WorkFailed("died")}), told, lambda study: None, clock)
    assert told.notes[1 + len(NAMES) :][:2] == ["estimate: done in 40 s", "measure: done in 45 s"]
    assert set(told.details) == {"what a verb says"}
    assert set(told.problems) == {"rank 1 died", "tune: failed: died"}


def test_a_part_that_was_begun_before_says_how_long_it_took_now_and_in_all_runs() -> None:
    clock, told, before = Clock(), Told(), begun(600)
    before = before.with_part(msgspec.structs.replace(before.part("refine"), used_s=50.0))
    conduct(before, Fake(clock), told, lambda study: None, clock)
    assert "refine: done in 30 s, 80 s in all runs" in told.notes
    assert "tune: done in 30 s" in told.notes
