"""site.toml: what jobs need at one site, as a person writes it; each mistake is one clear line."""

import re
import shlex
from pathlib import Path
from typing import Any

import msgspec

from scalescope.errors import UsageError
from scalescope.named_paths import read_toml
from scalescope.text import did_you_mean, is_one_line, plain
from scalescope.units import parse_seconds

_NAME = re.compile(r"[\w.,:@+/=-]+")  # Words that a scheduler takes, without blanks and quotes
_OPTION = re.compile(r"--?[A-Za-z][\w-]*([ =].+)?")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Needs of jobs at one site; what is empty is left to the scheduler."""

    account: str = ""
    partition: str = ""
    time_s: float | None = None  # Longest time of a job
    gpus: str = ""  # Of a node: a number, or a type and a number
    modules: tuple[str, ...] = ()
    container: tuple[str, ...] = ()  # Words before the command of every rank
    setup: tuple[str, ...] = ()  # Shell lines before the command
    extra: tuple[str, ...] = ()  # Options of the scheduler, one each

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs that a job has on a node."""
        return int(self.gpus.rpartition(":")[2] or 0)


KEYS = ("account", "partition", "time", "gpus", "modules", "container", "setup", "extra")


def load_site(path: str) -> Site:
    """The site that the file describes.

    Raises:
        UsageError: It cannot be read, or something in it is wrong: one line that names the file and the place.
    """
    document = read_toml(Path(path), "a file such as examples/sites/gpu.toml")
    for key in document:
        if key not in KEYS:
            raise UsageError(
                f"{path}: there is no key {plain(key, 60)}{did_you_mean(key, KEYS)}: use {', '.join(KEYS)}"
            )
    try:
        return Site(
            account=_word(document, "account"),
            partition=_word(document, "partition"),
            time_s=_time(document.get("time")),
            gpus=_gpus(document.get("gpus", "")),
            modules=_lines(document, "modules"),
            container=_words(document.get("container", "")),
            setup=_lines(document, "setup"),
            extra=tuple(map(_option, _lines(document, "extra"))),
        )
    except ValueError as problem:
        raise UsageError(f"{path}: {problem}") from None


def _word(document: dict[str, Any], key: str) -> str:
    value = document.get(key, "")
    if not isinstance(value, str) or (value and not _NAME.fullmatch(value)):
        raise ValueError(f"{key}: expected a name in quotes, without blanks, not {_shown(value)}")
    return value


def _time(value: Any) -> float | None:
    """`90m`, or `1-12:00:00` as Slurm writes it; a number is refused, because it could be either."""
    if value is None:
        return None
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    if match:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        if match[4] is None and match[1] is None:  # 30:00 are minutes and seconds there
            hours, minutes, seconds = 0, hours, minutes
        return float(((24 * days + hours) * 60 + minutes) * 60 + seconds)
    try:
        if not isinstance(value, str) or value.strip().replace(".", "").isdigit():
            raise UsageError("no unit")
        return parse_seconds(value, "time")
    except UsageError:
        raise ValueError(
            f'time: expected a time with its unit such as "2h", or "02:00:00", not {_shown(value)}'
        ) from None


def _gpus(value: Any) -> str:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if is_count or (isinstance(value, str) and re.fullmatch(r"([\w.-]+:)?\d{1,4}|", value)):
        return str(value or "")
    raise ValueError(f'gpus: expected the number of GPUs of a node such as 4, or "a100:4", not {_shown(value)}')


def _lines(document: dict[str, Any], key: str) -> tuple[str, ...]:
    value = document.get(key, [])
    texts = (
        value.splitlines()
        if isinstance(value, str) and key == "setup"
        else [value]
        if isinstance(value, str)
        else value
    )
    if not isinstance(texts, list) or not all(isinstance(text, str) and is_one_line(text) for text in texts):
        raise ValueError(f'{key}: expected a list of texts such as ["..."], each on one line, not {_shown(value)}')
    return tuple(text for text in texts if text.strip())


def _words(value: Any) -> tuple[str, ...]:
    """`apptainer exec --nv image.sif`, split as a shell would."""
    if isinstance(value, str) and is_one_line(value):
        try:
            return tuple(shlex.split(value))
        except ValueError:
            pass
    raise ValueError(f'container: expected words such as "apptainer exec --nv image.sif", not {_shown(value)}')


def _option(text: str) -> str:
    if not _OPTION.fullmatch(text):
        raise ValueError(f'extra: expected an option of the scheduler such as "--qos=high", not {_shown(text)}')
    return text


def _shown(value: Any) -> str:
    return plain(repr(value), 60)
