from pathlib import Path

import pytest

from scalescope.errors import UsageError
from scalescope.measurement.output import OutputFiles, compile_pattern, last_lines, without_control


def test_terminal_escapes_do_not_get_through() -> None:
    assert without_control("a\x1b[31mred\x1b[0m\x07\x9b2J b\tc") == "ared2J b\tc"


def test_output_is_followed_line_by_line_and_tagged(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    files = OutputFiles(tmp_path, compile_pattern(r"loss (?P<step_s>\S+)"), lambda *line: seen.append(line))
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
    files = OutputFiles(tmp_path, compile_pattern("x"), lambda *_: None)
    for rank, lines in ((0, 3), (1, 3), (10, 2)):
        (tmp_path / f"rank{rank}.out").write_text("x\n" * lines)
    files.poll()
    assert files.best_matches() is files.matches["rank0"]


def test_a_bad_pattern_is_one_line() -> None:
    with pytest.raises(UsageError, match="regular expression"):
        compile_pattern("(")
    with pytest.raises(UsageError, match="unknown group 'rate'"):
        compile_pattern("(?P<rate>.)")


def test_last_lines_of_a_long_and_of_no_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("".join(f"line {k}\n\n" for k in range(10_000)))
    assert last_lines(tmp_path / "x", 2) == ["line 9998", "line 9999"]
    assert last_lines(tmp_path / "none") == []


def test_lines_between_two_looks_share_the_time_between_them(tmp_path: Path, monkeypatch) -> None:
    clock = iter([1_000, 5_000, 9_000])
    monkeypatch.setattr("time.time_ns", lambda: next(clock))
    files = OutputFiles(tmp_path, compile_pattern("step"), lambda *_: None)
    path = tmp_path / "rank0.out"
    for text in ("step\n", "step\n" * 4, "step\n" * 2):
        with open(path, "a") as file:
            file.write(text)
        files.poll()
    assert [match.at_ns for match in files.best_matches()] == [1_000, 2_000, 3_000, 4_000, 5_000, 7_000, 9_000]
