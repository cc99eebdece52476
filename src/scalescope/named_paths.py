"""Paths that users name: an error of the file system about one is a line for the user; and TOML that users wrote."""

import errno
import functools
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from scalescope.errors import UsageError
from scalescope.text import plain

# What a name or a permission is to blame for. Inside a folder that was named, other errors are ours or the disk's.
_REFUSED = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR}

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def named_paths(words: Iterable[str]) -> Iterator[None]:
    """Turn an OSError about one of these words, or about a file inside one, into a UsageError; others pass."""
    try:
        yield
    except OSError as problem:
        if not isinstance(problem.filename, str) or not any(_is_about(problem, word) for word in words):
            raise
        path, why = plain(problem.filename), problem.strerror or type(problem).__name__
        raise UsageError(f"cannot use '{path}': {why}: check its permissions, or name another path") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in errors of reading it: the system names one only where a file is opened."""
    try:
        yield
    except OSError as problem:
        problem.filename = problem.filename or str(path)
        raise


def read_toml(path: Path, known: str) -> dict[str, Any]:
    """The TOML of a file; `known` is what to name instead of one that cannot be read."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror}: name {known}") from None
    except (ValueError, RecursionError) as problem:  # tomllib has no error of its own for numbers without end
        raise UsageError(f"{path} is not TOML ({problem}): correct that place or name another file") from None


def takes_paths(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of the API refuse paths among its arguments as the command line does."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        with named_paths(_texts([*args, *kwargs.values()])):
            return function(*args, **kwargs)

    return checked


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str | Path):
            yield str(value)
        elif isinstance(value, list | tuple):
            yield from _texts(value)


def _is_about(problem: OSError, word: str) -> bool:
    """A word is a path, or holds one: `--export=FILE`, `FILE:factory`."""
    failed = Path(problem.filename).absolute()
    named = [Path(text).absolute() for text in (word, word.split("=", 1)[-1], word.rpartition(":")[0]) if text]
    return failed in named or (problem.errno in _REFUSED and any(map(failed.is_relative_to, named)))
