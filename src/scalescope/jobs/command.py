"""A command that a user typed: its Python, its script or module, its placeholders, and what its source imports."""

import os
import re
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from scalescope.engines import engine_of_source
from scalescope.errors import UsageError
from scalescope.text import plain

PLACEHOLDERS = ("np", "nodes", "per_node", "batch", "global_batch", "run_dir", "launch")
_LARGEST_SOURCE = 10_000_000  # Bytes of a file that may be a script


def without_env(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command behind `env NAME=VALUE ...`."""
    words = command
    while words and (words[0] == "env" or (words != command and "=" in words[0])):
        words = words[1:]
    return words


def program_of(words: tuple[str, ...]) -> str:
    """The name of the program; empty without words."""
    return Path(words[0]).name if words else ""


def is_python(words: tuple[str, ...]) -> bool:
    """True when a command's first word is a Python."""
    return re.fullmatch(r"python[0-9.]*", program_of(words)) is not None


def module_of(words: tuple[str, ...]) -> str:
    """The module that `python -m` runs; empty when the command is something else."""
    for word, after in pairwise(words[1:]) if is_python(words) else ():
        if word == "-m":
            return after
        if not word.startswith("-"):
            break
    return ""


def script_of(words: tuple[str, ...]) -> Path | None:
    """The Python file that the command runs, if it is one."""
    named = [word for word in words[1:] if not word.startswith("-")] if is_python(words) else words
    path = Path(*named[:1])
    return path if path.suffix == ".py" and _is_file(path) else None


def missing_script(command: tuple[str, ...]) -> str:
    """The file that `python FILE` would run and that is not there; empty where it is, or where words do not tell."""
    words = without_env(command)
    for word in words[1:] if is_python(words) else ():
        if re.fullmatch(r"-[bBdEiIOPqsSuvx]+|-[WX].+", word):  # others take the next word, or run something else
            continue
        is_file_name = not word.startswith("-") and "{" not in word
        return word if is_file_name and not os.path.exists(word) else ""  # noqa: PTH110 - Path.exists raises
    return ""


def check_command_is_here(command: tuple[str, ...]) -> None:
    """Refuse a command whose program or script is not on this machine."""
    if not shutil.which(command[0]):
        raise UsageError(f"there is no program '{plain(command[0])}' here: check the command's first word")
    if script := missing_script(command):
        raise UsageError(f"there is no file '{plain(script)}' here: check the path in the command")


def source_of(path: Path | None) -> str:
    """The text of a script; empty without one, and for what is too large to be one."""
    if path is None or not _is_file(path) or path.stat().st_size >= _LARGEST_SOURCE:
        return ""
    return path.read_text(errors="replace")


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for a name that is too long, as a shell line is


def engine_of_script(command: tuple[str, ...]) -> str:
    """The engine that the Python files in the command import."""
    sources = [source_of(Path(word)) for word in command if word.endswith(".py")]
    return engine_of_source("\n".join(sources)).name


def interpreter_of(command: tuple[str, ...], own: str) -> str:
    """The Python of the user's command when it names one, otherwise our own."""
    if is_python(command):
        found = shutil.which(command[0])
        if not found:
            raise UsageError(f"there is no program '{command[0]}': check the command's first word")
        return str(Path(found).absolute())  # other hosts start in another folder
    return own


def fill_placeholders(command: tuple[str, ...], values: Mapping[str, object]) -> tuple[str, ...]:
    """The command with its placeholders replaced; other braces stay."""

    def replace(match: re.Match[str]) -> str:
        value = values[match[1]]
        if value is None:
            raise UsageError(f"the command uses {{{match[1]}}} and there is no batch size: add --batch")
        return str(value)

    pattern = re.compile("{(" + "|".join(PLACEHOLDERS) + ")}")
    return tuple(pattern.sub(replace, word) for word in command)


def uses_placeholder(command: tuple[str, ...], *names: str) -> bool:
    """True when any word of the command holds one of these placeholders."""
    return any(f"{{{name}}}" in word for word in command for name in names)
