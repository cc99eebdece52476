"""Text that people type and read: NAME=VALUE, lines safe for a terminal, plurals, nearest names."""

import difflib
import re
from collections.abc import Iterable

from scalescope.errors import UsageError

# Colours and cursor moves, window titles; then every other control character except tab and line feed.
_ESCAPES = re.compile(
    r"\x1b\[[0-9;?]{0,32}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]"
)

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


def plain(text: str, longest: int = 200) -> str:
    """Text on one line and at most `longest` characters, safe to print: no escapes, `?` for what is not printable."""
    line = " ".join(without_escapes(text[: 8 * longest]).split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= longest else line[: longest - 3].rstrip() + "..."


def plural(count: int, noun: str) -> str:
    """`1 launch`, `2 launches`."""
    sibilant = noun.endswith(("ch", "s", "x")) and noun != "epoch"
    ending = "" if count == 1 else "es" if sibilant else "s"
    return f"{count:,} {noun}{ending}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean a or b?)` with the names nearest to `name`, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(near)}?)" if near else ""
