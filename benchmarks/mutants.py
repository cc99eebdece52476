"""Which faults in the source do the quick tests of the same room notice?

Faults are put into a copy of the source, one at a time. Tests of the room that call the changed function are run, or
all of its tests where none of them calls it in its own process. `make bench SECTION=mutants SEED=2 MUTANTS=50` tries
50 others than the usual ones, `ROOMS=records,tuner` those of two rooms only, `AT_ONCE=1` one after the other.
"""

import ast
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from benchmarks.shared import LONGEST_S, ROOT, Unfinished, print_table
from scalescope import host
from scalescope.records.store import drop_torn_line

PACKAGE = Path("src") / "scalescope"
LEAVES = "leaves"  # Modules that are in no room
_OF_COMMANDS = ("cli", "report", "test_api.py")
TESTED_BY = {
    **dict.fromkeys(("api", "cli", "show", "verbs"), _OF_COMMANDS),
    LEAVES: (
        *("test_changes.py", "test_host.py", "test_levels.py", "test_line_pattern.py", "test_steady.py"),
        *("test_text.py", "test_units.py", "test_warmup.py", "measurement/test_stats.py", "traces/test_intervals.py"),
        *("jobs/test_request.py", "cli/test_help.py", "cli/test_unusable_paths.py"),
    ),
}
"""Rooms whose tests are others than the folder of the same name: what commands print passes several rooms."""
_QUICK = "not launches and not user_scripts"
_MARKS = {"agent": "not user_scripts"}
"""Which tests count, as pytest's -m takes it: nearly all of the agent runs inside the ranks that tests start."""
SEED, MUTANTS = 1, 100
RESULTS = Path("results") / "bench"
# Result folders that tests read carry a hidden mark.
_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "results", "build", "dist", "__pycache__"
)
# Tests that take so many times as long as without a fault, and so many seconds more, time out.
SLOWER, SECONDS_MORE = 3, 60
_NO_TESTS = 5  # pytest's exit code where nothing was selected


class Fault(NamedTuple):
    """One change of a source: bytes from `start` to `end` become `new`."""

    kind: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def put_into(self, source: bytes) -> bytes:
        """The source with this fault."""
        return source[: self.start] + self.new.encode() + source[self.end :]


class Mutant(NamedTuple):
    """A fault and the file that gets it."""

    room: str
    path: str
    fault: Fault


def mutants() -> list[dict[str, Any]]:
    """One row per room; what survived stands above them."""
    seed, count = int(os.environ.get("SEED", SEED)), int(os.environ.get("MUTANTS", MUTANTS))
    rooms = tuple(filter(None, os.environ.get("ROOMS", "").split(",")))
    print(f"seed {seed}")
    return judge(ROOT, RESULTS / f"{'-'.join(('mutants', str(seed), *rooms))}.jsonl", seed, count, LONGEST_S, rooms)


class _OutOfTime(Exception):
    """The section's time is over: what runs is stopped and tried again by the next run."""


def judge(
    root: Path, path: Path, seed: int, count: int, seconds: float, rooms: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Try the mutants that the file does not have yet, one on each core; Unfinished when that takes too long."""
    until = time.monotonic() + seconds
    known = _known(path, digest(root))
    asked = {room: found for room, found in places(root).items() if not rooms or room in rooms}
    drawn = draw(asked, count, seed, lambda each: is_another_program((root / each.path).read_bytes(), each.fault))
    left: dict[str, list[Mutant]] = {}
    for mutant in sorted(drawn, key=lambda each: (each.room in _MARKS, each.room)):  # Tests that launch come last
        if _name(mutant) not in known:
            left.setdefault(_suite(mutant.room), []).append(mutant)
    at_once = int(os.environ.get("AT_ONCE", host.cores().logical))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(at_once) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(at_once):
            copies.put(shutil.copytree(root, Path(folder) / str(number), ignore=_NOT_COPIED))

        def keep(name: str, work: Callable[[Path], dict[str, Any]]) -> bool:
            """Do this in a copy that nobody else uses; False when time is over."""
            copy = copies.get()
            try:
                line = {"name": name, **work(copy)}
                known[name] = line
                with open(path, "a") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"  {name}: {line.get('outcome') or str(line['seconds']) + ' s without a fault'}", flush=True)
                return True
            except _OutOfTime:
                return False
            finally:
                copies.put(copy)

        def without_fault(suite: str) -> bool:
            room = left[suite][0].room
            return suite in known or keep(suite, lambda copy: _without_fault(copy, room, until))

        def with_fault(mutant: Mutant, usual: Future[bool]) -> bool:
            if not usual.result():
                return False
            of_suite = known[_suite(mutant.room)]
            return keep(_name(mutant), lambda copy: {"outcome": outcome(copy, mutant, of_suite, until)})

        usual: dict[str, Future[bool]] = {}
        tasks: list[Future[bool]] = []
        for suite, following in zip_longest(left, list(left)[1:]):
            for each in (suite, following):  # The next one, too, so that no core waits for it
                if each and each not in usual:
                    usual[each] = pool.submit(without_fault, each)
            tasks += [pool.submit(with_fault, mutant, usual[suite]) for mutant in left[suite]]
        done = all(task.result() for task in tasks)
    tried = [(mutant, known[_name(mutant)]["outcome"]) for mutant in drawn if _name(mutant) in known]
    print_table([_shown(mutant, became) for mutant, became in tried if became != "noticed"])
    by_room = [(room, [became for mutant, became in tried if mutant.room == room]) for room in sorted(asked)]
    rows = [_row(room, outcomes) for room, outcomes in by_room if outcomes]
    rows.append(_row("all", [became for _, became in tried]))
    if not done:
        raise Unfinished(rows)
    return rows


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
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / PACKAGE).parts
        room = parts[0] if len(parts) > 1 else LEAVES
        if _tests(root, room):
            made = [Mutant(room, str(path.relative_to(root)), fault) for fault in faults(path.read_bytes())]
            found.setdefault(room, []).extend(made)
    return found


def outcome(copy: Path, mutant: Mutant, usual: dict[str, Any], until: float) -> str:
    """Whether tests noticed it, timed out or let it survive; the copy is as before afterwards."""
    path = copy / mutant.path
    source, compiled = path.read_bytes(), Path(importlib.util.cache_from_source(str(path)))
    module = ".".join(Path(mutant.path.removesuffix(".py")).parts[1:]).removesuffix(".__init__")
    first, last = function_around(source, mutant.fault.line)
    called = {at for line in range(first, last + 1) for at in usual["calls"].get(f"{mutant.path}:{line}", ())}
    seconds = dict(usual["tests"][at] for at in sorted(called)) or dict(usual["tests"])
    chosen = copy / "chosen.json"
    chosen.write_text(json.dumps(list(seconds)))
    wanted = {copy / name.partition("::")[0] for name in seconds}
    try:
        path.write_bytes(mutant.fault.put_into(source))
        compiled.unlink(missing_ok=True)  # Python compares times in whole seconds and sizes, which may be the same
        code = _run_tests(
            copy,
            mutant.room,
            [file for file in _tests(copy, mutant.room, module) if file in wanted],
            SLOWER * (usual["start_s"] + sum(seconds.values())) + SECONDS_MORE,
            until,
            MUTANTS_CHOSEN=str(chosen),
        )
    finally:
        path.write_bytes(source)
        compiled.unlink(missing_ok=True)
    return "timed out" if code is None else "noticed" if code else "survived"


def function_around(source: bytes, line: int) -> tuple[int, int]:
    """First and last line of the innermost function around a line, decorators included; an empty range outside."""
    found = (0, -1)
    for node in ast.walk(ast.parse(source)):  # Outer functions come first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first <= line <= (node.end_lineno or 0):
                found = (first, node.end_lineno or 0)
    return found


def _suite(room: str) -> str:
    return f"tests of {', '.join(TESTED_BY.get(room, (room,)))}"


def _tests(copy: Path, room: str, module: str = "") -> list[Path]:
    """A room's tests; those that import this come first, because they notice a fault in it soonest."""
    places = [copy / "tests" / name for name in TESTED_BY.get(room, (room,))]
    found = [path for place in places for path in ([place] if place.is_file() else place.rglob("test_*.py"))]
    return sorted(found, key=lambda path: (not _imports(path, module), path))


def _imports(path: Path, module: str) -> bool:
    package, _, name = module.rpartition(".")
    pattern = rf"\b{re.escape(module)}\b|from {re.escape(package)} import .*\b{name}\b"
    return re.search(pattern, path.read_text()) is not None


def _without_fault(copy: Path, room: str, until: float) -> dict[str, Any]:
    """How long a room's tests take, and which of them call which functions."""
    notes, began = copy / "calls.json", time.monotonic()
    code = _run_tests(copy, room, _tests(copy, room), 1800.0, until, MUTANTS_NOTES=str(notes))
    if code != 0:
        raise RuntimeError(f"the tests of {room} fail without any fault: run pytest on the {_suite(room)}")
    took_s, found = time.monotonic() - began, json.loads(notes.read_text())
    start_s = took_s - sum(seconds for _, seconds in found["tests"])
    return {"seconds": round(took_s, 1), "start_s": round(start_s, 1), **found}


def _run_tests(
    copy: Path, room: str, files: list[Path], limit_s: float, until: float, **environment: str
) -> int | None:
    """The exit code of a room's tests in these files; None when they take too long."""
    # A test that times out ends with pytest's own code for failures: here only we look at the clock.
    options = ("-q", "-x", "-o", "timeout=0", "-p", "no:cacheprovider", "-p", "benchmarks.mutants_plugin")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "-m", _MARKS.get(room, _QUICK), *map(str, files)],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": f"{copy / 'src'}:{ROOT}", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(timeout=max(min(limit_s, until - time.monotonic()), 0.0))
        return 0 if code == _NO_TESTS else code
    except subprocess.TimeoutExpired:
        if time.monotonic() >= until:
            raise _OutOfTime from None
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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


def _shown(mutant: Mutant, became: str) -> dict[str, str]:
    fault = mutant.fault
    old, new = (" ".join(text.split()) for text in (fault.old, fault.new))
    change = f"{old} -> {new}" if old else f"{new} added"
    place = f"{mutant.path}:{fault.line}"
    return {"not noticed": place, "outcome": became, "kind": fault.kind, "change": change[:100]}


def _row(room: str, outcomes: list[str]) -> dict[str, Any]:
    counts = Counter(outcomes)
    return {
        "room": room,
        "mutants": len(outcomes),
        "noticed": counts["noticed"],
        "timed out": counts["timed out"],
        "survived": counts["survived"],
        "noticed %": f"{100 * counts['noticed'] / len(outcomes):.0f}" if outcomes else "",
    }


KINDS = ("comparison", "plus, minus", "times, divide", "constant", "negation", "early return", "dropped", "min, max")

_OPPOSITE: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_EDGE: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
_SUMS: dict[type, tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
_PRODUCTS: dict[type, tuple[str, str]] = {ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*")}
_EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


def faults(source: bytes) -> list[Fault]:
    """All that can be put into a Python source, in the order of their places."""
    found = _Places(source).walk(ast.parse(source), in_function=False)
    return sorted(found, key=lambda fault: (fault.start, fault.kind, fault.new))


def is_another_program(source: bytes, fault: Fault) -> bool:
    """Whether the changed source can be parsed and means something else."""
    try:
        return ast.dump(ast.parse(fault.put_into(source))) != ast.dump(ast.parse(source))
    except (SyntaxError, ValueError):
        return False


def draw(
    places: Mapping[str, Sequence[Mutant]], count: int, seed: int, is_good: Callable[[Mutant], bool]
) -> list[Mutant]:
    """Different mutants, evenly over the rooms and, as far as rooms have them, over the kinds."""
    chance = random.Random(seed)
    left: dict[str, dict[str, list[Mutant]]] = {}
    for room in sorted(places):
        left[room] = {kind: [each for each in places[room] if each.fault.kind == kind] for kind in KINDS}
        for each in left[room].values():
            chance.shuffle(each)
    drawn: list[Mutant] = []
    for turn in range(count):
        for number, kinds in enumerate(left.values()):
            if len(drawn) < count and (found := _next_of(kinds, turn + number, is_good)):
                drawn.append(found)
    return drawn


def _next_of(kinds: dict[str, list[Mutant]], turn: int, is_good: Callable[[Mutant], bool]) -> Mutant | None:
    """Of the kind whose turn it is, or of the next one that has any left."""
    first = turn % len(KINDS)
    for kind in (*KINDS[first:], *KINDS[:first]):
        while kinds[kind]:
            found = kinds[kind].pop()
            if is_good(found):
                return found
    return None


class _Places:
    """Where the parts of a source stand in its bytes."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def walk(self, node: ast.AST, *, in_function: bool) -> Iterator[Fault]:
        """Faults of a part and of all parts in it."""
        yield from self._expression_faults(node)
        if in_function:
            yield from self._statement_faults(node)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function:
            yield from self._early_return(node)
        for child in _children(node):
            yield from self.walk(child, in_function=in_function or is_function)

    def _expression_faults(self, node: ast.AST) -> Iterator[Fault]:
        match node:
            case ast.Compare(left, operators, comparators):
                for operator, one, other in zip(operators, [left, *comparators], comparators, strict=False):
                    for swaps in (_OPPOSITE, _EDGE):
                        yield from self._swapped("comparison", one, other, swaps.get(type(operator)))
            case ast.BinOp(one, operator, other) | ast.AugAssign(one, operator, other):
                if not _is_sequence(one) and not _is_sequence(other):
                    yield from self._swapped("plus, minus", one, other, _SUMS.get(type(operator)))
                    yield from self._swapped("times, divide", one, other, _PRODUCTS.get(type(operator)))
            case ast.Constant(bool(value)):
                yield self._replaced("constant", node, str(not value))
            case ast.Constant(int(value)):
                yield self._replaced("constant", node, str(value + 1))
            case ast.Constant(float(value)):
                yield self._replaced("constant", node, repr(2 * value or 1.0))
            case ast.UnaryOp(ast.Not(), operand):
                yield self._replaced("negation", node, f"({self._text(operand)})")
            case ast.If(test) | ast.While(test) | ast.IfExp(test):
                yield from self._negated([test])
            case ast.comprehension(_, _, tests):
                yield from self._negated(tests)
            case ast.Call(ast.Name(name) | ast.Attribute(_, name) as function) if name in _EXTREMES:
                end = self._end(function)
                yield self._fault("min, max", end - len(name), end, _EXTREMES[name])

    def _statement_faults(self, node: ast.AST) -> Iterator[Fault]:
        """A statement left out; not where a name would be missing, which any test sees."""
        match node:
            case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
                yield self._replaced("dropped", node, "pass")
            case ast.Assign([ast.Attribute() | ast.Subscript()]):
                yield self._replaced("dropped", node, "pass")

    def _early_return(self, node: Any) -> Iterator[Fault]:
        first = next((each for each in _children(node) if isinstance(each, ast.stmt)), None)
        if first is None or isinstance(first, ast.Pass | ast.Raise) or first.lineno <= node.lineno:
            return
        line = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", ()))])
        start = self._lines[line - 1] + first.col_offset
        yield self._fault("early return", start, start, "return None\n" + " " * first.col_offset)

    def _negated(self, tests: Iterable[ast.expr]) -> Iterator[Fault]:
        """Single comparisons and negations have faults of their own."""
        for test in tests:
            match test:
                case ast.Compare(_, [_]) | ast.UnaryOp(ast.Not()):
                    continue
            yield self._replaced("negation", test, f"not ({self._text(test)})")

    def _swapped(self, kind: str, one: ast.expr, other: ast.expr, swap: tuple[str, str] | None) -> Iterator[Fault]:
        """An operator has no place of its own in the tree: it stands between its operands."""
        if swap is not None:
            old, new = swap
            start = self._source.find(old.encode(), self._end(one), self._start(other))
            if start >= 0:
                yield self._fault(kind, start, start + len(old), new)

    def _replaced(self, kind: str, node: ast.AST, new: str) -> Fault:
        return self._fault(kind, self._start(node), self._end(node), new)

    def _fault(self, kind: str, start: int, end: int, new: str) -> Fault:
        return Fault(kind, self._source.count(b"\n", 0, start) + 1, start, end, self._source[start:end].decode(), new)

    def _text(self, node: ast.AST) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _start(self, node: Any) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: Any) -> int:
        return self._lines[node.end_lineno - 1] + node.end_col_offset


def _children(node: ast.AST) -> list[ast.AST]:
    """Parts that may be changed: no wording, no annotations, no decorators."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Expr(ast.Constant()):
            return []
        case ast.AnnAssign(_, _, value):
            return [value] if value else []
        case ast.arguments():
            return [each for each in (*node.defaults, *node.kw_defaults) if each]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.args, *(each for each in node.body if not _is_text(each))]
        case ast.ClassDef():
            return [each for each in node.body if not _is_text(each)]
    return list(ast.iter_child_nodes(node))


def _is_text(node: ast.stmt) -> bool:
    """A docstring, a floating string or an ellipsis."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_sequence(node: ast.expr) -> bool:
    """Texts, lists and tuples are joined, parts of a path too: another operator would only raise."""
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return is_string or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)
