"""A user's own code by `package.module:name` or `path/file.py:name`, and the values of `--model-arg name=value`."""

import hashlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from scalescope.errors import UsageError
from scalescope.named_paths import named_paths
from scalescope.records.profile import Scalar
from scalescope.text import assignment, did_you_mean, plain


def one_line(error: BaseException) -> str:
    """An exception's own message as one short line; its type where it has no message."""
    lines = str(error).strip().splitlines()
    return plain(lines[0].strip().rstrip(".")) if lines else type(error).__name__


def resolve(reference: str) -> tuple[object, ModuleType]:
    """The object that `module:name` or `file.py:name` names, and the module it stands in."""
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise UsageError(f"{reference!r} names no function or class: write package.module:name or path/file.py:name")
    module = import_file(where) if where.endswith(".py") else import_named(where)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        own = [key for key in known if getattr(vars(module)[key], "__module__", None) == module.__name__]
        there = f"it has {', '.join(own[:8])}" if own else "it defines no function or class"
        raise UsageError(f"no {name!r} in {where}{did_you_mean(name, known)}: {there}")
    return getattr(module, name), module


def import_named(name: str) -> ModuleType:
    """The module `name`, looked up in the working directory first."""
    prefer_directory(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise UsageError(
                f"no module {name!r} in {Path.cwd()} or the environment: "
                f"change to the directory that holds it, or write path/file.py:name"
            ) from error
        raise import_failed(name, error) from error
    except Exception as error:
        raise import_failed(name, error) from error


def import_file(text: str) -> ModuleType:
    """The module in a file, with its directory on the import path as `python file.py` would have it."""
    path = module_file(text)
    # The digest keeps apart files of one name, and keeps a user's `torch.py` from replacing torch.
    name = f"{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    prefer_directory(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise import_failed(text, error) from error
    return module


def module_file(text: str) -> Path:
    """The file that a user named as `path/file.py`; UsageError when there is none."""
    path = Path(text).expanduser().resolve()
    with named_paths([str(path)]):  # ranks look, too, where nobody else knows which paths the user named
        is_there = path.is_file()
    if not is_there:
        near = did_you_mean(path.name, [file.name for file in path.parent.glob("*.py")])
        raise UsageError(f"no file {plain(text)}{near}: give the path from {Path.cwd()}")
    return path


def prefer_directory(directory: Path) -> None:
    """Put a directory first on the import path, once."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def import_failed(what: str, error: Exception) -> UsageError:
    """The error for code that exists and cannot be imported."""
    command = f"python {what}" if what.endswith(".py") else f"python -c 'import {what}'"
    return UsageError(
        f"{what} cannot be imported: {type(error).__name__}: {one_line(error)}; `{command}` shows where it fails"
    )


WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None}


def parse_model_args(texts: Sequence[str]) -> dict[str, Scalar]:
    """Constructor arguments from `name=value` texts, each of the type that it looks like."""
    arguments: dict[str, Scalar] = {}
    for text in texts:
        name, value = assignment(text, "--model-arg", "width=512")
        if not name.isidentifier():
            raise UsageError(f"--model-arg: {plain(name)!r} cannot name an argument: write it like width=512")
        if name in arguments:
            raise UsageError(f"--model-arg {name} is given twice: keep one of them")
        arguments[name] = literal(value)
    return arguments


def literal(text: str) -> Scalar:
    """true, false, none, a finite number, a quoted string, or the text itself."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        # JSON has no infinity: such a value could not reach the ranks.
        if math.isfinite(number := float(text)):
            return number
    return unquoted(text)


def unquoted(text: str) -> str:
    """`text` without one pair of surrounding quotes."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
