"""`package.module:name` and `path/file.py:name`: a user's own code, imported, with errors that say what to type."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from scalescope.errors import UsageError
from scalescope.workloads.wording import did_you_mean, one_line


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
    path = Path(text).expanduser().resolve()
    if not path.is_file():
        near = did_you_mean(path.name, [file.name for file in path.parent.glob("*.py")])
        raise UsageError(f"no file {text}{near}: give the path from {Path.cwd()}")
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
