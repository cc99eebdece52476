"""A study from its request to its folder: what is settled, what is refused, what is resumed, and what its end says."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from test_expectations import MODEL
from test_study_budget import NAMES, Clock, Fake, begun, states

from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.folders import held, result_folder
from scalescope.jobs.rank_program import starting_s
from scalescope.measurement.fingerprint import fingerprint_here
from scalescope.progress import Progress
from scalescope.records.job import Host
from scalescope.records.store import load, save
from scalescope.records.study import STUDY, Study, StudyPlan, StudyRequest
from scalescope.studies import run as module
from scalescope.studies.run import dry_run, resolve, resume, study
from scalescope.verbs import find_verb

REQUEST = StudyRequest(
    workload=MODEL, device="cpu", np=(1, 2), engines=("ddp",), budget_s=600.0, oversubscribe=True, env={"A": "1"}
)
SCRIPT = StudyRequest(command=(sys.executable, "x.py"), device="cpu", np=(1, 2), engines=("ddp",), oversubscribe=True)
PLAN = StudyPlan(
    request=REQUEST, cwd="/", engines=("ddp",), np=(1, 2), batches=(8,), start_s=4.0, sample_s=0.001, notes=("old",)
)


class FakeParts(Fake):
    """Parts that take no time of the real clock."""

    made: "list[FakeParts]"
    fails: dict[str, float | BaseException]

    def __init__(self, plan: StudyPlan, folder: Path) -> None:
        super().__init__(Clock(), self.fails)
        self.plan, self.folder = plan, folder
        self.parts = begun(600).parts
        self.made.append(self)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeParts]]:
    FakeParts.made, FakeParts.fails = [], {}
    monkeypatch.setattr(module, "Parts", FakeParts)
    monkeypatch.setattr(module, "resolve", lambda request: msgspec.structs.replace(PLAN, request=request))
    yield FakeParts
    FakeParts.made, FakeParts.fails = [], {}


def to(folder: Path, **changes: Any) -> StudyRequest:
    return msgspec.structs.replace(REQUEST, folder=str(folder), **changes)


def test_a_study_leaves_its_plan_and_its_parts_in_its_folder(tmp_path: Path, fakes: type[FakeParts]) -> None:
    ended = study(to(tmp_path / "s"), Progress())
    folder = tmp_path / "s"
    assert ended.folder == folder
    assert (ended.what, ended.budget_s, set(states(ended).values())) == ("mlp", 600.0, {"done"})
    assert load(folder / STUDY, Study) == ended
    kept = load(folder / "plan.json", StudyPlan)
    assert (kept.np, kept.request.folder) == ((1, 2), str(folder))
    assert kept.request.env["A"] != "1"  # its value is for its owner alone
    assert (fakes.made[0].plan.request.env, fakes.made[0].folder) == ({"A": "1"}, folder)


def test_time_spent_on_the_plan_counts_as_used(
    tmp_path: Path, fakes: type[FakeParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()

    def slowly(request: StudyRequest) -> StudyPlan:
        clock.now += 560
        return PLAN

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(module, "resolve", slowly)
    assert study(to(tmp_path / "s"), Progress()).part("engines").state == "left out"


def test_a_folder_that_holds_a_study_is_not_begun_again(tmp_path: Path, fakes: type[FakeParts]) -> None:
    study(to(tmp_path / "s"), Progress())
    with pytest.raises(UsageError, match="already holds a study: resume it with --resume, or choose another folder"):
        study(to(tmp_path / "s"), Progress())
    with result_folder("tune", tmp_path / "t"):
        pass
    with pytest.raises(UsageError, match="holds results of scalescope tune: choose another folder with -o"):
        study(to(tmp_path / "t"), Progress())
    assert len(fakes.made) == 1


def test_a_study_of_which_no_part_is_done_has_failed(tmp_path: Path, fakes: type[FakeParts]) -> None:
    fakes.fails = {name: WorkFailed(f"{name} died") for name in NAMES}
    with pytest.raises(WorkFailed, match=r"^no part of the study succeeded; estimate: estimate died$"):
        study(to(tmp_path / "s"), Progress())
    assert set(states(load(tmp_path / "s" / STUDY, Study)).values()) == {"failed"}
    del fakes.fails["refine"]
    assert study(to(tmp_path / "one"), Progress()).part("refine").state == "done"


def test_an_interrupted_study_says_where_it_is(tmp_path: Path, fakes: type[FakeParts]) -> None:
    fakes.fails = {"measure": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt) as caught:
        study(to(tmp_path / "s"), Progress())
    assert caught.value.args == (str(tmp_path / "s"),)


def interrupted(folder: Path, fakes: type[FakeParts]) -> Path:
    fakes.fails = {"measure": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        study(to(folder), Progress())
    fakes.fails = {}
    return folder


def test_a_resumed_study_goes_on_where_it_stopped(tmp_path: Path, fakes: type[FakeParts]) -> None:
    folder = interrupted(tmp_path / "s", fakes)
    ended = resume(folder, Progress())
    assert ended.folder == folder
    assert fakes.made[-1].ran == ["measure", "explain", "tune", "check", "refine", "strong", "engines"]
    assert set(states(ended).values()) == {"done"}
    plan = fakes.made[-1].plan
    assert plan.fingerprint == fingerprint_here((), "cpu") == load(folder / "plan.json", StudyPlan).fingerprint
    assert (plan.notes, plan.request.env) == (("old",), {"A": "1"})
    resume(folder, Progress())
    assert fakes.made[-1].ran == ["refine"]  # new time, new launches


def test_what_was_not_needed_is_asked_again_in_a_resumed_study(tmp_path: Path, fakes: type[FakeParts]) -> None:
    folder = interrupted(tmp_path / "s", fakes)
    kept = load(folder / STUDY, Study)
    save(
        kept.with_part(msgspec.structs.replace(kept.part("tune"), state="not needed", why="no launch")), folder / STUDY
    )
    assert resume(folder, Progress()).part("tune").state == "done"


def test_a_script_that_failed_altogether_is_to_be_mended(tmp_path: Path, fakes: type[FakeParts]) -> None:
    fakes.fails = {name: WorkFailed("np2: 2 processes ran and none joined a process group") for name in NAMES}
    asked = to(tmp_path / "s", workload=None, command=SCRIPT.command)
    with pytest.raises(WorkFailed, match=r"mend the script and type the same command again, or for its MODEL: scale"):
        study(asked, Progress())


def test_a_study_that_was_ended_before_its_first_part_is_begun(tmp_path: Path, fakes: type[FakeParts]) -> None:
    folder = interrupted(tmp_path / "s", fakes)
    (folder / STUDY).unlink()
    ended = resume(folder, Progress())
    assert (ended.what, ended.budget_s) == ("mlp", 600.0)
    assert fakes.made[-1].ran == [part.name for part in ended.parts]


def test_a_resumed_study_may_have_another_budget_for_its_rest(tmp_path: Path, fakes: type[FakeParts]) -> None:
    folder = interrupted(tmp_path / "s", fakes)
    kept = load(folder / STUDY, Study)
    save(kept.with_part(msgspec.structs.replace(kept.part("estimate"), used_s=500.0)), folder / STUDY)
    ended = resume(folder, Progress(), 50.0)
    assert ended.budget_s == pytest.approx(550.0, abs=1)
    left_out = [part.name for part in ended.parts if part.state == "left out"]
    assert left_out == ["engines"]


def test_only_a_study_whose_place_is_there_is_resumed(tmp_path: Path, fakes: type[FakeParts]) -> None:
    with pytest.raises(UsageError, match="holds no study to resume: name the folder that was given with -o"):
        resume(tmp_path, Progress())
    folder = interrupted(tmp_path / "s", fakes)
    with held(folder), pytest.raises(UsageError, match="another scalescope is writing into"):
        resume(folder, Progress())
    plan = msgspec.structs.replace(load(folder / "plan.json", StudyPlan), cwd=str(tmp_path / "gone"))
    save(plan, folder / "plan.json")
    with pytest.raises(UsageError, match="gone, where the study was started, does not exist: create it, or start anew"):
        resume(folder, Progress())


def test_a_dry_run_lists_the_time_of_each_part_and_starts_nothing() -> None:
    plan = dry_run(REQUEST)
    assert (plan.what, plan.budget_s, plan.used_s) == ("mlp", 600.0, 0.0)
    assert [part.name for part in plan.parts][:3] == ["estimate", "measure", "explain"]
    assert plan.part("measure").planned_s > 10
    short = dry_run(msgspec.structs.replace(REQUEST, budget_s=1.0))
    assert states(short)["tune"] == "left out"


@pytest.mark.parametrize("request_", [REQUEST, SCRIPT], ids=["model", "script"])
def test_a_dry_run_prints_the_number_of_launches_and_the_commands_of_measure(
    request_: StudyRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("import torch.distributed\n")
    dry = find_verb("study").dry_run
    assert dry
    lines = list(dry(request_))
    (launches,) = [line for line in lines if line.startswith("about ")]
    points = 2 if request_.command else 3
    assert f", measure {3 * points}, explain 1, " in launches
    assert sum(int(each.split()[-1]) for each in launches.partition(": ")[2].split(", ")) == int(launches.split()[1])
    at = next(at for at, line in enumerate(lines) if line.startswith("# measure, 3 launches of each"))
    assert sum(line.startswith("# ") for line in lines[at + 1 :]) == points
    assert any("torchrun" in line or "torch.distributed.run" in line for line in lines[at + 1 :])
    assert list(tmp_path.iterdir()) == [tmp_path / "x.py"], "nothing is written"


def test_a_plan_is_settled_without_trying_anything() -> None:
    plan = resolve(REQUEST, tries=False)
    assert (plan.request, plan.engines, plan.np, plan.cwd) == (REQUEST, ("ddp",), (1, 2), str(Path.cwd()))
    assert (plan.start_s, plan.sample_s) == (starting_s(2), 0.0)
    assert plan.batches == (8, 16, 32, 64, 128, 256, 512)
    assert plan.fingerprint == fingerprint_here((), "cpu")
    assert plan.threads_per_rank
    told = resolve(msgspec.structs.replace(SCRIPT, threads_per_rank=3), tries=False)
    assert (told.batches, told.threads_per_rank) == ((), 3)
    with pytest.raises(UsageError, match="add --batch"):
        resolve(msgspec.structs.replace(SCRIPT, command=(*SCRIPT.command, "{batch}")), tries=False)
    placed = msgspec.structs.replace(SCRIPT, command=(*SCRIPT.command, "{batch}"), batch=(16, 8))
    assert resolve(placed, tries=False).batches == (16, 8)


def test_one_step_of_a_model_is_tried_and_a_script_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    asked: list[Any] = []

    def rehearsed(settings: Any, points: Any) -> tuple[int, float]:
        asked.append([(point.np, point.batch) for point in points])
        clock.now += 3.0
        return 10, 70.0

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(module, "rehearse", rehearsed)
    monkeypatch.setattr(module, "check_requirements", lambda settings: asked.append("requirements"))
    plan = resolve(REQUEST)
    assert [plan.start_s, plan.sample_s] == pytest.approx([6.0, (70.0 - 6.0) / 10 / 32])
    assert asked == ["requirements", [(1, 32)]]
    assert plan.batches == (8, 16, 32)  # 128 of them would take 25 s, more than a two-hundredth of the budget
    assert resolve(SCRIPT).start_s == starting_s(2)
    assert asked[2:] == ["requirements"]
    clock.now, quick = 0.0, msgspec.structs.replace(REQUEST, batch=(16,))
    monkeypatch.setattr(module, "rehearse", lambda settings, points: (10, -1.0))
    assert resolve(quick).sample_s == 0.0


def test_engines_are_those_that_were_asked_for_or_that_a_script_imports(tmp_path: Path) -> None:
    assert module._engines(REQUEST) == ("ddp",)
    (tmp_path / "x.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    script = msgspec.structs.replace(SCRIPT, engines=(), command=(sys.executable, str(tmp_path / "x.py")))
    assert module._engines(script) == ("horovod",)
    with pytest.raises(UsageError, match="--engine takes ddp, horovod or fsdp2: one process alone is the baseline"):
        module._engines(msgspec.structs.replace(REQUEST, engines=("ddp", "none")))


@pytest.mark.parametrize(("there", "engines"), [(True, ("ddp", "horovod")), (False, ("ddp",))])
def test_a_model_is_studied_with_ddp_and_horovod_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, there: bool, engines: tuple[str, ...]
) -> None:
    monkeypatch.setattr(
        module, "has_module", lambda python, name: there and (python, name) == (sys.executable, "horovod")
    )
    assert module._engines(msgspec.structs.replace(REQUEST, engines=())) == engines


def test_processes_double_up_to_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = msgspec.structs.replace(REQUEST, np=())
    hosts = msgspec.structs.replace(asked, hosts=(Host("a", 4), Host("b", 2)))
    assert module._counts(hosts) == (1, 2, 4, 6)
    assert module._counts(msgspec.structs.replace(hosts, np=(3,))) == (3,)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    on_gpus = msgspec.structs.replace(asked, device="auto")
    assert module._counts(on_gpus) == (1, 2, 3)
    assert module._counts(msgspec.structs.replace(on_gpus, np=(2,))) == (2,)
    with pytest.raises(UsageError, match="a study needs 2 or more processes: name them with --np, and --hosts"):
        module._counts(msgspec.structs.replace(on_gpus, np=(1,)))


def test_batches_of_a_script_are_those_that_were_named() -> None:
    assert module._batches(SCRIPT, 0.1) == ()
    assert module._batches(msgspec.structs.replace(SCRIPT, batch=(4,)), 0.1) == (4,)
    assert module._batches(REQUEST, 3.0 / 64) == (8, 16, 32, 64)
