"""Which faults in the source do the quick tests of the same room notice, and which those of other rooms?

`make bench SECTION=mutants SEED=2 MUTANTS=50` tries 50 others than the usual ones, `ROOMS=records,tuner` those of
two rooms only.
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.mutation import Mutant, draw, faults, is_another_program
from benchmarks.shared import Unfinished, print_table
from scalescope import host
from scalescope.records.store import drop_torn_line

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src") / "scalescope"
LEFT_OUT = {"agent"}  # Its tests start processes
_OF_COMMANDS = ("cli", "report", "test_api.py")
TESTED_BY = dict.fromkeys(("api", "cli", "show", "verbs"), _OF_COMMANDS)
"""Rooms whose tests are more than the folder of the same name: what commands print passes all of these."""
SEED, MUTANTS = 1, 100
SECONDS = 17 * 60  # One run of this section tries none that would end later; the next one continues
RESULTS = Path("results") / "bench"
# Result folders that tests read carry a hidden mark.
_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "results", "build", "dist", "__pycache__"
)
# Tests that take so many times as long as without a fault, and so many seconds more, hang in it.
_SLOWER, _SECONDS_MORE = 3, 60
_ELSEWHERE_S = 300.0  # What a room's own tests let pass is tried on those files of other rooms that import it
_NO_TESTS = 5  # pytest's exit code where nothing was selected
_UNNOTICED = {"elsewhere": "noticed", "survived": "no"}


def mutants() -> list[dict[str, Any]]:
    """One row per room; what survived stands above them."""
    seed, count = int(os.environ.get("SEED", SEED)), int(os.environ.get("MUTANTS", MUTANTS))
    rooms = tuple(filter(None, os.environ.get("ROOMS", "").split(",")))
    print(f"seed {seed}")
    return judge(ROOT, RESULTS / f"{'-'.join(('mutants', str(seed), *rooms))}.jsonl", seed, count, SECONDS, rooms)


def judge(
    root: Path, path: Path, seed: int, count: int, seconds: float, rooms: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Try the mutants that the file does not have yet, one on each core; Unfinished when that takes too long."""
    until = time.monotonic() + seconds
    known = _known(path, digest(root))
    asked = {room: found for room, found in places(root).items() if not rooms or room in rooms}
    mutants = draw(asked, count, seed, lambda each: is_another_program(_source(root, each), each.fault))
    left = [mutant for mutant in mutants if _name(mutant) not in known]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(host.cores().logical) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(host.cores().logical):
            copies.put(shutil.copytree(root, Path(folder) / str(number), ignore=_NOT_COPIED))

        def line_of(name: str, work: Callable[[Path], dict[str, Any]], usual_s: float = 0.0) -> bool:
            """Do this in a copy that nobody else uses, unless it would end too late."""
            copy = copies.get()
            try:
                in_time = time.monotonic() + usual_s <= until
                if in_time:
                    _write(path, known, {"name": name, **work(copy)})
                return in_time
            finally:
                copies.put(copy)

        unknown = sorted({mutant.room for mutant in left} - known.keys())
        usual = [pool.submit(line_of, room, partial(_without_fault, room)) for room in unknown]
        if not all(each.result() for each in usual):
            raise Unfinished(_shown(mutants, known))
        tried = [
            pool.submit(line_of, _name(mutant), partial(_with_fault, mutant, usual_s), usual_s)
            for mutant in left
            for usual_s in [known[mutant.room]["seconds"]]
        ]
        if not all(each.result() for each in tried):
            raise Unfinished(_shown(mutants, known))
    return _shown(mutants, known)


def digest(root: Path) -> str:
    """Of everything that results depend on."""
    found = (path for folder in ("src", "tests") for path in (root / folder).rglob("*"))
    files = sorted(path for path in found if path.is_file() and path.parent.name != "__pycache__")
    return hashlib.sha256(
        b"".join(str(path.relative_to(root)).encode() + path.read_bytes() for path in files)
    ).hexdigest()


def places(root: Path) -> dict[str, list[Mutant]]:
    """All mutants of every room that has tests."""
    found: dict[str, list[Mutant]] = {}
    for path in sorted((root / PACKAGE).glob("*/**/*.py")):
        room = path.relative_to(root / PACKAGE).parts[0]
        if room not in LEFT_OUT and _tests(root, room):
            made = [Mutant(room, str(path.relative_to(root)), fault) for fault in faults(path.read_bytes())]
            found.setdefault(room, []).extend(made)
    return found


def outcome(copy: Path, mutant: Mutant, limit_s: float) -> str:
    """killed, hangs, elsewhere (only tests of other rooms notice) or survived; the copy is as before afterwards."""
    path = copy / mutant.path
    source, compiled = path.read_bytes(), Path(importlib.util.cache_from_source(str(path)))
    try:
        path.write_bytes(mutant.fault.put_into(source))
        compiled.unlink(missing_ok=True)  # Python compares times in whole seconds and sizes, which may be the same
        module = ".".join(Path(mutant.path.removesuffix(".py")).parts[1:]).removesuffix(".__init__")
        code = quick_tests(copy, _tests(copy, mutant.room, module), limit_s)
        elsewhere = code == 0 and quick_tests(copy, _tests_elsewhere(copy, mutant.room, module), _ELSEWHERE_S) != 0
    finally:
        path.write_bytes(source)
        compiled.unlink(missing_ok=True)
    return "hangs" if code is None else "killed" if code else "elsewhere" if elsewhere else "survived"


def _tests(copy: Path, room: str, module: str = "") -> list[Path]:
    """A room's tests; those that import this come first, because they notice a fault in it soonest."""
    places = [copy / "tests" / name for name in TESTED_BY.get(room, (room,))]
    found = [path for place in places for path in ([place] if place.is_file() else place.rglob("test_*.py"))]
    return sorted(found, key=lambda path: (not _imports(path, module), path))


def _tests_elsewhere(copy: Path, room: str, module: str) -> list[Path]:
    own = set(_tests(copy, room))
    return [path for path in sorted((copy / "tests").rglob("test_*.py")) if path not in own and _imports(path, module)]


def _imports(path: Path, module: str) -> bool:
    package, _, name = module.rpartition(".")
    return (
        re.search(rf"\b{re.escape(module)}\b|from {re.escape(package)} import .*\b{name}\b", path.read_text())
        is not None
    )


def quick_tests(copy: Path, files: list[Path], limit_s: float) -> int | None:
    """The exit code of those tests in these files that launch nothing; None when they hang."""
    if not files:
        return 0
    options = ("-q", "-x", "-m", "not launches and not user_scripts", "-p", "no:cacheprovider")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *map(str, files)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(timeout=limit_s)
        return 0 if code == _NO_TESTS else code
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _without_fault(room: str, copy: Path) -> dict[str, Any]:
    began = time.monotonic()
    code = quick_tests(copy, _tests(copy, room), 600.0)
    if code != 0:
        raise RuntimeError(f"the quick tests of {room} fail without any fault: run pytest tests/{room}")
    return {"seconds": round(time.monotonic() - began, 1)}


def _with_fault(mutant: Mutant, usual_s: float, copy: Path) -> dict[str, Any]:
    return {"outcome": outcome(copy, mutant, _SLOWER * usual_s + _SECONDS_MORE)}


def _source(root: Path, mutant: Mutant) -> bytes:
    return (root / mutant.path).read_bytes()


def _name(mutant: Mutant) -> str:
    fault = mutant.fault
    return " ".join(f"{mutant.path}:{fault.line} {fault.kind} at {fault.start}: {fault.new}".split())


def _known(path: Path, of: str) -> dict[str, dict[str, Any]]:
    """Results of earlier runs; none where source or tests have changed since."""
    drop_torn_line(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if not lines or lines[0].get("of") != of:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"name": "", "of": of}) + "\n")
        return {}
    return {line["name"]: line for line in lines[1:]}


def _write(path: Path, known: dict[str, dict[str, Any]], line: dict[str, Any]) -> None:
    known[line["name"]] = line
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")
    said = line.get("outcome") or f"{line['seconds']} s without a fault"
    print(f"  {line['name']}: {said}", flush=True)


def _shown(mutants: list[Mutant], known: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows per room and of all; survivors are printed here."""
    tried = [(mutant, known[_name(mutant)]["outcome"]) for mutant in mutants if _name(mutant) in known]
    print_table([_survivor(mutant, became) for mutant, became in tried if became in _UNNOTICED])
    rooms = sorted({mutant.room for mutant, _ in tried})
    rows = [_row(room, [became for mutant, became in tried if mutant.room == room]) for room in rooms]
    return [*rows, _row("all", [became for _, became in tried])]


def _row(room: str, outcomes: list[str]) -> dict[str, Any]:
    counts = Counter(outcomes)
    here = counts["killed"] + counts["hangs"]
    shares = [
        f"{100 * killed / len(outcomes):.0f}" if outcomes else "" for killed in (here, here + counts["elsewhere"])
    ]
    return {
        "room": room,
        "mutants": len(outcomes),
        "noticed in the room": here,
        "elsewhere": counts["elsewhere"],
        "survived": counts["survived"],
        "in the room %": shares[0],
        "anywhere %": shares[1],
    }


def _survivor(mutant: Mutant, became: str) -> dict[str, str]:
    fault = mutant.fault
    old, new = (" ".join(text.split()) for text in (fault.old, fault.new))
    change = f"{old} -> {new}" if old else f"{new} added"
    place = f"{mutant.path}:{fault.line}"
    return {
        "not noticed in its room": place,
        "elsewhere": _UNNOTICED[became],
        "kind": fault.kind,
        "change": change[:100],
    }
