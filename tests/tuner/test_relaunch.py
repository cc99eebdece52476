"""A search by relaunch: what every launch is told, how a budget ends it, and what is kept."""

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.progress import Progress
from scalescope.records.files import TUNING
from scalescope.records.job import Host
from scalescope.records.store import load, load_lines
from scalescope.records.tuning import Sample, Tuning, TuningCost, Values
from scalescope.tuner.blocks import Block
from scalescope.tuner.journal import SAMPLES, Journal
from scalescope.tuner.offline import (
    SURVEY,
    Launches,
    fixed_by_user,
    search_by_launches,
    tune_offline,
    use_setting,
)
from scalescope.tuner.search import OFFLINE
from scalescope.tuner.tuner import Tuner
from told import Told
from tuner.landscapes import space
from tuner.made_launches import made, point, request, settings
from tuner.surveys import survey

FINALIST: Values = {"bucket_cap_mb": 1.0}
SMALL = survey(8.0, tensors=4)


def faster_in_small_buckets(values: Values) -> float:
    return 0.08 if float(values.get("bucket_cap_mb", 25.0)) <= 4 else 0.1


def test_a_launch_has_the_fixed_knobs_and_those_of_its_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = made(monkeypatch, lambda values: 0.1)
    ours = Launches(request(), settings(tmp_path, static_graph=True, bucket_cap_mb=8.0), point(), Progress())
    block = ours.make(4, {"bucket_cap_mb": 2.0, "threads_per_rank": 3}, {"MORE": "1"})
    ((told, number, at, steps),) = launches.asked
    assert told.knobs["ddp"].values == {"static_graph": True, "bucket_cap_mb": 2.0}
    assert (told.threads_per_rank, at.threads_per_rank, number) == (3, 3, 5)
    assert told.request.env == {"OURS": "yes", "MORE": "1"}
    assert steps == told.request.steps == 40 + 40, "one sample of warm-up, one that is measured"
    assert block == Block(step_s=(0.1,), steps=40, discarded=40, seconds=5.0)


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        ({"warmup_samples": 0}, 40),
        ({"warmup_samples": 3}, 160),
        ({"steps_per_sample": 15}, 30),
        ({"steps": 25}, 25),
    ],
)
def test_warmup_samples_and_steps_say_how_long_a_launch_is(
    more: dict[str, Any], steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = made(monkeypatch, lambda values: 0.1)
    Launches(request(**more), settings(tmp_path), point(), Progress()).make(0, {})
    ((told, _, at, made_steps),) = launches.asked
    assert made_steps == steps
    assert (told.threads_per_rank, at.threads_per_rank) == (1, 1)


def test_a_failed_launch_is_a_block_with_its_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, lambda values: "rank 1 died")
    assert Launches(request(), settings(tmp_path), point(), Progress()).make(0, {}) == Block(
        step_s=(), problem="rank 1 died"
    )


def test_an_engine_that_ranks_do_not_use_is_refused_after_one_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = made(monkeypatch, faster_in_small_buckets)
    (tmp_path / SURVEY).write_text(json.dumps({**SMALL, "engine": "horovod"}))
    with pytest.raises(UsageError, match="the script trains with Horovod, not with DDP: add --engine horovod"):
        tune_offline(request(), settings(tmp_path), point(), tmp_path, Progress())
    assert len(launches.asked) == 1


def test_the_winner_of_launches_is_used_and_every_launch_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = made(monkeypatch, faster_in_small_buckets)

    def leave_a_survey(told: Any) -> None:
        if "SCALESCOPE_SURVEY" in told.request.env:
            place = Path(told.folder) / "launches" / "01-ddp"
            place.mkdir(parents=True)
            (place / SURVEY).write_text(json.dumps(SMALL))

    launches.on_launch = leave_a_survey
    told = Told()
    asked, settled = request(max_samples=6, knobs=("first_bucket_mb=1",)), settings(tmp_path, first_bucket_mb=1.0)
    found = tune_offline(asked, settled, point(), tmp_path, told, notes=("moved",))
    assert found.decision == "use"
    assert float(found.values["bucket_cap_mb"]) <= 4
    assert found.gain is not None
    assert found.gain.value == pytest.approx(0.25, abs=0.02)
    assert (found.method, found.nodes, found.notes) == ("offline", 1, ("moved",))
    assert found.prior == "a survey of this training"
    assert len(launches.asked) == len(found.samples) == len(load_lines(tmp_path / SAMPLES, Sample))
    assert [bool("SCALESCOPE_SURVEY" in each[0].request.env) for each in launches.asked] == [
        True,
        *[False] * (len(found.samples) - 1),
    ]
    assert launches.asked[0][0].request.env["SCALESCOPE_SURVEY"] == "10"
    assert [number for _, number, _, _ in launches.asked] == list(range(1, 1 + len(found.samples)))
    assert json.loads((tmp_path / SURVEY).read_text()) == SMALL
    assert told.notes == [
        "Tuning by relaunch: at most 6 launches to search, then the best ones against the default, at most 20 pairs."
    ]
    assert told.stages[0][0] == "sample 0 of at most 6 · now the default"
    assert len(told.stages) == len(told.details) == len(found.samples)
    assert load(tmp_path / TUNING, Tuning) == found


def test_a_resumed_search_launches_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = made(monkeypatch, faster_in_small_buckets)
    whole = tune_offline(request(max_samples=4), settings(tmp_path), point(), tmp_path, Progress())
    assert whole.prior == "none: the search goes by samples alone"
    before = len(launches.asked)
    told = Told()
    resumed = tune_offline(
        request(max_samples=4), settings(tmp_path), point(), tmp_path, told, finished=whole.samples[:3]
    )
    assert len(launches.asked) - before == len(resumed.samples) - 3
    assert resumed.samples[:3] == whole.samples[:3]
    assert resumed.decision == whole.decision
    assert told.notes == []


def test_a_default_that_fails_ends_a_search_by_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, lambda values: "rank 1 died")
    with pytest.raises(WorkFailed, match=r"failed with its defaults: rank 1 died; see its output in "):
        tune_offline(request(), settings(tmp_path), point(), tmp_path, Progress())


class Clocked(Launches):
    """Launches of 10 s on a clock that is set by hand."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float | None) -> None:
        self.now_s, self.asked = 100.0, list[Values]()
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        super().__init__(request(budget_s=budget_s), settings(folder), point(), Progress())

    def make(self, number: int, values: Values, env: dict[str, str] | None = None) -> Block:
        self.asked.append(values)
        self.now_s += 10.0
        return Block(step_s=(0.08 if values else 0.1,), steps=40, discarded=40, seconds=10.0)


def searched(folder: Path, launches: Launches, finalist: Values | None, first: Block | None = None) -> Tuning:
    tuner = Tuner(space(), None, OFFLINE, finalist=finalist)
    journal = Journal(folder, request(), space(), tuner, method="offline")
    return search_by_launches(launches, tuner, journal, Progress(), first)


def test_no_launch_begins_that_would_end_after_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Clocked(tmp_path, monkeypatch, 45.0)
    found = searched(tmp_path, launches, FINALIST)
    assert len(launches.asked) == 4, "the fifth would end after 50 s"
    assert (found.decision, found.complete) == ("undecided", True)
    assert found.reason.startswith("the budget of 45 s is spent")
    exact = searched(tmp_path / "exact", longer := Clocked(tmp_path, monkeypatch, 40.0), FINALIST)
    assert exact.decision == "undecided"
    assert len(longer.asked) == 4, "a launch that ends with the budget is made"
    unlimited = searched(tmp_path / "unlimited", Clocked(tmp_path, monkeypatch, None), FINALIST)
    assert (unlimited.decision, unlimited.values) == ("use", FINALIST)


def test_the_launch_that_was_made_before_the_search_counts_for_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Clocked(tmp_path, monkeypatch, 45.0)
    searched(tmp_path, launches, FINALIST, launches.make(0, {}))
    assert len(launches.asked) == 4


def test_half_of_a_budget_is_for_the_search_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Clocked(tmp_path, monkeypatch, 100.0)
    found = searched(tmp_path, launches, None)
    phases = [sample.phase for sample in found.samples]
    assert phases[:3] == ["default"] * 3
    assert phases.count("search") == 2, "they end after 40 s and 50 s"
    assert "confirm" in phases


def test_a_launch_that_was_made_already_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Clocked(tmp_path, monkeypatch, 15.0)
    first = Block(step_s=(0.5,), steps=40, seconds=30.0)
    found = searched(tmp_path, launches, FINALIST, first)
    assert launches.asked == [], "what takes 30 s does not fit into 15 s"
    assert [sample.step_s for sample in found.samples] == [0.5]


def test_an_interrupted_search_keeps_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Clocked):
        def make(self, number: int, values: Values, env: dict[str, str] | None = None) -> Block:
            if len(self.asked) == 3:
                raise KeyboardInterrupt
            return super().make(number, values, env)

    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path, Interrupted(tmp_path, monkeypatch, None), FINALIST)
    kept = load(tmp_path / TUNING, Tuning)
    assert (len(kept.samples), kept.complete, kept.decision) == (3, False, "undecided")
    assert kept.reason == "interrupted before it was decided"


def test_a_setting_found_earlier_trains_without_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = made(monkeypatch, faster_in_small_buckets)
    asked, told = request(start_from=FINALIST, knobs=("static_graph=true",)), Told()
    used = use_setting(asked, settings(tmp_path, static_graph=True), point(), tmp_path, "offline", 60, told)
    assert (used.decision, used.values, used.held) == ("use", FINALIST, {"static_graph": True})
    assert (used.winner_step_s, used.nodes, used.notes) == (0.08, 1, ("a warning",))
    assert used.cost == TuningCost(warmup_steps=0, search_steps=0, confirm_steps=0, seconds=0.0, lost_s=0.0)
    assert launches.asked[0][1] == 1
    assert launches.asked[0][3] == 60
    assert launches.values == [{"static_graph": True, **FINALIST}]
    assert told.notes == ["Training with the setting that was found earlier; nothing is searched."]
    assert load(tmp_path / TUNING, Tuning) == used
    made(monkeypatch, lambda values: "rank 1 died")
    with pytest.raises(WorkFailed, match="with the setting found earlier: rank 1 died\nits last lines"):
        use_setting(asked, settings(tmp_path), point(), tmp_path, "offline", 60, Progress())


def test_only_knobs_that_the_user_named_are_fixed(tmp_path: Path) -> None:
    settled = settings(tmp_path, bucket_cap_mb=8.0, static_graph=True)
    assert fixed_by_user(request(), settled, point()) == {}
    held = ("bucket-cap-mb=8", "threads_per_rank=1")
    assert fixed_by_user(request(knobs=held), settled, point()) == {"bucket_cap_mb": 8.0, "threads_per_rank": 1}
    assert fixed_by_user(request(threads_per_rank=1), settled, point()) == {"threads_per_rank": 1}


def test_every_rank_has_a_host_in_a_search_over_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, lambda values: 0.1)
    there = msgspec.structs.replace(settings(tmp_path), hosts=(Host("a", 1), Host("b", 1)))
    found = tune_offline(request(max_samples=3), there, point(), tmp_path, Progress())
    assert found.nodes == 2
    assert found.left_out["hierarchical_allreduce"] == "every host has one rank"
