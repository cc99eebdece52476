"""Records on disk: JSON with a kind and a version, written whole or not at all; raw data as JSON lines."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from scalescope.errors import UsageError, WorkFailed

_INSIDE = r"(?s)^(?!/|(.*/)?\.\.(/|$))"
# A file or folder inside the one that holds the record; others may have written it.
Inside = Annotated[str, msgspec.Meta(pattern=_INSIDE)]


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", dict=True):
    """A versioned record; a subclass states its kind as tag and its version in `current_version`."""

    current_version: ClassVar[int] = 1
    # How a notebook shows records; the API sets it, which knows their words and figures.
    shown_as: ClassVar[Callable[[Any], str | None] | None] = None

    version: int = 0

    def __post_init__(self) -> None:
        if self.version == 0:
            msgspec.structs.force_setattr(self, "version", type(self).current_version)

    @property
    def folder(self) -> Path | None:
        """The result folder that it was made in, which is not written; None for a record that was read or computed."""
        return self.__dict__.get("folder")

    def _repr_html_(self) -> str | None:
        return Record.shown_as(self) if Record.shown_as else None


AnyRecord = TypeVar("AnyRecord", bound=Record)


def in_folder(record: AnyRecord, folder: Path) -> AnyRecord:
    """The record, which names its result folder from now on."""
    record.__dict__["folder"] = folder
    return record


class _Header(msgspec.Struct):
    kind: str
    version: int


def encode(record: msgspec.Struct) -> bytes:
    """The record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def decode(data: bytes, record_type: type[AnyRecord], source: str) -> AnyRecord:
    """The record in `data`; a clear line when it is of another kind or version, or damaged."""
    try:
        header = msgspec.json.decode(data, type=_Header)
        check_header(header.kind, header.version, record_type, source)
        return msgspec.json.decode(data, type=record_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        why = str(problem).replace(f"`str` matching regex {_INSIDE!r}", "a path inside its folder")
        raise UsageError(f"{source} is not a readable scalescope record ({why}): name another file") from None


def check_header(kind: object, version: object, record_type: type[Record], source: str) -> None:
    """Raise UsageError unless a file is of this record's kind and version."""
    wanted, current = record_type.__struct_config__.tag, record_type.current_version
    if kind != wanted:
        raise UsageError(f"{source} holds a '{kind}', not a '{wanted}': name a file of that kind")
    if version != current:
        newer = isinstance(version, int) and version > current
        action = "pip install --upgrade scalescope" if newer else "make it anew"
        raise UsageError(f"{source} has format {version} and this scalescope reads format {current}: {action}")


def save(record: Record, path: Path) -> None:
    """Write the record whole."""
    write_whole(path, encode(record))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a kill leaves the old one or the new one, never half of one."""
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:  # a full disk is not to be filled with halves
            with contextlib.suppress(OSError):
                partial.unlink()
            raise


def load(path: Path, record_type: type[AnyRecord]) -> AnyRecord:
    """Read one record."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror}: name an existing record") from None
    return decode(data, record_type, str(path))


def append(record: Record, path: Path) -> None:
    """Add one line to a file of JSON lines."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


def load_lines(path: Path, record_type: type[AnyRecord]) -> list[AnyRecord]:
    """Every complete record of a JSON-lines file; a last line cut by a kill is left out."""
    return [decode(line, record_type, str(path)) for line in complete_lines(path)]


def drop_torn_line(path: Path) -> None:
    """Cut off what a kill left of a last line, so that the next one begins on its own."""
    if path.exists():
        data = path.read_bytes()
        with writing(path), open(path, "r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def complete_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that end with a line break."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n") and line.strip():
                yield line


class LineWriter:
    """Appends lines to the file of a rank, which is open as long as the rank lives."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab")  # noqa: SIM115

    def write(self, line: msgspec.Struct) -> None:
        """One line, at once."""
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


class writing:  # noqa: N801 - reads as a statement: `with writing(path):`
    """Turns the errors of a full or forbidden disk into one line that names the next action."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, problem: BaseException | None, _trace: object) -> None:
        if not isinstance(problem, OSError):
            return
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WorkFailed(
                f"the disk is full: {self._path} could not be written; "
                "free some space or choose another folder with -o; what was finished before is kept"
            ) from None
        raise WorkFailed(f"cannot write {self._path}: {problem.strerror}; choose another folder with -o") from None
