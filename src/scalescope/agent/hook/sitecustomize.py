"""Python runs this file at its start when this folder is on PYTHONPATH: it waits for torch, then watches."""

import os
import sys


def _start_agent() -> None:
    import importlib
    import importlib.util

    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib is slow to import
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


def _run_shadowed_sitecustomize() -> None:
    """Another sitecustomize that this one hides still gets its turn."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("SCALESCOPE_FOLDER"):
    try:
        _start_agent()
    except Exception as problem:  # the training must not suffer from its observer
        sys.stderr.write(f"scalescope: not watching this process: {problem!r}\n")
_run_shadowed_sitecustomize()
