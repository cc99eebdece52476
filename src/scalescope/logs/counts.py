"""Number of processes that wrote a log: by the names of its file and folders, and headings in it."""

import re
from pathlib import Path

from scalescope.errors import UsageError
from scalescope.text import plain

_WORD = "gpus?|ranks?|procs?|process(?:es)?|workers?|devices?"
# 2gpus; np4; the ending train.out.4. Not 4x8gpus, whose product nobody knows, and not 8-gpus-per-node.
_LABELS = (
    rf"(?i)(?<!\d)(?<!\dx)(\d{{1,5}})(?:{_WORD})(?![a-z\d])(?![-_ ]?per)",
    rf"(?i)(?<![a-z])(?:{_WORD}|np|nproc|n|world[-_]?size)[-_=]?(\d{{1,5}})(?!\d)",
)
_ENDING = r"\.(\d{1,5})$"
# `* 4 GPU`, `## 2 processes:`, `4 nodes 32 GPUs`, `np = 8`: nothing else may stand in such a line.
_HEADING = re.compile(
    rf"\W*(?:\d+ nodes?\W+)?(?:(\d{{1,5}})[ -]?(?:{_WORD})|(?:np|nproc)\W{{1,3}}(\d{{1,5}}))\W*$", re.IGNORECASE
)


def count_in_name(path: Path, *, folders: bool = False) -> int:
    """The number of processes by a label in the file's name, or by its ending.

    Args:
        path: The file.
        folders: Whether the folders that it lies in may tell: files of trainers all have the same name.

    Raises:
        UsageError: Nothing tells it, or a name tells several.
    """
    looks = [(pattern, path.name) for pattern in (*_LABELS, _ENDING)]
    if folders:
        looks += [(pattern, folder.name) for folder in list(path.absolute().parents)[:3] for pattern in _LABELS]
    found = ({int(count) for count in re.findall(pattern, name)} - {0} for pattern, name in looks)
    counts = next(filter(None, found), set())
    if len(counts) != 1:
        raise UsageError(
            f"the name '{plain(path.name)}' does not tell how many processes wrote it: add --np with one count per log"
        )
    return counts.pop()


def count_in_heading(line: str) -> int | None:
    """The number of processes that a line of a log announces; None where it says anything else."""
    found = _HEADING.match(line)
    return int(found[1] or found[2]) if found else None
