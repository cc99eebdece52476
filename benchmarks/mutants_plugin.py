"""Notes, as a plugin of pytest, which functions of the package each test calls, or runs chosen tests only.

MUTANTS_NOTES names the file of the notes: tests with their seconds, and by `path:line` of a function the numbers of
those that call it. MUTANTS_CHOSEN names a file that lists the tests to run. The section `mutants` sets one of them.

A fixture that several tests share calls for all of them, and what is called while tests are collected, for every test.
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
Calls = set[tuple[str, int]]  # File and first line

_called: Calls = set()
_by_all: Calls = set()
_by_fixture: dict[str, Calls] = {}
_by_test: dict[str, Calls] = {}
_seconds: dict[str, float] = {}


def _note(frame: FrameType, event: str, argument: Any) -> None:
    """Python calls this when a function is called; returning nothing keeps it from calling for each line."""
    _called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))


if NOTES:
    threading.settrace(_note)
    sys.settrace(_note)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHOSEN:
        chosen = set(json.loads(Path(CHOSEN).read_text()))
        items[:] = [item for item in items if item.nodeid in chosen]


def pytest_collection_finish() -> None:
    _by_all.update(_called)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    before = set(_called)
    _called.clear()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _by_fixture.setdefault(fixturedef.argname, set()).update(_called)
        _called.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    _called.clear()
    if NOTES:
        sys.settrace(_note)  # Python takes it away where it raises, as in a test that nests too deep
    began = time.monotonic()
    try:
        return (yield)
    finally:
        shared = [_by_fixture.get(name, set()) for name in getattr(item, "fixturenames", ())]
        _by_test[item.nodeid] = _called.union(*shared)
        _seconds[item.nodeid] = time.monotonic() - began


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not NOTES:
        return
    root = f"{session.config.rootpath}{os.sep}"
    source = f"{root}src{os.sep}"
    calls: dict[str, list[int]] = {}
    for number, called in enumerate(_by_test.values()):
        for path, line in called | _by_all:
            if path.startswith(source):
                calls.setdefault(f"{path.removeprefix(root)}:{line}", []).append(number)
    Path(NOTES).write_text(json.dumps({"tests": list(_seconds.items()), "calls": calls}))
