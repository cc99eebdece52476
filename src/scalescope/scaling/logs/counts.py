"""How many processes wrote a log: by --np, or by the file's name."""

import re
from collections.abc import Sequence
from pathlib import Path

from scalescope.errors import UsageError
from scalescope.scaling.text_files import printable

_WORD = "gpus?|ranks?|procs?|process|processes|workers?|devices?"
_NAMED = rf"{_WORD}|np|nproc|n|world[-_]?size"
_LABELLED = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<!\d)(?<!\dx)(\d{{1,5}})(?:{_WORD})(?![a-z\d])(?![-_ ]?per)",
        rf"(?<![a-z])(?:{_NAMED})(\d{{1,5}})(?!\d)",
        rf"(?<!\d)(?<!\dx)(\d{{1,5}})[-_ ]x?(?:{_WORD})(?![a-z\d])(?![-_= ]\d)(?![-_ ]?per)",
        rf"(?<![a-z])(?:{_NAMED})[-_=](\d{{1,5}})(?!\d)",
    )
]
"""2gpus, np4, 2-gpus, np-4: who stands closer to its word comes first."""
_FREE = re.compile(r"(?<![a-z\d])(\d{1,4})(?![a-z\d])", re.IGNORECASE)
_ANY = re.compile(r"(?<!\d)(\d{1,4})(?!\d)")


def process_counts(paths: Sequence[Path], np: Sequence[int]) -> list[int]:
    """The number of processes of every log, in the same order."""
    if np and len(np) != len(paths):
        raise UsageError(f"--np gives {len(np)} counts for {len(paths)} logs: give one per log, in the same order")
    if any(count < 1 for count in np):
        raise UsageError(f"--np must be 1 or more, not '{','.join(map(str, np))}'")
    return list(np) if np else [_from_name(path) for path in paths]


def _from_name(path: Path) -> int:
    """The labelled number of the name (2gpus, np4), or its only number; a clear line when there is neither."""
    looks = [(pattern, path.name) for pattern in _LABELLED]
    looks += [(_FREE, path.stem), (_FREE, path.name), (_ANY, path.stem)]
    for pattern, text in looks:
        counts = {int(count) for count in pattern.findall(text)} - {0}
        if len(counts) == 1:
            return counts.pop()
        if counts:
            break
    raise UsageError(
        f"the name '{printable(path.name)}' does not tell how many processes wrote it: add --np with one count per log"
    )
