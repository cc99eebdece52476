"""Output files while they grow: which are looked at, and what is kept of them."""

import re
import threading
from pathlib import Path

import pytest

from scalescope.jobs.output import OutputFiles, last_lines, printed
from scalescope.line_pattern import compile_pattern

STEP = compile_pattern("step", live=True)


def followed(folder: Path, pattern: re.Pattern[str] | None = STEP) -> tuple[OutputFiles, list[tuple[str, str]]]:
    """Files with a clock that counts, and the lines that are told."""
    lines: list[tuple[str, str]] = []
    clock = iter(range(1, 100))
    return OutputFiles(folder, pattern, lambda *line: lines.append(line), lambda: next(clock)), lines


def test_output_is_not_followed_without_a_pattern(tmp_path: Path) -> None:
    files, _ = followed(tmp_path, None)
    with files.followed():
        assert "scalescope-output" not in {thread.name for thread in threading.enumerate()}
    (tmp_path / "rank0.out").write_text("step\n")
    assert (files.poll(), files.matches) == (5, {})


def test_output_of_ranks_and_of_the_launcher_is_looked_at(tmp_path: Path) -> None:
    for name in ("rank0.out", "rank1.out", "launcher.out", "other.out"):
        (tmp_path / name).write_text(f"step {name}\n")
    files, lines = followed(tmp_path)
    assert files.poll() == len("step rank0.out\nstep rank1.out\nstep launcher.out\n")
    assert lines[0][0] == "launcher", "its line was stamped first"
    assert {source for source, _ in lines} == {"launcher", "rank0", "rank1"}
    assert files.first_ns == 2, "of a rank: the launcher may warn long before one starts"


def test_the_launchers_output_counts_as_first_where_ranks_have_no_files(tmp_path: Path) -> None:
    files, _ = followed(tmp_path)
    (tmp_path / "launcher.out").write_text("step\n")
    files.poll()
    assert files.first_ns == 1


def test_output_of_ranks_is_in_order_of_rank(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        (tmp_path / f"rank{rank}.out").write_text(f"{rank}\n")
    (tmp_path / "launcher.out").write_text("launcher\n")
    assert printed(tmp_path) == ["0", "2", "10", "launcher"]


def test_an_unfinished_line_counts_in_bytes_and_waits_for_its_end(tmp_path: Path) -> None:
    files, lines = followed(tmp_path)
    path = tmp_path / "rank0.out"
    path.write_text("ste")
    assert (files.poll(), lines, files.first_ns) == (3, [], 0)
    path.write_text("step 1\nst")
    assert (files.poll(), lines, files.first_ns) == (6, [("rank0", "step 1")], 2)
    path.write_text("step 1\nstep 2\n")
    assert files.poll() == 5
    assert [line for _, line in lines] == ["step 1", "step 2"]
    assert (files.first_ns, len(files.best_matches())) == (2, 2)


def test_every_state_of_a_progress_bar_is_a_line_that_arrived_when_it_was_drawn(tmp_path: Path) -> None:
    files, lines = followed(tmp_path)
    with files.followed(), open(tmp_path / "rank0.out", "wb", buffering=0) as file:
        for number in range(1, 4):
            file.write(b"\rstep %d" % number)
            files.poll()
        assert [line for _, line in lines] == ["step 1", "step 2"], "the last may go on"
    assert [line for _, line in lines] == ["step 1", "step 2", "step 3"]
    matches = files.best_matches()
    assert len({match.at_ns for match in matches}) == 3, "each has a time of its own"
    assert not any(match.came_with_others for match in matches)


@pytest.mark.parametrize("pattern", [STEP, None])
def test_a_last_line_without_an_end_is_delivered(tmp_path: Path, pattern: re.Pattern[str] | None) -> None:
    files, lines = followed(tmp_path, pattern)
    with files.followed():
        (tmp_path / "rank0.out").write_bytes(b"step 1\r\n\nstep 2")
    assert [line for _, line in lines] == ["step 1", "step 2"]
    assert len(files.best_matches()) == (2 if pattern else 0)
    files.finish()
    assert len(lines) == 2


def test_a_file_that_was_emptied_forgets_its_matches_and_its_unfinished_line(tmp_path: Path) -> None:
    files, lines = followed(tmp_path)
    path = tmp_path / "rank0.out"
    path.write_text("step 1\nunfinished")
    files.poll()
    path.write_text("new")
    assert files.poll() == 3
    assert (files.best_matches(), files.matches) == ([], {})
    path.write_text("new step\nx\n")
    assert files.poll() == 8
    assert [line for _, line in lines] == ["step 1", "new step", "x"]
    assert [match.at_ns for match in files.best_matches()] == [3]


def test_the_longest_list_counts_and_then_the_lowest_rank(tmp_path: Path) -> None:
    files, _ = followed(tmp_path)
    assert files.best_matches() == []
    for rank, count in ((10, 2), (2, 2), (3, 2), (1, 1)):
        (tmp_path / f"rank{rank}.out").write_text("step\n" * count)
    files.poll()
    assert files.best_matches() is files.matches["rank2"]


def test_the_end_of_a_file_is_fifteen_lines_that_hold_something(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    path.write_text("".join(f"{number}\n  \n" for number in range(40)))
    assert last_lines(path) == [str(number) for number in range(25, 40)]
    path.write_text("one\x1b[31m red\n")
    assert last_lines(path) == ["one red"]


def test_of_a_large_file_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    path.write_text("first\n" + "x" * 16_384)
    assert last_lines(path) == ["x" * 16_384]
    path.write_text("first\n" + "x" * 16_378)
    assert last_lines(path) == ["first", "x" * 16_378]
