"""Python runs this file at its start when this folder is on PYTHONPATH: it waits for torch, then watches."""

import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import


def _hooks_that_ran() -> "list[str]":
    """Folders of this file and its copies, one list for all of them."""
    shared = sys.modules.setdefault("scalescope_hook", ModuleType("scalescope_hook"))
    folders: list[str] = shared.__dict__.setdefault("folders", [])
    return folders


def _start_agent() -> None:
    import importlib
    import importlib.util

    home = os.path.dirname(_HERE)  # noqa: PTH120
    package = importlib.util.spec_from_file_location(
        "scalescope_agent",
        os.path.join(home, "__init__.py"),  # noqa: PTH118
        submodule_search_locations=[home],
    )
    assert package is not None
    assert package.loader is not None
    module = importlib.util.module_from_spec(package)
    sys.modules["scalescope_agent"] = module
    package.loader.exec_module(module)
    importlib.import_module("scalescope_agent.watch").begin(os.environ["SCALESCOPE_FOLDER"])


def _run_shadowed_sitecustomize(ran: "list[str]") -> None:
    """Another sitecustomize that this one hides still runs, unless it is the one that runs this one."""
    import importlib.machinery
    import importlib.util

    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") not in ran]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    running = getattr(sys.modules.get("sitecustomize"), "__file__", None)
    if spec and spec.loader and spec.origin != running:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_RAN = _hooks_that_ran()
if _HERE not in _RAN:
    _RAN.append(_HERE)
    if len(_RAN) == 1 and os.environ.get("SCALESCOPE_FOLDER"):
        try:
            _start_agent()
        except Exception as problem:  # the training must not suffer from its observer
            sys.stderr.write(f"scalescope: not watching this process: {problem!r}\n")
    _run_shadowed_sitecustomize(_RAN)
