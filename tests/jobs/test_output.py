import time
from pathlib import Path
from statistics import median

import pytest

from scalescope.jobs.output import OutputFiles, last_lines
from scalescope.line_pattern import compile_pattern


def test_output_is_followed_line_by_line_and_tagged(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    files = OutputFiles(tmp_path, compile_pattern(r"loss (?P<step_s>\S+)", live=True), lambda *line: seen.append(line))
    path = tmp_path / "rank1.out"
    path.write_bytes(b"begin\nloss 0.5\nlo")
    assert files.poll() == 17
    assert seen == [("rank1", "begin"), ("rank1", "loss 0.5")]
    with open(path, "ab") as file:
        file.write(b"ss 0.25\nloss nonsense\n\xff\xfe\n")
    files.poll()
    assert seen[2] == ("rank1", "loss 0.25")
    assert [match.values for match in files.best_matches()] == [{"step_s": 0.5}, {"step_s": 0.25}, {}]
    assert files.poll() == 0


def test_the_source_that_matches_most_counts_once(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, compile_pattern("x", live=True), lambda *_: None)
    for rank, lines in ((0, 3), (1, 3), (10, 2)):
        (tmp_path / f"rank{rank}.out").write_text("x\n" * lines)
    files.poll()
    assert files.best_matches() is files.matches["rank0"]


@pytest.mark.parametrize("tag", ["[default{}]:", "[{}]<stdout>:", "[1,{}]<stdout>:"])
def test_ranks_in_the_launchers_output_are_separated_by_their_tags(tmp_path: Path, tag: str) -> None:
    lines = [f"{tag.format(rank)}step {number}\n" for number in range(3) for rank in (0, 1)]
    (tmp_path / "launcher.out").write_text("".join(lines))
    files = OutputFiles(tmp_path, compile_pattern("step", live=True), lambda *_: None, np=2)
    files.poll()
    assert {name: len(found) for name, found in files.matches.items()} == {"launcher rank0": 3, "launcher rank1": 3}


@pytest.mark.parametrize(("name", "np"), [("rank0.out", 8), ("launcher.out", 1), ("launcher.out", 2)])
def test_numbers_that_a_script_puts_before_its_lines_are_no_tags_of_ranks(tmp_path: Path, name: str, np: int) -> None:
    first = 0 if np != 2 else np  # with two ranks, [0]: and [1]: may be their tags
    (tmp_path / name).write_text("".join(f"[{first + number}]: loss 0.5\n" for number in range(5)))
    files = OutputFiles(tmp_path, compile_pattern("loss", live=True), lambda *_: None, np=np)
    files.poll()
    assert len(files.best_matches()) == 5


def test_last_lines_of_a_long_and_of_no_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("".join(f"line {k}\n\n" for k in range(10_000)))
    assert last_lines(tmp_path / "x", 2) == ["line 9998", "line 9999"]
    assert last_lines(tmp_path / "none") == []


def test_matching_lines_that_come_together_share_the_time_since_the_one_before(tmp_path: Path) -> None:
    clock = iter([1_000, 5_000, 9_000, 12_000])
    files = OutputFiles(tmp_path, compile_pattern("step", live=True), lambda *_: None, lambda: next(clock))
    path = tmp_path / "rank0.out"
    for text in ("step\n", "step\n" * 4, "step\n" * 2, "eval\nstep\nsaved\n"):
        with open(path, "a") as file:
            file.write(text)
        files.poll()
    matches = files.best_matches()
    assert [match.at_ns for match in matches] == [1_000, 2_000, 3_000, 4_000, 5_000, 7_000, 9_000, 12_000]
    assert [match.came_with_others for match in matches] == [False, *[True] * 6, False]


def test_lines_are_stamped_when_they_arrive_and_not_when_somebody_looks(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, compile_pattern("step", live=True), lambda *_: None)
    with files.followed(), open(tmp_path / "rank0.out", "wb", buffering=0) as file:
        printed = []
        for _ in range(20):
            file.write(b"step\n")
            printed.append(time.monotonic_ns())
            time.sleep(0.02)
    files.poll()
    matches = files.best_matches()
    assert len(matches) == len(printed)
    late = [match.at_ns - at for match, at in zip(matches, printed, strict=True)]
    assert median(late) < median(printed[-1] - at for at in printed), "as late as a look at the end would have been"
    assert sum(match.came_with_others for match in matches) < len(matches) / 2, "on busy cores some come together"


def test_a_rank_that_begins_its_output_anew_was_restarted(tmp_path: Path) -> None:
    seen: list[str] = []
    files = OutputFiles(tmp_path, compile_pattern("step", live=True), lambda _, line: seen.append(line))
    path = tmp_path / "rank0.out"
    path.write_text("step 1\nstep 2\nhalf")
    files.poll()
    path.write_text("step 1\n")
    files.poll()
    assert seen == ["step 1", "step 2", "step 1"]
    assert len(files.best_matches()) == 1


def test_tagged_output_that_begins_anew_forgets_the_matches_of_every_rank(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, compile_pattern("step", live=True), lambda *_: None, np=2)
    path = tmp_path / "launcher.out"
    path.write_text("[default0]:step\n[default0]:step\n[default1]:step\n")
    files.poll()
    path.write_text("[default1]:step\n")
    files.poll()
    assert {name: len(found) for name, found in files.matches.items()} == {"launcher rank1": 1}
