"""What a study does within its budget, on a clock of its own: what is left out first, and what a late part costs."""

from itertools import pairwise

import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.records.study import Study, StudyPart
from scalescope.studies.budget import PAGE_S, Scope, conduct, fit, planned, reductions

NAMES = ("estimate", "verify", "measure", "explain", "tune", "check", "refine")
FULL = Scope(others=True, strong=True)
POINT_S = 5.0  # One launch


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
        self.scopes: dict[str, Scope] = {}
        self.unneeded: dict[str, str] = {}

    def full(self) -> Scope:
        return FULL

    def seconds(self, part: str, scope: Scope) -> float:
        points = 3 + 2 * scope.others + scope.strong + scope.strong * scope.others
        measured = points * scope.launches * POINT_S
        return {
            "measure": measured,
            "estimate": 40.0,
            "verify": 20.0,
            "explain": 15.0,
            "tune": 30.0,
            "check": 25.0,
        }.get(part, 0.0)

    def lacks(self, scope: Scope) -> tuple[str, ...]:
        return self.scopes.get("measure", scope).without(FULL)  # as it was made

    def needless(self, part: str) -> str:
        return self.unneeded.get(part, "")

    def run(self, part: str, scope: Scope, seconds: float) -> None:
        self.ran.append(part)
        self.shares[part], self.scopes[part] = seconds, scope
        takes = self._takes.get(part, self.seconds(part, scope))
        if isinstance(takes, BaseException):
            self._clock.now += 1
            raise takes
        self._clock.now += takes


class Told:
    def __init__(self) -> None:
        self.plans: list[Study] = []
        self.ended: list[StudyPart] = []

    def plan_made(self, study: Study, left_s: float) -> None:
        self.plans.append(study)

    def part_begins(self, part: StudyPart, left_s: float) -> None:
        pass

    def part_ends(self, part: StudyPart) -> None:
        self.ended.append(part)


def begun(budget_s: float) -> Study:
    return Study(what="cnn", budget_s=budget_s, parts=tuple(StudyPart(name=name, what=name) for name in NAMES))


def run(budget_s: float, takes: dict[str, float | BaseException] | None = None) -> tuple[Study, Fake, Clock]:
    clock = Clock()
    work = Fake(clock, takes)
    return conduct(begun(budget_s), work, Told(), lambda study: None, clock), work, clock


def states(study: Study) -> dict[str, str]:
    return {part.name: part.state for part in study.parts}


def test_what_is_left_out_first() -> None:
    changed = []
    scopes = list(reductions(FULL))
    for larger, smaller in pairwise(scopes):
        changed.append(
            next(
                f"{name} {getattr(smaller, name)}"
                for name in Scope.__struct_fields__
                if getattr(larger, name) != getattr(smaller, name)
            )
        )
    assert changed == [
        "others False",
        "strong False",
        "launches 4",
        "launches 3",
        "check False",
        "tune False",
        "verify False",
        "launches 2",
        "launches 1",
        "explain False",
    ]


@pytest.mark.parametrize(
    ("left_s", "scope"),
    [
        (1000, FULL),
        (175, FULL),
        (174, Scope(strong=True)),
        (99, Scope()),
        (74, Scope(launches=4)),
        (45, Scope(launches=3)),
        (44, Scope(launches=2, check=False, tune=False, verify=False)),
        (1, Scope(launches=1, check=False, tune=False, verify=False, explain=False)),
    ],
)
def test_the_largest_scope_that_fits_is_taken(left_s: float, scope: Scope) -> None:
    measured = Fake(Clock()).seconds
    assert fit(FULL, lambda each: measured("measure", each), left_s) == scope


def test_a_large_budget_holds_everything_and_says_so() -> None:
    study, work, clock = run(600)
    assert work.ran == list(NAMES)
    assert set(states(study).values()) == {"done"}
    assert study.part("measure").without == ()
    assert study.used_s == clock.now - 100


def test_a_small_one_leaves_out_in_order_and_keeps_to_its_time() -> None:
    study, work, clock = run(160)
    assert work.ran == ["estimate", "verify", "measure", "explain", "tune", "refine"]
    assert study.part("measure").without == ("Horovod", "strong scaling", "launches 4 to 5 of every point")
    assert states(study)["check"] == "left out"
    assert "25 s" in study.part("check").why
    assert clock.now - 100 <= 160 - PAGE_S


def test_the_plan_says_the_seconds_of_every_part_before_anything_runs() -> None:
    clock = Clock()
    listener = Told()
    work = Fake(clock)
    conduct(begun(160), work, listener, lambda study: None, clock)
    (plan,) = listener.plans
    assert [part.planned_s for part in plan.parts][:3] == [40.0, 20.0, 45.0]
    assert states(plan)["check"] == "left out"
    assert planned(begun(160), work, 160 - PAGE_S).parts == plan.parts


def test_a_part_that_took_longer_costs_later_ones_their_place() -> None:
    study, work, clock = run(300, {"estimate": 150.0})
    assert study.part("measure").without == ("Horovod", "strong scaling", "launches 4 to 5 of every point")
    assert work.shares["measure"] == 300 - PAGE_S - 150 - 20 - (15 + 30 + 25)
    assert clock.now - 100 <= 300 - PAGE_S
    assert run(300)[0].part("measure").without == ("Horovod",)


def test_a_part_that_took_less_gives_its_time_back() -> None:
    planned_at_first = Told()
    clock = Clock()
    work = Fake(clock, {"estimate": 5.0})
    study = conduct(begun(180), work, planned_at_first, lambda study: None, clock)
    assert states(planned_at_first.plans[0])["check"] == "left out"
    assert states(study)["check"] == "done"


def test_what_has_nothing_to_tell_takes_no_time_from_the_others() -> None:
    clock = Clock()
    work = Fake(clock)
    work.unneeded = {"verify": "decided", "check": "the default is kept"}
    study = conduct(begun(150), work, Told(), lambda study: None, clock)
    assert states(study) | {"tune": "done"} == states(study)
    assert states(study)["verify"] == "not needed"
    assert study.part("check").why == "the default is kept"


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (WorkFailed("rank 1 died\nTraceback:\n  no Horovod here"), "rank 1 died (no Horovod here)"),
        (UsageError("not tuned: no DDP"), "not tuned: no DDP"),
    ],
)
def test_a_part_that_fails_does_not_end_the_study(problem: Exception, why: str) -> None:
    study, work, _ = run(600, {"tune": problem})
    assert work.ran[-2:] == ["check", "refine"]
    assert states(study)["tune"] == "failed"
    assert study.part("tune").why == why


def test_even_without_time_the_map_and_one_launch_of_each_point_are_made() -> None:
    study, work, _ = run(12)
    assert work.ran == ["estimate", "measure", "refine"]
    assert work.scopes["measure"].launches == 1
    assert work.shares["measure"] == 0.0
    assert study.part("explain").why.endswith("nothing of the budget was left")


def test_interrupted_it_keeps_what_is_finished_and_does_not_repeat_it() -> None:
    kept: list[Study] = []
    clock = Clock()
    with pytest.raises(KeyboardInterrupt):
        conduct(begun(600), Fake(clock, {"measure": KeyboardInterrupt()}), Told(), kept.append, clock)
    assert states(kept[-1]) == dict.fromkeys(NAMES, "planned") | {
        "estimate": "done",
        "verify": "done",
        "measure": "running",
    }
    assert kept[-1].used_s == 61
    again = Fake(clock)
    study = conduct(kept[-1], again, Told(), kept.append, clock)
    assert again.ran == ["measure", "explain", "tune", "check", "refine"]
    assert set(states(study).values()) == {"done"}
    assert study.part("measure").used_s == 1 + again.seconds("measure", FULL)


def test_what_a_budget_left_out_is_done_with_another_one() -> None:
    clock = Clock()
    first = conduct(begun(160), Fake(clock), Told(), lambda study: None, clock)
    more = Study(what=first.what, budget_s=first.used_s + 100, parts=first.parts)
    again = Fake(clock)
    assert states(conduct(more, again, Told(), lambda study: None, clock))["check"] == "done"
    assert again.ran == ["check"]


def test_what_the_plan_took_counts() -> None:
    clock = Clock()
    work = Fake(clock)
    study = conduct(begun(600), work, Told(), lambda study: None, clock, before_s=300.0)
    assert study.part("measure").without[0] == "Horovod"
    assert clock.now - 100 <= 300 - PAGE_S


def test_launches_that_are_made_later_are_not_said_to_be_missing() -> None:
    class Launching(Fake):
        def lacks(self, scope: Scope) -> tuple[str, ...]:
            return () if "refine" in self.ran else super().lacks(scope)

    clock = Clock()
    study = conduct(begun(160), Launching(clock), Told(), lambda study: None, clock)
    assert study.part("measure").without == ()
