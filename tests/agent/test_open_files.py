"""The agent notices files that an earlier launch changed, and replaces nothing of Python for it."""

import os
import time
from pathlib import Path

from watched import BEGINNING

READING = """
import io, pathlib
class Reader:
    _open = open
    def read(self, path):
        with self._open(path) as file:
            return file.read()
print(type(open).__name__, type(io.open).__name__)
print(Reader().read("kept.txt"), pathlib.Path("old.txt").read_text())
pathlib.Path("made.txt").write_text("own"); print(pathlib.Path("made.txt").read_text())
try: open("none.txt")
except FileNotFoundError as problem: print(problem)
"""


def test_reading_works_as_without_the_agent_and_changed_files_are_named(watch, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    os.utime(tmp_path / "old.txt", (1, 1))
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "entry_points.txt").write_text("")
    script = (
        READING
        + "open('site-packages/entry_points.txt').close()\n"
        + BEGINNING
        + "step(); print(Reader().read('kept.txt')); pathlib.Path('kept.txt').read_bytes()"
    )
    watched = watch(script, SCALESCOPE_SINCE_NS=str(time.time_ns() - 60 * 10**9))
    assert watched.log.changed_files_read == [str(tmp_path / "kept.txt")]
    assert watched.stdout.splitlines() == [
        "builtin_function_or_method builtin_function_or_method",
        "kept old",
        "own",
        "[Errno 2] No such file or directory: 'none.txt'",
        "kept",
    ]
    assert watched.stderr == ""
