"""`tune` from a request to a search: which method, what is refused before anything starts, what is written down."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scalescope.engines.horovod import Horovod
from scalescope.errors import UsageError
from scalescope.jobs import launch as launching
from scalescope.jobs.plan import Settings
from scalescope.records.files import PLAN
from scalescope.records.profile import WorkloadSpec
from scalescope.records.run import Point
from scalescope.records.store import append, load, save
from scalescope.records.tuning import Gain, Sample, TuneRequest, Tuning, TuningCost, Values
from scalescope.tuner import run
from scalescope.tuner.journal import SAMPLES, TunePlan
from scalescope.tuner.run import dry_run, resume, resumed_as, tune
from told import Told
from tuner.made_launches import COMMAND

DECIDED: Values = {"bucket_cap_mb": 2.0}


def asked(**more: Any) -> TuneRequest:
    return TuneRequest(**{"command": COMMAND, "np": 1, "engine": "ddp", "device": "cpu", **more})


def tuning(decision: Any = "use") -> Tuning:
    return Tuning(
        what="train.py",
        engine="ddp",
        np=1,
        method="online",
        created="",
        scalescope="",
        knobs=(),
        decision=decision,
        values=DECIDED if decision == "use" else {},
        gain=Gain(value=0.1, low=0.05, high=0.15, pairs=5),
        samples=(Sample(index=0, phase="default", values={}, step_s=0.1),),
        cost=TuningCost(search_steps=1, confirm_steps=1, seconds=1.0, lost_s=0.0),
    )


class Search:
    """Takes the place of a search that launches, and keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[TuneRequest, Settings, Point, Path]] = []
        self.finished: Sequence[Sample] = ()
        self.notes: Sequence[str] = ()

    def __call__(
        self,
        request: TuneRequest,
        settings: Settings,
        point: Point,
        folder: Path,
        progress: object,
        finished: Sequence[Sample] = (),
        notes: Sequence[str] = (),
    ) -> Tuning:
        self.given.append((request, settings, point, folder))
        self.finished, self.notes = finished, notes
        return tuning()


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """In a folder with a script; no interpreter is asked for modules."""
    made = Search()
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(launching, "has_module", lambda python, module: True)
    monkeypatch.setattr(Horovod, "built_with", lambda self, python, what: what == "nccl")
    monkeypatch.setattr(run, "prepare", lambda: None)
    for method in ("online", "offline", "native"):
        monkeypatch.setattr(run, f"tune_{method}", made)
    return made


def test_a_search_is_written_down_and_made(search: Search, tmp_path: Path) -> None:
    told = Told()
    folder, found = (
        tmp_path / "out",
        tune(asked(folder="out", knobs=("threads-per-rank=2", "static_graph=true"), batch=8), told),
    )
    assert (found.folder, found) == (folder, tuning())
    ((request, settings, point, place),) = search.given
    assert (place, request.folder, settings.folder, settings.cwd) == (folder, *[str(folder)] * 2, str(tmp_path))
    assert (settings.threads_per_rank, settings.knobs["ddp"].values) == (2, {"static_graph": True})
    assert (point.engine, point.np, point.batch) == ("ddp", 1, 8)
    written = load(folder / PLAN, TunePlan)
    assert written.cwd == str(tmp_path)
    assert written.fingerprint is not None
    assert msgspec.structs.replace(written.request, env={}) == request
    assert told.notes == []
    assert not (tmp_path / "cache").exists(), "nothing is kept outside the folder of the results"


def test_a_folder_with_samples_is_not_searched_in_again(search: Search, tmp_path: Path) -> None:
    tune(asked(folder="out"), Told())
    append(Sample(index=0, phase="default", values={}), tmp_path / "out" / SAMPLES)
    with pytest.raises(UsageError, match=r"already holds a search: choose another folder with -o$"):
        tune(asked(folder="out"), Told())
    append(Sample(index=1, phase="confirm", pair=0, values={}), tmp_path / "out" / SAMPLES)
    with pytest.raises(UsageError, match="already holds a search: choose another folder with -o, or resume with"):
        tune(asked(folder="out"), Told())
    assert len(search.given) == 1


def test_a_setting_to_start_from_is_used_without_a_search(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []

    def use(*given: object) -> Tuning:
        used.append(given)
        return tuning()

    monkeypatch.setattr(run, "use_setting", use)
    tune(asked(folder="out", start_from=DECIDED, steps_per_sample=1), Told())
    assert search.given == []
    ((request, _, point, folder, method, steps, _),) = used
    assert (request.start_from, point.np, folder.name, method, steps) == (DECIDED, 1, "out", "online", None)


def test_horovods_log_is_copied_to_where_the_user_wants_it(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "why_not_live", lambda python, engine: "")

    def writes(request: TuneRequest, settings: Settings, point: Point, folder: Path, progress: object) -> Tuning:
        (folder / "autotune.csv").write_text("its log")
        return tuning()

    monkeypatch.setattr(run, "tune_native", writes)
    log = tmp_path / "mine.csv"
    tune(asked(folder="out", engine="horovod", method="native", log_file=str(log)), Told())
    assert log.read_text() == "its log"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"engine": "ddp", "method": "native"}, "--method native is Horovod's autotune: leave it out for "),
        ({"steps_per_sample": 3}, "--steps-per-sample 3 is too short to tell anything: give at least 4"),
        ({"steps_per_sample": 1, "method": "offline"}, "--steps-per-sample 1 is too short to tell anything"),
        ({"knobs": ("threads_per_rank=0",)}, "knob threads_per_rank takes a whole number from 1 to 4096, not 0"),
        ({"knobs": ("threads_per_rank=two",)}, "knob threads_per_rank takes a whole number from 1 to 4096, not 'two'"),
    ],
)
def test_impossible_searches_are_refused_before_anything_starts(
    more: dict[str, Any], told: str, search: Search, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        tune(asked(folder="out", **more), Told())
    assert str(caught.value).startswith(told)
    assert search.given == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "more",
    [
        {"steps_per_sample": 4},
        {"workload": WorkloadSpec(model="cnn"), "command": (), "steps": 100},
        {"method": "native", "engine": "horovod", "steps_per_sample": 1},
    ],
)
def test_a_dry_run_shows_possible_searches_without_starting_them(more: dict[str, Any], search: Search) -> None:
    assert dry_run(asked(**more))


def test_a_dry_run_shows_the_variables_of_a_search(search: Search, tmp_path: Path) -> None:
    def shown(**more: Any) -> str:
        return "\n".join(dry_run(asked(env={"MINE": "1"}, folder="out", **more)))

    online = shown()
    assert "SCALESCOPE_TUNE=1" in online
    assert str(tmp_path / "out" / "training") in online
    assert "HOROVOD_AUTOTUNE" not in online
    offline = shown(method="offline")
    assert "SCALESCOPE_TUNE" not in offline
    assert str(tmp_path / "out" / "launches" / "01-ddp-np1") in offline
    native = shown(engine="horovod", method="native")
    assert "SCALESCOPE_TUNE=1" in native
    assert "HOROVOD_AUTOTUNE=1" in native
    assert "HOROVOD_TORUS_ALLREDUCE" not in native, "this build has NCCL"


def test_how_an_interrupted_search_is_resumed(tmp_path: Path) -> None:
    assert resumed_as(asked(), tmp_path) is None
    append(Sample(index=0, phase="default", values={}), tmp_path / SAMPLES)
    assert resumed_as(asked(), tmp_path) is None
    append(Sample(index=1, phase="confirm", pair=0, values=DECIDED), tmp_path / SAMPLES)
    assert resumed_as(asked(), tmp_path) == "online"
    assert resumed_as(asked(method="native"), tmp_path) is None
    assert resumed_as(asked(start_from=DECIDED), tmp_path) is None
    assert resumed_as(asked(method="offline"), tmp_path) == "offline"
    (tmp_path / "launches").mkdir()
    assert resumed_as(asked(), tmp_path) == "offline"


def test_a_resumed_search_keeps_its_samples_and_takes_a_new_budget(search: Search, tmp_path: Path) -> None:
    tune(asked(folder="out", method="offline"), Told())
    sample = Sample(index=0, phase="default", values={}, step_s=0.1)
    append(sample, tmp_path / "out" / SAMPLES)
    with open(tmp_path / "out" / SAMPLES, "a") as file:
        file.write('{"torn')
    folder = resume(tmp_path / "out", Told(), budget_s=60.0).folder
    request, settings, _, place = search.given[-1]
    assert (folder, place, request.budget_s, settings.cwd) == (tmp_path / "out", place, 60.0, str(tmp_path))
    assert (list(search.finished), search.notes) == ([sample], ())


def test_a_comparison_is_resumed_while_it_trains(search: Search, tmp_path: Path) -> None:
    tune(asked(folder="out"), Told())
    with pytest.raises(UsageError, match="--resume needs an --offline search, or one that compared a setting"):
        resume(tmp_path / "out", Told())
    sample = Sample(index=1, phase="confirm", pair=0, values=DECIDED, step_s=0.1)
    append(sample, tmp_path / "out" / SAMPLES)
    resume(tmp_path / "out", Told())
    assert list(search.finished) == [sample]


def test_a_folder_that_cannot_be_resumed_is_an_error(search: Search, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no search to resume: name the folder that was given with -o"):
        resume(tmp_path, Told())
    (tmp_path / "gone").mkdir()
    tune(asked(folder="out", method="offline"), Told())
    written = load(tmp_path / "out" / PLAN, TunePlan)
    save(msgspec.structs.replace(written, cwd=str(tmp_path / "gone")), tmp_path / "out" / PLAN)
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="gone, where the search was started, does not exist: create it"):
        resume(tmp_path / "out", Told())


def test_an_interrupt_names_the_folder(search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> Tuning:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "tune_online", interrupted)
    with pytest.raises(KeyboardInterrupt, match=str(tmp_path / "out")):
        tune(asked(folder="out"), Told())


def test_online_is_the_usual_method_where_knobs_change_while_training(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    for method in ("online", "offline"):
        monkeypatch.setattr(run, f"tune_{method}", lambda *given, method=method: made.append(method) or tuning())
    tune(asked(folder="usual"), Told())
    tune(asked(folder="other", method="offline"), Told())
    assert made == ["online", "offline"]
