"""Files that people bring: is this text, and what are its lines?"""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from scalescope.errors import UsageError
from scalescope.named_paths import reading
from scalescope.text import plain, without_escapes

_LONGEST_LINE = 4096  # Characters of a line of a log that are looked at
_HEAD = 65_536
_NEVER_IN_TEXT = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f\ufffd]")
UNDERSTOOD = (
    "traces (PyTorch profiler, Horovod timeline), training logs, trainer_state.json of Hugging Face, metrics.csv of "
    "Lightning, a CSV table with a column of process counts, a Horovod autotune log, or a scalescope run folder"
)  # What explain reads, for error lines


def head(path: Path) -> str:
    """The beginning of a text file; one line that names the next action when it is none."""
    shown = plain(str(path))
    if not path.exists():
        raise UsageError(f"there is no file or folder '{shown}': check the path")
    if not path.is_file():
        raise UsageError(f"'{shown}' is not a regular file: save what it gives to a file and name that")
    if path.suffix == ".py":
        script = plain(shlex.quote(str(path)))
        raise UsageError(f"'{shown}' is a Python script: to trace it, type scalescope explain -- python {script}")
    with reading(path), open(path, "rb") as file:
        data = file.read(_HEAD)
    if not data.strip():
        raise UsageError(f"'{shown}' is empty: name {UNDERSTOOD}")
    text = data.decode("utf-8-sig", errors="replace")
    if b"\0" in data or len(_NEVER_IN_TEXT.findall(text)) > 0.1 * len(text):
        raise UsageError(
            f"'{shown}' is no text in UTF-8: unpack it, convert it (iconv) or save a spreadsheet as CSV; "
            f"or name {UNDERSTOOD}"
        )
    return text


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Every line of a text of any size with its number, cut and without terminal escapes.

    Carriage returns end a line, too; what a progress bar overwrites shares its number.
    """
    number, is_beginning = 1, True
    with reading(path), open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        while piece := file.readline(_LONGEST_LINE):
            text = without_escapes(piece).strip() if is_beginning else ""
            if text:
                yield number, text
            is_beginning = piece.endswith(("\n", "\r"))
            number += piece.endswith("\n")


class _Header(msgspec.Struct):
    kind: str = ""


def record_kind(path: Path) -> str:
    """The kind of scalescope record that a JSON file holds; empty for any other file."""
    with reading(path), suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(path.read_bytes(), type=_Header).kind
    return ""
