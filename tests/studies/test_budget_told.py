"""What a study tells and keeps on its way through its budget, second by second on a clock of its own."""

import msgspec
import pytest
from test_study_budget import FULL, NAMES, Clock, Fake, Told, begun, states

from scalescope.errors import WorkFailed
from scalescope.records.study import Study, StudyPart
from scalescope.studies.budget import PAGE_S, Scope, _no_room, conduct, planned, reductions


class Heard(Told):
    """Writes down the seconds that are left, too."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[tuple[str, float]] = []

    def plan_made(self, study: Study, left_s: float) -> None:
        super().plan_made(study, left_s)
        self.left.append(("plan", left_s))

    def part_begins(self, part: StudyPart, left_s: float) -> None:
        assert part.state == "running"
        self.left.append((part.name, left_s))


@pytest.mark.parametrize(
    ("scope", "lacks"),
    [
        (FULL, ()),
        (Scope(others=True), ("strong scaling",)),
        (Scope(strong=True), ("Horovod",)),
        (Scope(others=True, strong=True, launches=4), ("launch 5 of every point",)),
        (Scope(others=True, strong=True, launches=3), ("launches 4 to 5 of every point",)),
        (Scope(others=True, strong=True, launches=6), ()),
    ],
)
def test_a_scope_says_what_it_lacks(scope: Scope, lacks: tuple[str, ...]) -> None:
    assert scope.without(FULL) == lacks
    assert Scope(launches=5).without(Scope()) == ()


def test_a_scope_holds_every_part_but_those_that_it_leaves_out() -> None:
    least = list(reductions(FULL))[-1]
    assert {name for name in NAMES if least.holds(name)} == {"estimate", "measure", "refine"}
    assert all(Scope().holds(name) for name in NAMES)
    assert (Scope().others, Scope().strong, Scope().launches) == (False, False, 5)


@pytest.mark.parametrize(
    ("left_s", "said"),
    [
        (20.0, "it takes about 30 s and 20 s of the budget were left"),
        (1.0, "it takes about 30 s and 1 s of the budget were left"),
        (0.9, "it takes about 30 s and nothing of the budget was left"),
        (-5.0, "it takes about 30 s and nothing of the budget was left"),
    ],
)
def test_what_is_left_out_says_what_it_takes_and_what_was_left(left_s: float, said: str) -> None:
    assert _no_room(30.0, left_s) == said


def test_seconds_that_are_left_are_told_before_every_part_with_those_of_the_page() -> None:
    clock, heard = Clock(), Heard()
    conduct(begun(600), Fake(clock), heard, lambda study: None, clock)
    assert heard.left[:4] == [("plan", 600.0), ("estimate", 600.0), ("verify", 560.0), ("measure", 540.0)]
    assert [part.name for part in heard.ended] == list(NAMES)
    assert {part.state for part in heard.ended} == {"done"}


def test_what_an_earlier_session_used_is_not_there_any_more() -> None:
    clock, heard = Clock(), Heard()
    first = begun(600)
    used = first.with_part(msgspec.structs.replace(first.part("estimate"), state="done", used_s=70.0))
    conduct(used, Fake(clock), heard, lambda study: None, clock, before_s=30.0)
    assert heard.left[:2] == [("plan", 500.0), ("verify", 500.0)]


def test_a_part_gets_what_later_ones_leave_it() -> None:
    clock = Clock()
    work = Fake(clock)
    conduct(begun(600), work, Told(), lambda study: None, clock)
    assert work.shares["estimate"] == 600 - PAGE_S - (20 + 175 + 15 + 30 + 25)
    assert work.shares["refine"] == 600 - PAGE_S - (40 + 20 + 175 + 15 + 30 + 25)
    assert work.shares["check"] == work.shares["refine"] + 25


def test_parts_that_have_nothing_to_tell_cost_nothing_in_the_plan_either() -> None:
    work = Fake(Clock())
    work.unneeded = {"check": "the default is kept"}
    made = planned(begun(600), work, 280.0)
    assert made.part("measure").without == ()
    assert planned(begun(600), Fake(Clock()), 280.0).part("measure").without == ("Horovod",)


def test_a_plan_names_what_is_left_out_with_what_it_would_take() -> None:
    made = planned(begun(600), Fake(Clock()), 30.0)
    assert states(made) == {
        name: "planned" if name in ("estimate", "measure", "refine") else "left out" for name in NAMES
    }
    assert made.part("tune").why == "it takes about 30 s and 30 s of the budget were left"
    assert made.part("measure").why == made.part("estimate").why == ""
    assert [part.name for part in made.parts if part.without] == ["measure"]
    over = made.with_part(msgspec.structs.replace(made.part("tune"), state="not needed", why="known"))
    assert planned(over, Fake(Clock()), 600.0).part("tune").why == "known"


def test_a_part_that_is_not_needed_takes_no_seconds_and_says_why() -> None:
    clock, heard = Clock(), Heard()
    work = Fake(clock)
    work.unneeded = {"verify": "decided"}
    study = conduct(begun(600), work, heard, lambda study: None, clock)
    part = study.part("verify")
    assert (part.state, part.planned_s, part.used_s, part.why) == ("not needed", 0.0, 0.0, "decided")
    assert heard.ended[1] == part
    assert "verify" not in work.ran


def test_time_of_a_part_that_fails_counts_on_top_of_what_it_used_before() -> None:
    clock, first = Clock(), begun(600)
    used = first.with_part(msgspec.structs.replace(first.part("tune"), used_s=10.0, why="old", without=("old",)))
    study = conduct(used, Fake(clock, {"tune": WorkFailed("died")}), Told(), lambda study: None, clock)
    part = study.part("tune")
    assert (part.state, part.used_s, part.why, part.without) == ("failed", 11.0, "died", ())
    again = conduct(used, Fake(clock), Told(), lambda study: None, clock).part("tune")
    assert (again.used_s, again.planned_s, again.why) == (40.0, 30.0, "")


def test_every_change_is_kept_as_it_comes() -> None:
    clock = Clock()
    kept: list[Study] = []
    conduct(begun(600), Fake(clock), Told(), kept.append, clock)
    assert len(kept) == 1 + 2 * len(NAMES)
    assert [states(study)["estimate"] for study in kept[:3]] == ["planned", "running", "done"]
    assert [kept[2].used_s, kept[4].used_s] == [40.0, 60.0]
