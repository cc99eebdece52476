"""Result folders: made, marked as ours and locked; nothing without our mark is ever emptied or written over."""

import contextlib
import fcntl
import shutil
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path

from scalescope.errors import UsageError
from scalescope.launchers.runner import LAUNCHER_OUTPUT
from scalescope.records.files import PLAN
from scalescope.records.store import AnyRecord, Record, load, save, writing

MARK = ".scalescope"
_LOCK = "lock"
_OURS = {MARK, f"{MARK}.partial", _LOCK}  # What a folder holds that was made and not used yet
# What is written before the first process of a launch starts; from then on there is a rank's output, or the launcher's.
_PREPARED = {*_OURS, PLAN, "env.json", "rehearsal.json", "task.json", "command.txt", "env.sh"}
RANKS = "ranks"  # The kind of a sub-folder of ranks of our own, which write nothing for a user


class FolderMark(Record, frozen=True, kw_only=True, tag="folder"):
    """Says that scalescope made a folder and may replace what is in it."""

    made_by: str  # The verb whose results it holds, or the kind of a sub-folder


@contextlib.contextmanager
def result_folder(verb: str, given: str | Path | None = None, *, also: Collection[str] = ()) -> Iterator[Path]:
    """The folder of one run of a verb, for this process alone while the body runs.

    Args:
        verb: Whose results it holds; the mark keeps it.
        given: The user's `-o`; without one the folder is `results/VERB-YYYYmmdd-HHMMSS`.
        also: Other verbs whose folders are accepted.

    Raises:
        UsageError: The folder holds anything else, or another process uses it. Nothing was changed.

    When the body raises UsageError, the request was refused: what it has prepared in a new folder is removed.
    """
    folder, made = _made(verb, Path(given).absolute() if given else None, also)
    with held(folder):
        check(folder, verb, also)  # again: another process may have begun between the first look and the lock
        is_new = not mark_of(folder)
        if is_new:
            _mark(folder, verb)
        refused = False
        try:
            yield folder
        except UsageError:
            refused = True
            raise
        finally:
            if is_new and (refused or not given):
                _remove_unused(folder, made, refused=refused)


def check(folder: Path, verb: str, also: Collection[str] = ()) -> None:
    """Refuse a folder that is neither new, empty nor of this verb; changes nothing."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder with -o")
    found = mark_of(folder)
    if found and found not in (verb, *also):
        raise UsageError(f"{folder} holds results of scalescope {found}: choose another folder with -o")
    if not found and _holds_anything(folder):
        raise UsageError(f"{folder} holds files that scalescope {verb} did not write: choose another folder with -o")


def emptied(folder: Path, kind: str) -> Path:
    """A sub-folder for files of one launch, empty but for our mark; UsageError when its content is not ours."""
    with writing(folder):
        if folder.is_dir() and mark_of(folder) == kind:
            for entry in folder.iterdir():
                if entry.name == MARK:  # stays to the last: a kill leaves a folder that is still known as ours
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink(missing_ok=True)
            return folder
        if folder.exists() and (not folder.is_dir() or _holds_anything(folder)):
            raise UsageError(
                f"{folder} holds files that scalescope did not write: move it away, or choose another folder with -o"
            )
        folder.mkdir(parents=True, exist_ok=True)
    _mark(folder, kind)
    return folder


def check_record(path: Path, record_type: type[AnyRecord]) -> None:
    """Refuse to write over a file that is no such record."""
    if path.exists():
        try:
            load(path, record_type)
        except UsageError:
            kind = record_type.__struct_config__.tag
            raise UsageError(
                f"{path} is no '{kind}' of this scalescope: move it away, or choose another folder with -o"
            ) from None


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Two processes must not write into one folder; the lock goes with its holder, however that ends."""
    path = folder / _LOCK
    with writing(path):
        lock = open(path, "a")  # noqa: SIM115 - closed below
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another scalescope is writing into {folder}: wait for its end, or choose another folder with -o"
            ) from None
        except OSError:  # a file system without locks
            pass
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough while a forked child has the file open


@contextlib.contextmanager
def interrupted_in(folder: Path) -> Iterator[None]:
    """Name the folder in a KeyboardInterrupt, so that it can be resumed."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(str(folder)) from None


def mark_of(folder: Path) -> str:
    """The maker that our mark in a folder names; empty when there is no mark that can be read."""
    try:
        return load(folder / MARK, FolderMark).made_by
    except UsageError:
        return ""


def _made(verb: str, given: Path | None, also: Collection[str]) -> tuple[Path, Sequence[Path]]:
    """The folder, and what had to be made for it: itself first, then folders above it."""
    if given is not None:
        check(given, verb, also)  # before the lock's file is made in a folder that is not ours
        with writing(given):
            made = _missing(given)
            given.mkdir(parents=True, exist_ok=True)
        return given, made
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in count(1):
        folder = (Path("results") / (f"{verb}-{stamp}" if number == 1 else f"{verb}-{stamp}-{number}")).absolute()
        with writing(folder), contextlib.suppress(FileExistsError):
            made = [folder, *_missing(folder.parent)]
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            break
    return folder, made


def _missing(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _mark(folder: Path, made_by: str) -> None:
    save(FolderMark(made_by=made_by), folder / MARK)


def _remove_unused(folder: Path, made: Sequence[Path], *, refused: bool) -> None:
    """A request that failed before it began, or that was refused before its first launch, leaves no folder."""
    with contextlib.suppress(OSError):
        entries = list(folder.iterdir())
        if not all(entry.name in _OURS or (refused and _is_prepared(entry)) for entry in entries):
            return
        for entry in entries:
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        for path in made:
            path.rmdir()  # fails where something else has begun meanwhile


def _is_prepared(path: Path) -> bool:
    """True for files and folders that only prepare a launch, or that ranks of ours have left."""
    if path.is_symlink() or not path.is_dir():
        is_script = path.name.startswith("job") and path.suffix == ".sh"
        return is_script or path.name in _PREPARED or (path.name == LAUNCHER_OUTPUT and not path.stat().st_size)
    return mark_of(path) == RANKS or all(_is_prepared(entry) for entry in path.iterdir())


def _holds_anything(folder: Path) -> bool:
    return any(entry.name not in _OURS for entry in folder.iterdir())
