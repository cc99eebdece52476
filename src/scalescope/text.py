"""Text that people type and read: NAME=VALUE, lines safe for a terminal or a page, plurals, nearest names."""

import difflib
import json
import math
import re
from collections.abc import Iterable
from typing import Any

from scalescope.errors import UsageError

# Colours and cursor moves, window titles; then every other control character except tab and line feed.
_ESCAPES = re.compile(
    r"\x1b\[[0-9;?]{0,32}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]"
)

# In JSON: control characters, and letters without width or that turn others round. A backslash itself is written twice.
_UNPRINTABLE = re.compile(
    r"(?<!\\)((?:\\\\)*)\\(?:[bf]|u(?:00[01][0-9a-f]|007f|00[89][0-9a-f]|200[b-f]|202[a-e]|206[0-9a-f]|feff))"
)

_LINE_ENDS = re.compile(r" (?:\x1b\[[0-9;]*m| )*$", re.MULTILINE)

COMMAND = "COMMAND"  # Stands in a command to type for a training that no file names
MASK = "***"  # Stands for a value that is not to be shown, such as one of --env


def assignment(text: str, option: str, example: str) -> tuple[str, str]:
    """Name and value of a `NAME=VALUE`. The error does not repeat the text, which may hold a secret."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{option} takes NAME=VALUE, for example {example}")
    return name.strip(), value


def knob_name(text: str) -> str:
    """The knob that `bucket-cap-mb` or `bucket-cap-mb=25` names: `bucket_cap_mb`."""
    return text.partition("=")[0].strip().replace("-", "_")


def without_escapes(text: str) -> str:
    """Text without terminal escapes and control characters; tabs and line feeds stay."""
    return _ESCAPES.sub("", text)


def is_one_line(text: str) -> bool:
    """True for text that can stand on a line as it is, without control characters."""
    return text.isprintable()


def clean(text: str) -> str:
    """Text safe to show: no escapes, `?` for what is not printable; its lines and its length stay."""
    letters = (letter if letter.isprintable() or letter == "\n" else "?" for letter in without_escapes(text))
    return "".join(letters)


def trimmed(text: str) -> str:
    """Lines without blanks at their ends, however they are coloured."""
    return _LINE_ENDS.sub(lambda found: "\x1b[0m" if "\x1b" in found[0] else "", text)


def plain(text: str, longest: int = 200) -> str:
    """Text on one line and at most `longest` characters, safe to print: no escapes, `?` for what is not printable."""
    line = " ".join(without_escapes(text[: 8 * longest]).split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= longest else line[: longest - 3].rstrip() + "..."


def as_json(document: Any) -> str:
    """JSON that any parser takes: null for infinities and NaN, which JSON has no numbers for."""
    try:
        return json.dumps(document, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(document), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printable_json(document: Any) -> str:
    """JSON whose texts hold `?` for what is not printable."""
    return _UNPRINTABLE.sub(r"\1?", as_json(document))


def inside_script(document: Any) -> str:
    """JSON that stays inside its <script>: a user's text cannot close it, and holds nothing that is not printable."""
    return printable_json(document).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plural(count: int, noun: str) -> str:
    """`1 launch`, `2 launches`."""
    sibilant = noun.endswith(("ch", "s", "x")) and noun != "epoch"
    ending = "" if count == 1 else "es" if sibilant else "s"
    return f"{count:,} {noun}{ending}"


def listed(words: Iterable[object]) -> str:
    """`a, b and c`."""
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean a or b?)` with the names nearest to `name`, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(near)}?)" if near else ""
