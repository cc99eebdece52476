"""Horovod's own autotune inside one launch, or in a launch of its own, then its choice against the default."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.progress import Progress
from scalescope.records.files import TUNING
from scalescope.records.store import load
from scalescope.records.tuning import Tuning, Values
from scalescope.tuner.native import LOG, NativeSearch, autotune_variables, tune_native_by_relaunch
from told import Told
from tuner.made_launches import made, point, request, settings
from tuner.made_ranks import MadeRanks, searched

CHOICE: Values = {"fusion_threshold_mb": 8.0, "cycle_time_ms": 5.0}
HEAD = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
    "cycle_time_ms,tensor_fusion_threshold,score\n"
)
FINISHED = HEAD + "0,0,0, 1,25,16,100\n0,0,0, 1,5,8,200\n0,0,0, 1,5,8,200\n"
UNFINISHED = HEAD + "0,0,0, 1,25,16,100\n0,0,0, 1,5,8,200\n"


def faster(values: Values) -> float:
    return 0.08 if values.get("cycle_time_ms") == 5.0 else 0.1


def ranks_of(folder: Path, texts: list[str], **more: Any) -> MadeRanks:
    """Ranks whose Horovod writes one of these logs in each sample with autotune."""
    left = list(texts)
    ranks = MadeRanks(folder / "training", faster, **{"hello": {"engine": "horovod"}, **more})

    def write(directive: dict[str, Any]) -> None:
        if "variables" in directive:
            Path(directive["variables"]["HOROVOD_AUTOTUNE_LOG"]).write_text(left.pop(0))

    ranks.on_sample = write
    return ranks


def test_variables_start_autotune_and_keep_fixed_knobs(tmp_path: Path) -> None:
    log = tmp_path / LOG
    plain = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(log),
        "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
        "HOROVOD_CACHE_CAPACITY": "1024",
    }
    inert = {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0", "HOROVOD_TORUS_ALLREDUCE": "0"}
    assert autotune_variables(request(), log, nccl_build=True) == plain
    assert autotune_variables(request(), log, nccl_build=False) == {**plain, **inert}
    held = autotune_variables(request(knobs=("cache-capacity=0", "torus_allreduce=true")), log, nccl_build=False)
    assert held == {
        name: text
        for name, text in {**plain, **inert}.items()
        if name not in ("HOROVOD_CACHE_CAPACITY", "HOROVOD_TORUS_ALLREDUCE")
    }
    told = autotune_variables(
        request(warmup_samples=0, steps_per_sample=4, max_samples=6, gp_noise=0.5, autotune_noise=0.25),
        log,
        nccl_build=True,
    )
    assert {name: text for name, text in told.items() if name not in plain} == {
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "4",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.25",
    }


def test_while_it_trains_autotune_runs_between_the_default_and_the_comparison(tmp_path: Path) -> None:
    told = Told()
    asked = request(engine="horovod", method="native", max_samples=2, steps_per_sample=5, warmup_samples=1)
    ranks = ranks_of(tmp_path, [FINISHED])
    tuning = searched(tmp_path, ranks, asked, NativeSearch, told=told).found()
    enough = (1 + 3 + 1) * (5 * 5 + 1)
    assert told.notes[:1] == [
        f"Horovod's autotune while it trains: {enough} steps; then its choice against the default."
    ]
    assert (tuning.decision, tuning.values, tuning.method) == ("use", CHOICE, "native")
    assert tuning.notes == ("Horovod's autotune finished: 2 samples, read it with explain autotune.csv",)
    assert tuning.prior == "none: Horovod's autotune chose"
    assert (tuning.nodes, tuning.cost.warmup_steps) == (1, 1 * 5 + enough)
    kinds = [directive["kind"] for directive in ranks.heard]
    assert kinds[0] == "warmup"
    assert kinds[-1] == "free"
    first, autotune, *rest = [directive for directive in ranks.heard if directive["kind"] == "sample"]
    assert (first["steps"], first["discard"], first["check"]) == (5, 2, 0)
    assert (autotune["steps"], autotune["discard"]) == (enough, 0)
    assert all("variables" not in directive for directive in (first, *rest))
    assert {str(each["values"]) for each in rest} == {"{}", str(CHOICE)}
    assert [sample.phase for sample in tuning.samples[:2]] == ["default", "confirm"]
    assert {knob.name: knob.values for knob in tuning.knobs} == {name: (None, value) for name, value in CHOICE.items()}
    assert all(knob.logarithmic for knob in tuning.knobs)
    assert tuning.left_out["torus_allreduce"] == "searched by NCCL builds only"
    assert load(tmp_path / TUNING, Tuning) == tuning


def test_an_autotune_that_has_not_finished_gets_a_quarter_more_three_times(tmp_path: Path) -> None:
    asked = request(engine="horovod", method="native", max_samples=1, steps_per_sample=1, warmup_samples=0)
    ranks = ranks_of(tmp_path, [UNFINISHED] * 4)
    tuning = searched(tmp_path, ranks, asked, NativeSearch).found()
    lengths = [directive["steps"] for directive in ranks.heard if "variables" in directive]
    assert lengths == [18, 5, 5, 5], "(0 + 2 + 1) samples of 5 steps and a switch, then a quarter, rounded up"
    assert tuning.notes == ("Horovod's autotune did not finish: 2 samples, read it with explain autotune.csv",)
    assert tuning.cost.warmup_steps == 33


def test_an_nccl_build_searches_once_for_every_combination_of_free_switches(tmp_path: Path) -> None:
    def steps(folder: str, **more: Any) -> int:
        asked = request(engine="horovod", max_samples=1, steps_per_sample=1, warmup_samples=0, **more)
        ranks = ranks_of(tmp_path / folder, [FINISHED], hello={"engine": "horovod", "nccl_build": True})
        searched(tmp_path / folder, ranks, asked, NativeSearch).found()
        (found,) = [directive["steps"] for directive in ranks.heard if "variables" in directive]
        return int(found)

    assert steps("free") == (4 * 2 + 1) * 6
    assert steps("held", knobs=("torus-allreduce=false",)) == (2 * 2 + 1) * 6


def test_autotune_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, [FINISHED], report={"problem": "no copy of the library"})
    search = searched(tmp_path, ranks, request(engine="horovod"), NativeSearch)
    with pytest.raises(WorkFailed, match="the search failed: Horovod's autotune did not run: no copy of the library"):
        search.found()


def test_a_training_shorter_than_autotune_is_an_error_with_the_steps_needed(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, [FINISHED], steps=30)
    search = searched(tmp_path, ranks, request(engine="horovod"), NativeSearch)
    with pytest.raises(UsageError, match=f"the first sample needs {2 * 10 + 3 + 2 + 10 + (3 + 21 + 1) * 51}"):
        search.found()


def test_an_autotune_in_a_launch_of_its_own_is_compared_by_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = made(monkeypatch, faster)

    def write(told: Any) -> None:
        if "HOROVOD_AUTOTUNE" in told.request.env:
            Path(told.request.env["HOROVOD_AUTOTUNE_LOG"]).write_text(FINISHED)

    launches.on_launch = write
    asked = request(engine="horovod", max_samples=4, steps_per_sample=5, knobs=("controller=gloo",))
    settled, told = settings(tmp_path, "horovod", controller="gloo"), Told()
    found = tune_native_by_relaunch(asked, settled, point("horovod"), tmp_path, told)
    steps = (3 + 5 + 1) * (5 * 5 + 1)
    assert told.notes == [
        f"Horovod's autotune first: {steps} steps in one launch; then its choice and the default alternately."
    ]
    assert launches.asked[0][3] == steps == found.cost.warmup_steps
    assert (found.decision, found.values, found.held) == ("use", CHOICE, {"controller": "gloo"})
    assert (found.method, len(launches.asked)) == ("offline", 1 + len(found.samples))
    (tmp_path / LOG).write_text("")
    launches.on_launch = lambda told: None
    with pytest.raises(UsageError, match=f"wrote nothing in {steps} steps: let it train for at least {steps}"):
        tune_native_by_relaunch(asked, settled, point("horovod"), tmp_path, Progress())
    made(monkeypatch, lambda values: "rank 1 died")
    with pytest.raises(WorkFailed, match="with Horovod's autotune failed: rank 1 died\nits last lines"):
        tune_native_by_relaunch(asked, settled, point("horovod"), tmp_path, Progress())
