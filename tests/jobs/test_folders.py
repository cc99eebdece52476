"""Result folders: which may be used, which are emptied, and that a user's file is never lost."""

import contextlib
from pathlib import Path

import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.folders import MARK, check, check_record, emptied, held, mark_of, result_folder
from scalescope.records.request import MeasureRequest, Plan
from scalescope.records.store import save
from scalescope.tuner.journal import TunePlan


def refused(folder: Path, verb: str = "tune") -> str:
    """The line that a verb says about a folder, in which it changes nothing."""
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} if folder.is_dir() else None
    with pytest.raises(UsageError) as told, result_folder(verb, folder):
        pass
    if before is not None:
        assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} == before
    assert "\n" not in str(told.value)
    return str(told.value)


def test_folders_without_a_name_are_never_shared(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path), contextlib.ExitStack() as running:
        folders = [running.enter_context(result_folder("probe")) for _ in range(5)]
        assert all(folder.name.startswith("probe-") and mark_of(folder) == "probe" for folder in folders)
        (folders[0] / "cluster.toml").touch()
    assert len(set(folders)) == 5
    assert {folder.parent for folder in folders} == {tmp_path / "results"}
    assert [folder.exists() for folder in folders] == [True, False, False, False, False]  # unused ones are not left


def test_a_folder_is_used_again_by_its_own_verb_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    for _ in range(2):
        with result_folder("measure", folder) as given:
            (given / "runs.jsonl").write_text("{}\n")
    assert "holds results of scalescope measure: choose another folder with -o" in refused(folder)
    with result_folder("explain", folder, also=("measure",)):
        assert mark_of(folder) == "measure"


@pytest.mark.parametrize("name", ["plan.json", "training/model.pt", "profile/run1/loss.csv", ".hidden"])
def test_a_folder_with_files_of_others_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    assert "did not write: choose another folder with -o" in refused(tmp_path / "mine")


def test_a_damaged_mark_is_no_mark(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text('{"kind": "folder"')
    (tmp_path / "file").touch()
    assert "did not write" in refused(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    assert "is a file" in refused(tmp_path / "out")


def test_an_empty_folder_and_one_that_was_only_begun_are_free(tmp_path: Path) -> None:
    check(tmp_path, "tune")
    with held(tmp_path):
        check(tmp_path, "tune")  # as a process finds it whose rival has just locked it
    with result_folder("tune", tmp_path) as folder:
        assert mark_of(folder) == "tune"


def test_a_file_of_another_kind_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    check_record(path, TunePlan)
    save(Plan(request=MeasureRequest(), cwd="", since_ns=0), path)
    check_record(path, Plan)
    with pytest.raises(UsageError, match=r"is no 'tune_plan' .* move it away"):
        check_record(path, TunePlan)
    path.write_text("steps: [buy milk]")
    with pytest.raises(UsageError, match=r"is no 'plan' .* move it away"):
        check_record(path, Plan)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with result_folder("estimate", tmp_path):
        assert "another scalescope is writing into" in refused(tmp_path, "estimate")
    with result_folder("estimate", tmp_path):
        pass


def test_only_marked_folders_are_emptied(tmp_path: Path) -> None:
    place = tmp_path / "launches" / "01-np2"
    for _ in range(2):
        assert [path.name for path in emptied(place, "launch").iterdir()] == [MARK]
        (place / "rank0.out").touch()
        (place / "deep" / "er").mkdir(parents=True)
        (place / "deep" / "er" / "file").touch()
        (place / "link").symlink_to(tmp_path)
    assert tmp_path.is_dir()


@pytest.mark.parametrize("kind", ["", "another"])
def test_folders_without_this_mark_are_not_emptied(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "profile"
    if kind:
        emptied(place, kind)
    else:
        place.mkdir()
    (place / "precious").write_text("mine")
    with pytest.raises(UsageError, match="move it away, or choose another folder with -o"):
        emptied(place, "launch")
    assert (place / "precious").read_text() == "mine"


def test_a_file_in_the_place_of_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "training").write_text("mine")
    with pytest.raises(UsageError, match="move it away"):
        emptied(tmp_path / "training", "launch")
    assert (tmp_path / "training").read_text() == "mine"


def ends_with(trouble: BaseException, folder: Path | None, *files: str) -> Path:
    """The folder of a verb that writes these files and then raises this."""
    with contextlib.suppress(type(trouble)), result_folder("measure", folder) as place:
        for name in files:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("{}")
        raise trouble
    return place


REFUSED = UsageError("no such loss")


def test_a_request_that_is_refused_before_its_first_launch_leaves_nothing(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        ends_with(REFUSED, None, "plan.json", "env.json", "rehearsal.json")
        assert list(tmp_path.iterdir()) == []
        ends_with(REFUSED, tmp_path / "new" / "folder", "plan.json", "launches/01/task.json", "launches/01/command.txt")
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "new").mkdir()
        ends_with(REFUSED, tmp_path / "new" / "folder", "plan.json")
        assert list(tmp_path.rglob("*")) == [tmp_path / "new"]  # which no command made


def test_files_of_our_ranks_are_removed_after_a_refusal(tmp_path: Path) -> None:
    with contextlib.suppress(UsageError), result_folder("estimate", tmp_path / "out") as place:
        emptied(place / "profile", "ranks")
        (place / "profile" / "rank0.out").write_text("no such loss")
        raise REFUSED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "left", ["launches/01/agent-1.jsonl", "runs.jsonl", "profile/rank0.out", "launches/01/model.pt"]
)
def test_a_request_that_is_refused_after_something_was_launched_keeps_all_of_it(tmp_path: Path, left: str) -> None:
    place = ends_with(REFUSED, tmp_path / "out", "plan.json", "launches/01/launcher.out", left)
    kept = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert kept == {MARK, "lock", "plan.json", "launches/01/launcher.out", left}


def test_a_folder_that_was_there_stays_when_a_request_is_refused(tmp_path: Path) -> None:
    ends_with(REFUSED, tmp_path, "plan.json")
    assert list(tmp_path.iterdir()) == []  # empty, as it was
    with result_folder("measure", tmp_path):
        (tmp_path / "plan.json").write_text("of an earlier command")
    ends_with(REFUSED, tmp_path, "rehearsal.json")
    assert (tmp_path / "plan.json").read_text() == "of an earlier command"


@pytest.mark.parametrize("trouble", [WorkFailed("x"), KeyboardInterrupt()])
def test_work_that_failed_or_was_stopped_keeps_its_plan(tmp_path: Path, trouble: BaseException) -> None:
    with contextlib.chdir(tmp_path):
        assert (ends_with(trouble, None, "plan.json") / "plan.json").exists()
