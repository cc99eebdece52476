"""A search next to a training: what it sends, when it gives up, and what it says when there is nothing."""

from pathlib import Path
from typing import Any

import made_tunings
import msgspec
import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.records.files import TUNING
from scalescope.records.profile import WorkloadSpec
from scalescope.records.store import load, load_lines
from scalescope.records.tuning import RAN_TO_ITS_END, Sample, Tuning, Values
from scalescope.tuner import online
from scalescope.tuner.journal import SAMPLES
from scalescope.tuner.online import OnlineSearch, _GivenUp, _Relay
from told import Told
from tuner.made_launches import request
from tuner.made_ranks import MadeRanks, searched

SETTING: Values = {"bucket_cap_mb": 1.0, "first_bucket_mb": 1.0}
MODEL = {"workload": WorkloadSpec(model="cnn"), "command": ()}


def faster(values: Values) -> float:
    return 0.08 if float(values.get("bucket_cap_mb", 25.0)) <= 2 else 0.1


def samples_heard(ranks: MadeRanks) -> list[dict[str, Any]]:
    return [directive for directive in ranks.heard if directive["kind"] == "sample"]


def test_the_ranks_hear_warmup_survey_samples_and_the_winner(tmp_path: Path) -> None:
    told, ranks = Told(), MadeRanks(tmp_path / "training", faster)
    asked = request(confirm=SETTING)
    found = searched(tmp_path, ranks, asked, fixed={"static_graph": True}, told=told).found()
    first, survey, *_, last = ranks.heard
    assert (first["kind"], first["steps"]) == ("warmup", 20)
    assert (survey["kind"], survey["steps"]) == ("survey", 3)
    assert last["kind"] == "free"
    assert last["values"] == {"static_graph": True, **SETTING}
    samples = samples_heard(ranks)
    assert [each["discard"] for each in samples] == [2] * len(samples)
    assert [each["check"] for each in samples] == [3] * len(samples)
    assert [each["limit_ns"] for each in samples] == [None] * len(samples)
    assert all(each["values"]["static_graph"] is True for each in samples)
    assert (found.decision, found.nodes, found.cost.warmup_steps) == ("use", 1, 23)
    assert told.stages[0] == ("sample 0 of at most 12 · now the default", None, None)
    assert told.stages[-1][0] == "training to its end"
    assert len(told.stages) - 1 == len(told.details) == len(found.samples) == len(samples)
    assert told.notes == [
        "Tuning while it trains: 20 steps of warm-up, at most 12 samples of 10 steps, "
        "then the best one against the default.",
        "Decided; the training continues to its end with it.",
    ]


def test_knobs_of_an_engine_that_ranks_do_not_use_are_not_fixed(tmp_path: Path) -> None:
    ranks = MadeRanks(tmp_path / "training", faster)
    found = searched(tmp_path, ranks, request(confirm=SETTING), fixed={"controller": "gloo"}).found()
    assert (found.engine, found.held) == ("ddp", {})
    assert all("controller" not in each["values"] for each in samples_heard(ranks))


def test_a_sample_is_charged_from_the_end_of_the_one_before_it(tmp_path: Path) -> None:
    ranks = MadeRanks(tmp_path / "training", lambda values: 0.1)
    found = searched(tmp_path, ranks, request(confirm=SETTING)).found()
    first, second, *_ = found.samples
    assert first.step_s == pytest.approx(0.1)
    assert first.seconds == pytest.approx(1.2), "of its own 2 + 10 steps"
    assert second.seconds == pytest.approx(0.1 * (2 + second.steps))
    assert (first.other_steps, first.steps) == (2, 10)


def test_a_sample_that_may_be_cut_carries_its_limit(tmp_path: Path) -> None:
    ranks = MadeRanks(tmp_path / "training", lambda values: 0.1)
    searched(tmp_path, ranks, request(max_samples=4)).found()
    limits = [each["limit_ns"] for each in samples_heard(ranks)]
    assert limits[:2] == [None, None]
    assert limits[2] == pytest.approx(150_000_000, rel=1e-6)


def test_a_model_is_stopped_when_it_is_decided(tmp_path: Path) -> None:
    told, ranks = Told(), MadeRanks(tmp_path / "training", faster)
    search = searched(tmp_path, ranks, request(confirm=SETTING, **MODEL), told=told)
    assert search.ends_the_training
    assert search.found().decision == "use"
    assert ranks.heard[-1]["kind"] == "stop"
    assert [note.partition(":")[0] for note in told.notes] == ["Tuning while it trains"]
    with_steps = OnlineSearch(request(steps=100, **MODEL), tmp_path, tmp_path, {}, Told(), lambda: True)
    assert not with_steps.ends_the_training


def test_a_refusal_of_ranks_says_that_the_training_continues(tmp_path: Path) -> None:
    told = Told()
    ranks = MadeRanks(tmp_path / "training", faster, hello={"refused": "the script has a hook"})
    search = searched(tmp_path, ranks, request(), told=told)
    assert search.has_given_up
    assert ranks.heard == [{"id": 0, "kind": "let_go", "why": "the script has a hook"}]
    assert told.notes == ["Not tuned: the script has a hook; the training goes on as it was."]
    with pytest.raises(UsageError, match=r"^not tuned: the script has a hook; it ran on$"):
        search.found(fate="; it ran on")


def test_a_refused_model_is_not_said_to_continue(tmp_path: Path) -> None:
    told = Told()
    ranks = MadeRanks(tmp_path / "training", faster, hello={"refused": "no"})
    searched(tmp_path, ranks, request(**MODEL), told=told)
    assert told.notes == []


def test_a_search_that_breaks_lets_the_ranks_go(tmp_path: Path) -> None:
    ranks = MadeRanks(tmp_path / "training", faster)
    (tmp_path / "tune.csv").write_text("import torch\n")
    search = searched(tmp_path, ranks, request())
    with pytest.raises(UsageError, match="is not a log of scalescope tune"):
        search.found()
    assert "is not a log of scalescope tune" in ranks.heard[-1]["why"]


def test_an_error_of_the_search_itself_is_reported_by_its_type(tmp_path: Path) -> None:
    class Broken(OnlineSearch):
        def _plan(self) -> str:
            raise ZeroDivisionError("by zero")

    ranks = MadeRanks(tmp_path / "training", faster)
    search = searched(tmp_path, ranks, request(), Broken)
    with pytest.raises(WorkFailed, match=r"^the search failed: ZeroDivisionError: by zero$"):
        search.found()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (1, "the training made 1 step and the first sample needs 35: let it train longer, or ask for less with"),
        (34, "the training made 34 steps and the first sample needs 35"),
        (35, "the training was over after 35 steps, before its first sample"),
    ],
)
def test_a_training_that_is_too_short_is_an_error_with_the_steps_needed(made: int, told: str, tmp_path: Path) -> None:
    search = OnlineSearch(request(), tmp_path, tmp_path, {}, Told(), lambda: True)
    search.run()
    with pytest.raises(UsageError) as caught:
        search.found(steps=made)
    assert str(caught.value).startswith(told)
    less = OnlineSearch(request(warmup_samples=0, steps_per_sample=5), tmp_path, tmp_path, {}, Told(), lambda: True)
    with pytest.raises(UsageError, match="made 0 steps and the first sample needs 10:"):
        less.found()


def test_a_training_that_ends_in_the_comparison_leaves_it_undecided(tmp_path: Path) -> None:
    ranks = MadeRanks(tmp_path / "training", faster, steps=60)
    found = searched(tmp_path, ranks, request(confirm=SETTING)).found()
    assert (found.complete, found.decision) == (False, "undecided")
    assert found.reason == "the training ended before it was decided"
    assert len(found.samples) == len(load_lines(tmp_path / SAMPLES, Sample)) > 1


def test_a_training_that_ends_before_any_sample_is_too_short(tmp_path: Path) -> None:
    ranks = MadeRanks(tmp_path / "training", faster, steps=25)
    search = searched(tmp_path, ranks, request(confirm=SETTING))
    assert search.tuning is None
    with pytest.raises(UsageError, match=f"made {ranks.made} steps and the first sample needs 35"):
        search.found()


def test_a_training_that_allows_few_switches_ends_the_search_with_that(tmp_path: Path) -> None:
    ranks = MadeRanks(tmp_path / "training", faster, hello={"most_switches": 4}, report={"switch_ns": 1000})
    found = searched(tmp_path, ranks, request()).found()
    assert found.decision == "undecided"
    assert found.reason.startswith("this training allows no more switches")
    assert len(found.samples) == 4
    assert [sample.switch_s for sample in found.samples] == [pytest.approx(1e-6)] * 4
    none = MadeRanks(tmp_path / "all" / "training", faster, hello={"most_switches": 4})
    found = searched(tmp_path / "all", none, request(confirm=SETTING)).found()
    assert len(found.samples) == 1, "a comparison of more blocks than switches is not begun"


def test_a_knob_that_turns_out_to_be_unchangeable_is_not_tried_again(tmp_path: Path) -> None:
    why = {"bucket_cap_mb": "the buckets were rebuilt", "first_bucket_mb": "so was the first"}
    ranks = MadeRanks(tmp_path / "training", faster, report={"fixed": why})
    found = searched(tmp_path, ranks, request(max_samples=6)).found()
    assert found.notes[:2] == (
        "bucket_cap_mb is fixed: the buckets were rebuilt",
        "first_bucket_mb is fixed: so was the first",
    )
    assert all(not sample.values for sample in found.samples)


def test_an_undecided_comparison_is_resumed_in_another_launch(tmp_path: Path) -> None:
    short = MadeRanks(tmp_path / "training", faster, steps=60)
    begun = searched(tmp_path, short, request(confirm=SETTING)).found()
    again = MadeRanks(tmp_path / "again", faster)
    search = OnlineSearch(
        request(confirm=SETTING), tmp_path, tmp_path / "again", {}, Told(), again.over.is_set, begun.samples
    )
    again.start()
    search.run()
    again.join()
    found = search.found()
    assert (found.decision, found.values) == ("use", SETTING)
    assert found.samples[: len(begun.samples)] == begun.samples
    assert len(samples_heard(again)) >= len(found.samples) - len(begun.samples)


def test_steps_of_a_model_end_its_launch_once_the_search_has_given_up() -> None:
    class Search:
        has_given_up = False

    search, told = Search(), Told()
    relay = _Relay(told, search)  # type: ignore[arg-type]
    relay.advance(3)
    relay.output("rank 0", "a line")
    assert (told.steps, told.lines) == ([3], [("rank 0", "a line")])
    search.has_given_up = True
    with pytest.raises(_GivenUp):
        relay.advance(4)
    assert told.steps == [3]


class _Log(msgspec.Struct):
    events: int


class _Watch(msgspec.Struct):
    logs: tuple[_Log, ...]


class _Launched(msgspec.Struct):
    watch: _Watch
    problem: str = ""
    details: str = ""


@pytest.mark.parametrize(("problem", "exits"), [("", UsageError), ("rank 1 died", WorkFailed)])
def test_the_error_includes_the_end_of_the_launch(
    problem: str, exits: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.made_launches import point, settings

    asked: list[Any] = []

    def run_job(settled: Any, at: Any, place: Path, steps: int, progress: Any, **more: Any) -> _Launched:
        asked.append((settled.request.env, place, steps, more))
        return _Launched(_Watch((_Log(9), _Log(7))), problem, "its last lines" if problem else "")

    monkeypatch.setattr(online, "run_job", run_job)
    with pytest.raises(exits) as caught:
        online.tune_online(request(), settings(tmp_path), point(), tmp_path, Told())
    told = "rank 1 died; nothing was tuned\nits last lines" if problem else "the training made 7 steps and"
    assert str(caught.value).startswith(told)
    assert asked == [
        ({"OURS": "yes", "SCALESCOPE_TUNE": "1"}, tmp_path / "training", 1_000_000_000, {"keeps_steps": False})
    ]


@pytest.mark.parametrize(
    ("command", "limit", "noted"),
    [(("x.py",), 500, True), (("x.py",), 7, False), (("x.py",), None, False), (("x.py", "{run_dir}"), 500, False)],
)
def test_a_script_that_ended_before_it_was_stopped_has_saved_what_it_saves(
    command: tuple[str, ...], limit: int | None, noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.made_launches import point, settings

    class Search:
        tuning = made_tunings.keep_default()
        ends_the_training = False

        def __init__(self, *given: object) -> None:
            pass

        def run(self) -> None:
            pass

        def found(self, steps: int | None = None, fate: str = "") -> Tuning:
            return self.tuning

    monkeypatch.setattr(online, "run_job", lambda *given, **more: _Launched(_Watch((_Log(9), _Log(7)))))
    asked = msgspec.structs.replace(request(), workload=None, command=command, steps=limit)
    found = online.tune_online(asked, settings(tmp_path), point(), tmp_path, Told(), Search)  # type: ignore[arg-type]
    assert (RAN_TO_ITS_END in found.notes) == noted
    assert not noted or load(tmp_path / TUNING, Tuning).notes == found.notes
