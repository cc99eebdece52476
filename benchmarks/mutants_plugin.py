"""Notes, as a plugin of pytest, which functions of the package each test calls, or runs chosen tests only.

MUTANTS_NOTES names the file of the notes: tests with their seconds, and by `path:line` of a function the numbers of
those that call it. MUTANTS_CHOSEN names a file that lists the tests to run. The section `mutants` sets one of them.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

NOTES, CHOSEN = os.environ.get("MUTANTS_NOTES"), os.environ.get("MUTANTS_CHOSEN")

_called: set[tuple[str, int]] = set()
_tests: list[tuple[str, float]] = []
_calls: dict[str, list[int]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHOSEN:
        chosen = set(json.loads(Path(CHOSEN).read_text()))
        items[:] = [item for item in items if item.nodeid in chosen]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    if not NOTES:
        return (yield)
    _called.clear()
    began = time.monotonic()
    threading.settrace(_note)
    sys.settrace(_note)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        source = f"{item.config.rootpath}{os.sep}"
        for path, line in [each for each in _called if each[0].startswith(f"{source}src{os.sep}")]:
            _calls.setdefault(f"{path.removeprefix(source)}:{line}", []).append(len(_tests))
        _tests.append((item.nodeid, time.monotonic() - began))


def pytest_sessionfinish() -> None:
    if NOTES:
        Path(NOTES).write_text(json.dumps({"tests": _tests, "calls": _calls}))


def _note(frame: FrameType, event: str, argument: Any) -> None:
    """Python calls this when a function is called; returning nothing keeps it from calling for each line."""
    _called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
