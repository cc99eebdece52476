"""site.toml: what jobs need at one site, as a person writes it; each mistake is one clear line."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from scalescope.errors import UsageError
from scalescope.named_paths import read_toml
from scalescope.text import did_you_mean, is_one_line
from scalescope.units import parse_seconds

_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")
# Nothing of the file may become another line of the job's script.
_Name = Annotated[str, Meta(pattern=r"^[\w.,:@+/=-]*\Z")]  # Words that a scheduler takes, without blanks and quotes
_Option = Annotated[str, Meta(pattern=r"^--?[A-Za-z][\w-]*([ =].+)?\Z")]
_Count = Annotated[int, Meta(ge=0, le=9999)]


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


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a site.toml."""

    account: _Name = ""
    partition: _Name = ""
    time: str | None = None
    gpus: _Count | Annotated[str, Meta(pattern=r"^([\w.-]+:\d{1,4})?\Z")] = ""
    modules: tuple[str, ...] = ()
    container: str = ""
    setup: tuple[str, ...] = ()
    extra: tuple[_Option, ...] = ()


def load_site(path: str) -> Site:
    """The site that the file describes.

    Raises:
        UsageError: It cannot be read, or something in it is wrong: one line that names the file and the place.
    """
    document = read_toml(Path(path), "a file such as examples/sites/gpu.toml")
    for key in document:
        if key not in (known := _File.__struct_fields__):
            raise UsageError(f"{path}: there is no key {key!r}{did_you_mean(key, known)}: use {', '.join(known)}")
    if isinstance(document.get("setup"), str):
        document["setup"] = document["setup"].splitlines()
    try:
        file = msgspec.convert(document, _File)
        for text in (*file.modules, *file.setup, *file.extra, file.container):
            if not is_one_line(text):
                raise ValueError(f"{text!r} does not stand on one line: write a list of lines")
        return Site(
            account=file.account,
            partition=file.partition,
            time_s=None if file.time is None else _seconds(file.time),
            gpus=str(file.gpus or ""),
            modules=file.modules,
            container=tuple(shlex.split(file.container)),
            setup=file.setup,
            extra=file.extra,
        )
    except (ValueError, UsageError) as problem:  # msgspec's name the place
        raise UsageError(f"{path}: {str(problem).replace('`', '')}: see examples/sites/gpu.toml") from None


def _seconds(time: str) -> float:
    """`90m`, or `1-12:00:00` as Slurm writes it; a number alone is refused, because it could be either."""
    if match := _CLOCK.fullmatch(time):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        if match[4] is None and match[1] is None:  # 30:00 are minutes and seconds there
            hours, minutes, seconds = 0, hours, minutes
        return float(((24 * days + hours) * 60 + minutes) * 60 + seconds)
    if time.strip().replace(".", "").isdigit():
        raise ValueError(f'time {time!r} has no unit: write "{time}m", or "02:00:00"')
    return parse_seconds(time, "time")
