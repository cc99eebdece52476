"""Faults for the section `mutants`: each changes one place, and wording stays as it is."""

from collections import Counter
from pathlib import Path

import pytest
from benchmarks import mutants
from benchmarks.mutants import KINDS, Fault, Mutant, draw, faults, function_around, is_another_program
from benchmarks.shared import Unfinished

ROOT = Path(__file__).parents[1]


def changed(source: str, kind: str) -> list[str]:
    """The source with every fault of this kind, one at a time."""
    return [each.put_into(source.encode()).decode() for each in faults(source.encode()) if each.kind == kind]


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("comparison", "a < b", ["a <= b", "a >= b"]),
        ("comparison", "(a) == (b)", ["(a) != (b)"]),
        ("comparison", "a not in b", ["a in b"]),
        ("comparison", "a is b", ["a is not b"]),
        ("comparison", "0 < a <= b", ["0 <= a <= b", "0 >= a <= b", "0 < a < b", "0 < a > b"]),
        ("plus, minus", "é = 'é', a - -b", ["é = 'é', a + -b"]),
        ("plus, minus", "a += b\nc -= d", ["a -= b\nc -= d", "a += b\nc += d"]),
        ("plus, minus", "(a\n + b\n) - c", ["(a\n - b\n) - c", "(a\n + b\n) + c"]),
        ("plus, minus", "'a' + b + [c]", []),
        ("times, divide", "a * b / c // d", ["a / b / c // d", "a * b * c // d", "a * b / c * d"]),
        ("times, divide", "a ** b", []),
        ("times, divide", "folder / 'file'", []),
        ("constant", "f(0, x=1.5, y=0.0)", ["f(1, x=1.5, y=0.0)", "f(0, x=3.0, y=0.0)", "f(0, x=1.5, y=1.0)"]),
        ("constant", "a = True", ["a = False"]),
        ("constant", "def f(a: Literal[1] = 2) -> Literal[3]: pass", ["def f(a: Literal[1] = 3) -> Literal[3]: pass"]),
        ("negation", "if a or b: c", ["if not (a or b): c"]),
        ("negation", "x = [a for a in b if a]", ["x = [a for a in b if not (a)]"]),
        ("negation", "while not a: b", ["while (a): b"]),
        ("negation", "x = a if b else c", ["x = a if not (b) else c"]),
        ("negation", "if a < b: c", []),
        (
            "early return",
            'def f():\n    "What."\n    return 1',
            ['def f():\n    "What."\n    return None\n    return 1'],
        ),
        ("early return", "def f():\n    raise E", []),
        ("early return", "class P(Protocol):\n    def f(self):\n        ...", []),
        (
            "dropped",
            "def f():\n    a.b = 1\n    c()",
            ["def f():\n    pass\n    c()", "def f():\n    a.b = 1\n    pass"],
        ),
        ("dropped", "def f():\n    for a in b:\n        continue", ["def f():\n    for a in b:\n        pass"]),
        ("dropped", "a()", []),
        ("min, max", "min(a) + np.maximum(a, b)", ["max(a) + np.maximum(a, b)", "min(a) + np.minimum(a, b)"]),
        ("min, max", "a.max()", ["a.min()"]),
    ],
)
def test_each_place_is_changed_by_itself(kind: str, source: str, expected: list[str]) -> None:
    assert changed(source, kind) == expected


@pytest.mark.parametrize(
    "source",
    ['"""What."""', "a: int\n'''Its unit is 1.'''", "f'{a + 1} of {min(b)}'", "def f(a: 'b < c') -> None: ..."],
)
def test_wording_is_not_mutated(source: str) -> None:
    assert faults(source.encode()) == []


def test_the_text_of_an_error_is_not_mutated_but_raising_it_is() -> None:
    found = faults(b"def f(a):\n    b\n    raise E(f'{a}', a + 1)\n")
    assert [(each.kind, each.old) for each in found] == [("early return", ""), ("dropped", "raise E(f'{a}', a + 1)")]


@pytest.mark.parametrize("name", ["stats.py", "records/store.py", "logs/autotune.py"])
def test_faults_of_real_files_stand_where_they_say(name: str) -> None:
    source = (ROOT / "src" / "scalescope" / name).read_bytes()
    found = faults(source)
    assert len({each.kind for each in found}) >= 6
    for each in found:
        assert source[each.start : each.end].decode() == each.old
        assert each.line == source[: each.start].count(b"\n") + 1
    assert all(is_another_program(source, each) for each in found[::7])


def test_a_fault_that_cannot_be_parsed_or_means_the_same_is_none() -> None:
    assert is_another_program(b"a < b", Fault("", 1, 2, 3, "<", ">"))
    assert not is_another_program(b"a < b", Fault("", 1, 2, 3, "<", "< ="))
    assert not is_another_program(b"(a)", Fault("", 1, 0, 3, "(a)", "a"))


def made(room: str, kind: str, count: int) -> list[Mutant]:
    return [Mutant(room, f"{room}.py", Fault(kind, at, at, at, "", "")) for at in range(count)]


def test_mutants_are_drawn_evenly_over_rooms_and_kinds_and_the_same_for_a_seed() -> None:
    places = {room: [each for kind in KINDS for each in made(room, kind, 40)] for room in "abc"}
    drawn = draw(places, 96, 7, lambda each: each.fault.line != 3)
    assert len(set(drawn)) == 96
    assert set(Counter(each.room for each in drawn).values()) == {32}
    assert set(Counter(each.fault.kind for each in drawn).values()) == {12}
    assert not any(each.fault.line == 3 for each in drawn)
    assert drawn == draw(places, 96, 7, lambda each: each.fault.line != 3)
    assert drawn != draw(places, 96, 8, lambda each: each.fault.line != 3)


def test_a_room_without_a_kind_gives_more_of_the_others_until_it_has_none_left() -> None:
    places = {"a": made("a", "constant", 3), "b": [each for kind in KINDS for each in made("b", kind, 9)]}
    drawn = draw(places, 20, 1, lambda each: True)
    assert Counter(each.room for each in drawn) == {"a": 3, "b": 17}


def test_all_rooms_are_mutated_and_modules_in_no_room() -> None:
    rooms = {path.name for path in (ROOT / "src" / "scalescope").iterdir() if (path / "__init__.py").exists()}
    assert rooms | {mutants.LEAVES} == mutants.places(ROOT).keys()


@pytest.mark.parametrize(("line", "lines"), [(1, (0, -1)), (2, (2, 8)), (5, (4, 6)), (6, (4, 6)), (8, (2, 8))])
def test_the_innermost_function_around_a_line_begins_with_its_decorators(line: int, lines: tuple[int, int]) -> None:
    source = b"import a\n@a.cache\ndef outer():\n    @a.once\n    def inner():\n        return 1\n\n    return inner\n"
    assert function_around(source, line) == lines


SUMS = """
def total(a, b):
    return a + b

def least(a, b):
    return min(a, b)

def count(a):
    while a > 1:
        a = a - 1
    return a
"""
TEST = """
from pathlib import Path

import pytest

from scalescope.sums import count, total

@pytest.fixture(scope="module")
def sum_of_two():
    return total(2, 1)

def nested():
    nested()

def test_numbers_are_summed(sum_of_two):
    assert sum_of_two + count(2)
    with pytest.raises(RecursionError):
        nested()

def test_total(sum_of_two):
    assert sum_of_two == 3

def test_count():
    assert count(3) == 1

def test_hidden_files_are_there():
    assert Path(__file__).with_name(".mark").exists()
"""


@pytest.mark.launches
def test_mutants_are_counted_by_room_and_kept_for_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # most of the time of so few tests
    root = tmp_path / "root"
    for path, text in {
        "src/scalescope/__init__.py": "",
        "src/scalescope/sums/__init__.py": SUMS,
        "tests/sums/test_sums.py": TEST,
        "tests/sums/.mark": "",
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['launches: not quick', 'user_scripts: neither']\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    monkeypatch.setattr(mutants, "SECONDS_MORE", 5)
    before = mutants.digest(root)
    results = tmp_path / "results" / "mutants.jsonl"
    with pytest.raises(Unfinished):
        mutants.judge(root, results, seed=1, count=20, seconds=-1)
    rows = mutants.judge(root, results, seed=1, count=20, seconds=300)
    assert rows[0] == {
        "room": "sums",
        "mutants": 10,
        "noticed": 6,
        "timed out": 1,
        "survived": 3,
        "noticed %": "60",
    }
    assert rows[1] == {**rows[0], "room": "all"}
    shown = " ".join(capsys.readouterr().out.split())
    assert "src/scalescope/sums/__init__.py:6 survived min, max min -> max" in shown
    assert "src/scalescope/sums/__init__.py:10 timed out plus, minus - -> +" in shown
    assert mutants.digest(root) == before
    assert mutants.judge(root, results, seed=1, count=20, seconds=-1) == rows, "nothing is left to be tried"
    (root / "tests" / "sums" / "test_more.py").write_text("def test_nothing():\n    pass\n")
    with pytest.raises(Unfinished):
        mutants.judge(root, results, seed=1, count=20, seconds=-1)
