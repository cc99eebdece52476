"""Watches what tests start: a test that starts a process carries the mark `launches`, which `make check` leaves out."""

import os
import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import needs

FOLDER = Path(__file__).parent / "end_to_end"
FIXTURES = {"describe", "forked", "hosts", "plain", "ranks", "slurm", "switched", "this_machine", "watch"}
"""Tests in this folder and tests with these fixtures have the mark without asking for it."""
EVENTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"}
SYSTEM = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")
_ASKED = "nvidia-smi"  # Every verb asks it, where a driver is installed, what GPUs there are; that launches nothing
_DRAWS = "renderer.py"  # Draws figures; started once for all tests of a process

_running: pytest.Item | None = None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "launches: starts processes; make check leaves it out")
    config.addinivalue_line("markers", "alone: compares times, so that no other test may run next to it")
    config.addinivalue_line("markers", "user_scripts: needs the extra `scripts`; make test-scripts runs it")
    sys.addaudithook(_on_event)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents or FIXTURES & _fixtures(item):
            item.add_marker("launches")


def _fixtures(item: pytest.Item) -> set[str]:
    """Those that a test uses; a parameter may have the name of one."""
    marks = [mark for mark in item.iter_markers("parametrize") if not mark.kwargs.get("indirect")]
    names = [mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0] for mark in marks]
    return set(getattr(item, "fixturenames", ())) - {name.strip() for each in names for name in each}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _running
    _running = item


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Fixtures of the session end with whichever test is the last, so that what they do then is not the test's."""
    global _running
    _running = None


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Python calls this before it starts a process; raising prevents that."""
    if event not in EVENTS or _running is None or arguments[:1] == (_ASKED,):
        return
    if event == "subprocess.Popen" and any(str(word).endswith(_DRAWS) for word in arguments[1]):
        return
    if _running.get_closest_marker("launches") is None:
        pytest.fail(f"starts a process ({event}): mark it with @pytest.mark.launches, see CONTRIBUTING.md")
    if event == "subprocess.Popen" and _is_of_tests(sys._getframe(1)):
        _check_program(os.fsdecode(arguments[0]), arguments[3])


def _is_of_tests(frame: FrameType | None) -> bool:
    """Whether a test starts the process, and not a library that can do without its program."""
    while frame and Path(frame.f_code.co_filename).name in ("subprocess.py", "contextlib.py"):
        frame = frame.f_back
    return frame is not None and Path(__file__).parent in Path(frame.f_code.co_filename).parents


def _check_program(program: str, environment: dict[Any, Any] | None) -> None:
    """Fail when a program of the system comes from no listed package: a bare machine would not have it."""
    found = shutil.which(program, path=(os.environ if environment is None else environment).get("PATH"))
    if found and str(Path(found).parent) in SYSTEM and not Path(found).samefile(sys.executable):
        needs.package_of(Path(found).name)
