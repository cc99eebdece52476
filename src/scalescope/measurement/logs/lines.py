"""One log, read line by line: the epochs it tells in order, the steps, the rates."""

import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from scalescope.errors import UsageError
from scalescope.line_pattern import EXAMPLE
from scalescope.measurement.logs.patterns import Found, OwnPattern, Patterns
from scalescope.measurement.text_files import head, lines
from scalescope.text import plain
from scalescope.units import is_possible

_LOOKED_AT = 2000  # Lines among which a typical one is looked for
# `* 4 GPU`, `## 2 processes:`, `4 nodes 32 GPUs`, `np = 8`: nothing else may stand in such a line
_HEADING = re.compile(
    r"\W*(?:\d+ nodes?\W+)?"
    r"(?:(\d{1,5})[ -]?(?:gpus?|ranks?|process(?:es)?|workers?)|(?:np|nproc)\W{1,3}(\d{1,5}))\W*$",
    re.IGNORECASE,
)
_TELLING_WORDS = ("epoch", "step", "time", "sec", "iter", "loss")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one log tells."""

    name: str
    np: int
    epochs: tuple[float, ...] = ()  # Seconds of training per epoch, in order
    tests: tuple[float, ...] = ()  # Seconds of testing after each of them, where the log tells it of all
    steps: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()  # Of all processes together
    bare_rates: tuple[float, ...] = ()  # Of all or of each: the log does not say
    train_s: float | None = None
    notes: tuple[str, ...] = ()


class _Told(NamedTuple):
    line: int
    found: Found


class _Reader(Protocol):
    def find(self, number: int, text: str) -> list[Found]: ...


class Section(NamedTuple):
    """The lines of a file under a heading that names a number of processes, such as `* 4 GPU`."""

    np: int
    first: int
    end: int


def sections(path: Path, pattern: str) -> list[Section]:
    """What headings divide a file into, where they tell apart logs of different numbers of processes; else nothing."""
    head(path)
    headings = [(number, int(told[1] or told[2])) for number, text in lines(path) if (told := _HEADING.match(text))]
    ends = [number for number, _ in headings[1:]] + [sys.maxsize]
    parts = [Section(np, number, end) for (number, np), end in zip(headings, ends, strict=False)]
    logs = [each for each in parts if each.np and _find(path, pattern, each)[0]]
    return logs if len({each.np for each in logs}) > 1 else []


def read_log(path: Path, np: int, pattern: str, section: Section | None = None) -> Reading:
    """Everything of use in a log; one line that names the next action when there is nothing."""
    head(path)
    name = plain(path.name)
    told, sample = _find(path, pattern, section)
    if not told:
        tried = "your --pattern" if pattern else "any pattern for epoch times or rates"
        raise UsageError(
            f"no line of '{name}' matches {tried}; a line there is '{plain(_typical(sample), 80)}': write {EXAMPLE}"
        )
    epochs, notes = _epochs(told.get("epoch_s", []), np, name)
    tests = tuple(each.test_s for each in epochs if each.test_s is not None)
    totals, workers = (_rates(told.get(f"examples_per_s_{whose}", [])) for whose in ("total", "per_worker"))
    runtimes = told.get("train_s", [])
    return Reading(
        name=name,
        np=np,
        epochs=tuple(each.value for each in epochs),
        tests=tests if len(tests) == len(epochs) else (),
        steps=tuple(_positive(each, name) for each in told.get("step_s", [])),
        rates=totals or tuple(rate * np for rate in workers),
        bare_rates=_rates(told.get("examples_per_s", [])),
        train_s=_positive(runtimes[-1], name) if runtimes else None,
        notes=tuple(notes),
    )


def _find(path: Path, pattern: str, section: Section | None) -> tuple[dict[str, list[_Told]], list[str]]:
    """What lines tell, by its name, and some of the lines."""
    reader: _Reader = OwnPattern(pattern) if pattern else Patterns()
    told: dict[str, list[_Told]] = {}
    sample: list[str] = []
    for number, text in lines(path):
        if section and not section.first <= number < section.end:
            continue
        if len(sample) < _LOOKED_AT:
            sample.append(text)
        for found in reader.find(number, text):
            if found.value <= 0 and found.name.startswith("examples"):
                continue  # some trainings print a rate of 0 before their first step
            for value in (found.value, found.test_s):
                if value and not is_possible(abs(value)):
                    raise UsageError(
                        f"'{plain(path.name)}' line {number} says {value:g} for {found.name}, which no training has: "
                        "remove that line"
                    )
            told.setdefault(found.name, []).append(_Told(number, found))
    return told, sample


def _typical(sample: Sequence[str]) -> str:
    """A line that a pattern would be written for: with a number and a telling word, from the middle."""
    for wanted in (_TELLING_WORDS, ("",)):
        fitting = [
            text
            for text in sample
            if any(character.isdigit() for character in text) and any(word in text.lower() for word in wanted)
        ]
        if fitting:
            return fitting[len(fitting) // 2]
    return sample[len(sample) // 2] if sample else ""


def _positive(told: _Told, name: str) -> float:
    if told.found.value <= 0:
        raise UsageError(
            f"'{name}' line {told.line} says {told.found.value:g} s for an {told.found.name.removesuffix('_s')}: "
            "remove that line, or print more digits"
        )
    return told.found.value


def _rates(told: Sequence[_Told]) -> tuple[float, ...]:
    return tuple(each.found.value for each in told)


def _epochs(told: Sequence[_Told], np: int, name: str) -> tuple[list[Found], list[str]]:
    """One time per epoch: what a bar overwrote is forgotten, and of several processes the slowest counts."""
    shown: dict[object, _Told] = {}
    for index, each in enumerate(told):
        _positive(each, name)
        shown[(each.line, each.found.epoch) if each.found.epoch is not None else index] = each
    found = [each.found for each in shown.values()]
    if any(each.epoch is None for each in found):
        return found, []
    times: dict[int | None, int] = {}
    for one in found:
        times[one.epoch] = times.get(one.epoch, 0) + 1
    if set(times.values()) <= {1}:
        return found, []
    if set(times.values()) == {np}:
        return _slowest(found), [f"'{name}' tells every epoch {np} times, once per process: the slowest counts"]
    trainings = _trainings(found)
    notes = []
    if len(trainings) > 1:
        notes.append(f"'{name}' holds {len(trainings)} trainings one after the other: the last is read")
    last = _slowest(trainings[-1])
    if len(last) < len(trainings[-1]):
        notes.append(f"'{name}' tells epochs several times: the slowest counts")
    return last, notes


def _slowest(found: Sequence[Found]) -> list[Found]:
    slowest: dict[int | None, Found] = {}
    for each in found:
        if each.epoch not in slowest or each.value > slowest[each.epoch].value:
            slowest[each.epoch] = each
    return list(slowest.values())


def _trainings(found: Sequence[Found]) -> list[list[Found]]:
    """Cut where the count of epochs starts again; processes that are one epoch apart do not count as that."""
    parts = [[found[0]]]
    for before, each in pairwise(found):
        first, epoch, previous = parts[-1][0].epoch or 0, each.epoch or 0, before.epoch or 0
        if epoch < previous - 1 or (epoch < previous and epoch <= first):
            parts.append([])
        parts[-1].append(each)
    return parts
