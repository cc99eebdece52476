import errno
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.records.run import Measurement, Point, Run
from scalescope.records.store import Record, append, drop_torn_line, load, load_lines, save, writing


class NoteV1(Record, frozen=True, kw_only=True, tag="note"):
    text: str


class Note(Record, frozen=True, kw_only=True, tag="note"):
    """The same kind, two versions later."""

    current_version: ClassVar[int] = 3

    words: list[str]
    language: str = "en"


class Other(Record, frozen=True, kw_only=True, tag="other"):
    text: str


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    note = Note(words=["a", "b"])
    save(note, tmp_path / "deep" / "note.json")
    assert load(tmp_path / "deep" / "note.json", Note) == note
    assert msgspec.json.decode((tmp_path / "deep" / "note.json").read_bytes())["version"] == 3


def test_an_older_record_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save(NoteV1(text="two words"), tmp_path / "note.json")
    with pytest.raises(UsageError, match="has format 1 and this scalescope reads format 3: make it anew"):
        load(tmp_path / "note.json", Note)


def test_a_newer_record_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save(Note(words=[]), tmp_path / "note.json")
    with pytest.raises(UsageError, match="has format 3 and this scalescope reads format 1: pip install --upgrade"):
        load(tmp_path / "note.json", NoteV1)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kind":"note"}', b'{"kind":"note","version":3}', b"\xff\xfe"])
def test_a_damaged_record_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "note.json").write_bytes(content)
    with pytest.raises(UsageError, match="not a readable scalescope record"):
        load(tmp_path / "note.json", Note)


def test_another_kind_is_named(tmp_path: Path) -> None:
    save(Other(text="x"), tmp_path / "x.json")
    with pytest.raises(UsageError, match="holds a 'other', not a 'note'"):
        load(tmp_path / "x.json", Note)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "none.json", Note)


def test_lines_survive_a_kill_in_the_middle_of_one(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    for word in "abc":
        append(Note(words=[word]), path)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert len(load_lines(path, Note)) == whole[:cut].count(b"\n")


def test_a_failed_save_keeps_the_old_record(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    save(Note(words=["old"]), path)
    (tmp_path / "note.json.partial").mkdir()
    with pytest.raises(WorkFailed, match="cannot write"):
        save(Note(words=["new"]), path)
    assert load(path, Note).words == ["old"]


def test_a_full_disk_names_the_next_action(tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match=r"disk is full.*-o"), writing(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_measurement_comes_back_as_it_was(tmp_path: Path) -> None:
    point = Point(engine="ddp", np=2, batch=8, threads_per_rank=1)
    run = Run(
        point=point,
        folder="launches/001",
        wall_s=5.0,
        phases={"launch": 1.0, "steady": 4.0},
        steps=10,
        warmup_steps=2,
        step_s=0.4,
        mean_step_s=0.4,
        throughput=40.0,
        samples_per_step=16.0,
        engine_seen="ddp",
        backend="gloo",
        source="optimizer",
        ranks=(),
    )
    measurement = Measurement(
        what="cnn",
        scaling=("weak",),
        created="2026-01-01",
        scalescope="0.1",
        torch="2",
        host="h",
        cores=2,
        launcher={"ddp": "torchrun"},
        binding="none",
        runs=(run,),
    )
    save(measurement, tmp_path / "measurement.json")
    assert load(tmp_path / "measurement.json", Measurement) == measurement
    assert measurement.runs[0].point.global_batch == 16


def test_a_torn_last_line_is_cut_off_before_going_on(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    drop_torn_line(path)
    append(Note(words=["whole"]), path)
    with open(path, "ab") as file:
        file.write(b'{"kind": "no')
    drop_torn_line(path)
    append(Note(words=["next"]), path)
    assert [note.words for note in load_lines(path, Note)] == [["whole"], ["next"]]
