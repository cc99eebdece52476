"""Files of lines and of one record: written at once, read back as far as they are whole, refused with a reason."""

import errno
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.records.store import (
    LineWriter,
    Record,
    append,
    complete_lines,
    decode,
    drop_torn_line,
    encode,
    load,
    load_lines,
    save,
    write_whole,
    writing,
)
from scalescope.records.timeline import Step


class Word(Record, frozen=True, kw_only=True, tag="word"):
    text: str


def test_a_record_is_indented_json_that_ends_with_a_line_break() -> None:
    assert encode(Word(text="a")) == b'{\n "kind": "word",\n "version": 1,\n "text": "a"\n}\n'
    assert decode(encode(Word(text="a")), Word, "here") == Word(text="a")


def test_a_rank_writes_each_line_at_once_and_after_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    writer = LineWriter(path)
    writer.write(Step(rank=0, start_s=1.0, end_s=2.0))
    assert path.read_bytes() == b'{"rank":0,"start_s":1.0,"end_s":2.0}\n'
    LineWriter(path).write(Step(rank=1, start_s=1.0, end_s=2.0))
    writer.write(Step(rank=2, start_s=1.0, end_s=2.0))
    assert [line[:9] for line in complete_lines(path)] == [b'{"rank":0', b'{"rank":1', b'{"rank":2']


def test_lines_that_are_empty_or_not_whole_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "words.jsonl"
    assert list(complete_lines(path)) == []
    path.write_bytes(b"one\n\n \ntwo\nthr")
    assert list(complete_lines(path)) == [b"one\n", b"two\n"]


def test_a_line_is_added_in_a_folder_that_is_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "words.jsonl"
    append(Word(text="a"), path)
    append(Word(text="b"), path)
    assert path.read_bytes().count(b"\n") == 2
    assert [word.text for word in load_lines(path, Word)] == ["a", "b"]
    assert load_lines(tmp_path / "none.jsonl", Word) == []


@pytest.mark.parametrize(("before", "after"), [(b"", b""), (b"a", b""), (b"a\n", b"a\n"), (b"a\nb\nc", b"a\nb\n")])
def test_only_what_follows_the_last_line_break_is_cut_off(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "words.jsonl"
    path.write_bytes(before)
    drop_torn_line(path)
    assert path.read_bytes() == after


def test_a_file_is_replaced_as_a_whole_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    for data in (b"long before", b"new"):
        write_whole(path, data)
        assert path.read_bytes() == data
    assert [each.name for each in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"kind": "other", "version": 9}', "here holds a 'other', not a 'word': name a file of that kind"),
        (
            b'{"kind": "word", "version": 2}',
            "here has format 2 and this scalescope reads format 1: pip install --upgrade scalescope",
        ),
        (b'{"kind": "word", "version": 0}', "here has format 0 and this scalescope reads format 1: make it anew"),
        (b"[" * 5000, "here is not a readable scalescope record"),
    ],
    ids=["kind", "newer", "older", "deep"],
)
def test_a_record_that_cannot_be_read_says_why(data: bytes, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode(data, Word, "here")
    assert str(caught.value).startswith(said)


def test_a_missing_file_or_a_folder_names_the_next_action(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*x\.json: No such file or directory: name an existing record"):
        load(tmp_path / "x.json", Word)
    with pytest.raises(UsageError, match="Is a directory"):
        load(tmp_path, Word)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_spent_quota_give_the_same_error(number: int) -> None:
    with pytest.raises(WorkFailed, match="the disk is full: x could not be written; free some"), writing(Path("x")):
        raise OSError(number, "no")


def test_missing_permission_is_reported_and_other_errors_pass() -> None:
    with pytest.raises(WorkFailed, match=r"cannot write x: No way; choose another folder with -o"), writing(Path("x")):
        raise PermissionError(errno.EACCES, "No way")
    with pytest.raises(KeyError), writing(Path("x")):
        raise KeyError("x")
    with writing(Path("x")):
        pass


def test_a_folder_that_cannot_be_made_is_an_error_of_the_writer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writes: list[Any] = [save, append]
    for write in writes:
        with pytest.raises(WorkFailed, match="cannot write"):
            write(Word(text="a"), tmp_path / "file" / "below.json")


def test_a_notebook_shows_records_as_the_api_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Record, "shown_as", None)
    assert Word(text="a")._repr_html_() is None
    monkeypatch.setattr(Record, "shown_as", staticmethod(lambda record: f"<b>{record.text}</b>"))
    assert Word(text="a")._repr_html_() == "<b>a</b>"
