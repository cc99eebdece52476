"""One log, read line by line: the epochs it tells in order, the steps, the rates."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from scalescope.errors import UsageError
from scalescope.line_pattern import EXAMPLE, MEASURES, compile_pattern
from scalescope.line_pattern import number as number_of
from scalescope.logs.files import head, lines
from scalescope.text import plain
from scalescope.units import SECONDS_PER, is_possible, parse_clock

_LOOKED_AT = 2000  # Lines, of which the middle one stands in an error
_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,4}(?:\.\d{1,20})?|\d{1,18}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)"
_CLOCK = r"\d{1,4}:\d\d:\d\d(?:\.\d{1,9})?"
_EPOCH = r"(?<![a-z])epoch[\s:#=\[(_-]{0,8}(?P<epoch>\d{1,9})\b(?:\s?(?:/|of)\s?\d{1,9})?"
_TEST = r"(?:test|val|eval)[a-z_]{0,10}"
_SECOND = r"[\s_]?(?:/|per)[\s_]?s(?:ec(?:ond)?)?s?(?![a-z])"
_EXAMPLES = rf"(?<![a-z])(?:average_)?(?:img|image|sample|example|sequence|token)s?{_SECOND}"
_WORKER = r"\s?(?:per|/)\s?(?:gpu|rank|worker|process|device)(?![a-z])"
_TOLD = rf"[:=\s'\"]{{1,8}}(?P<%s>{_NUMBER})"
# The groups are those of --pattern, and `unit` for an epoch's seconds; the first that matches wins. All are bounded: a
# long line costs no more than its length. Patterns that share a line with another meaning come first.
PATTERNS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # A full bar of tqdm or Lightning: `Epoch 3: 100%|###| 391/391 [00:12<00:00, 31.6it/s]`; others tell nothing.
        rf"{_EPOCH}[^|]{{0,40}}\b100%\|[^|]{{0,400}}\| ?(?P<steps>\d{{1,12}})/(?P=steps) "
        rf"\[(?P<epoch_s>[\d:]{{4,9}})<[^,\]]{{0,20}}, {{0,4}}(?P<pace>{_NUMBER})(?P<unit>it/s|s/it)",
        r"%\|",
        # Progress within an epoch: `Epoch: [3][ 10/5005] Time 0.205`, `Epoch 1 batch 5 took 3 s`.
        rf"{_EPOCH}[^\n]{{0,200}}?(?:\[\s{{0,9}}\d{{1,9}}\s?/|\b(?:batch|step|iter|iteration)s?\b\W{{0,3}}\d)",
        # torchvision: `Epoch: [0] Total time: 0:01:23 (0.0834 s / it)`.
        rf"{_EPOCH}\] {{0,4}}total time: {{0,4}}(?P<epoch_s>{_CLOCK})",
        # `Epoch 3: training 1.64(s) - testing 0.28(s)`, `Epoch 1 took 3.2 s`, `epoch: 3 loss: 0.5 time: 1.2s`.
        rf"{_EPOCH}(?:(?!{_TEST}|total)[^\n]){{0,200}}?"
        r"(?:(?<![a-z_])(?:train(?:ing)?(?:[ _]time)?|took|time|in)\s?[(\[/]?s?[)\]]?[\s:=]{0,4}|(?<=\d):\s{1,4})"
        rf"(?P<epoch_s>{_NUMBER})\s{{0,2}}[(\[]?(?P<unit>{'|'.join(SECONDS_PER)})\b(?!\s?/)"
        rf"(?:[^\n]{{0,20}}?(?<![a-z]){_TEST}[\s:=]{{0,4}}(?P<test_s>{_NUMBER})\s{{0,2}}[(\[]?s)?",
        # The Hugging Face trainer's last line: `'train_runtime': 123.4`.
        rf"\btrain_runtime['\"]?\s{{0,20}}[:=]\s{{0,20}}['\"]?(?P<train_s>{_CLOCK}|{_NUMBER})",
        rf"{_TEST}[^,;|]{{0,40}}{_EXAMPLES}",  # the rate of an evaluation is not the training's
        # `Total img/sec on 4 GPU(s): 760`, `Img/sec per GPU: 190.3`, `123.4 images/s`, `average_example_per_sec = 202`.
        rf"total\s{_EXAMPLES}(?: on \d{{1,6}} [a-z()]{{1,12}})?{_TOLD % 'examples_per_s_total'}",
        rf"{_EXAMPLES}{_WORKER}{_TOLD % 'examples_per_s_per_worker'}",
        rf"(?<![\w.,])(?P<examples_per_s_per_worker>{_NUMBER})\s{{0,3}}{_EXAMPLES}{_WORKER}",
        rf"(?<![\w.,])(?P<examples_per_s>{_NUMBER})\s{{0,3}}{_EXAMPLES}",
        rf"{_EXAMPLES}{_TOLD % 'examples_per_s'}",
    )
]
# A line without any of them is of no use, which is quickly seen.
_TELLING = ("epoch", "/s", "/ s", "per s", "per_s", "train_runtime")
# `* 4 GPU`, `## 2 processes:`, `4 nodes 32 GPUs`, `np = 8`: nothing else may stand in such a line.
_HEADING = re.compile(
    r"\W*(?:\d+ nodes?\W+)?"
    r"(?:(\d{1,5})[ -]?(?:gpus?|ranks?|process(?:es)?|workers?)|(?:np|nproc)\W{1,3}(\d{1,5}))\W*$",
    re.IGNORECASE,
)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Times and rates of one log."""

    name: str
    np: int
    round: int = 1  # Among the logs of as many processes, which are repeated launches
    epochs: tuple[float, ...] = ()  # Seconds of training per epoch, in order
    tests: tuple[float, ...] = ()  # Seconds of testing after each of them, where the log tells it of all
    steps: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()  # Of all processes together
    bare_rates: tuple[float, ...] = ()  # Of all or of each: the log does not say
    train_s: float | None = None
    windows: tuple[tuple[float, float], ...] = ()  # Seconds of training and samples of all processes, in order
    samples: float | None = None  # That all processes trained on in all
    evaluation_s: float | None = None  # Within `train_s`
    notes: tuple[str, ...] = ()


class Found(NamedTuple):
    """One number that a line tells."""

    line: int
    value: float
    epoch: int | None = None
    test_s: float | None = None


class Section(NamedTuple):
    """The lines of a file under a heading that names a number of processes, such as `* 4 GPU`."""

    np: int
    first: int
    end: int


def sections(path: Path, pattern: str) -> list[Section]:
    """Divide a file at its headings, where these name different numbers of processes; else nothing."""
    headings = [(number, int(told[1] or told[2])) for number, text in lines(path) if (told := _HEADING.match(text))]
    ends = [number for number, _ in headings[1:]] + [sys.maxsize]
    parts = [Section(np, number, end) for (number, np), end in zip(headings, ends, strict=False)]
    logs = [each for each in parts if each.np and _find(path, pattern, each)[0]]
    return logs if len({each.np for each in logs}) > 1 else []


def read_log(path: Path, np: int, pattern: str, section: Section | None = None) -> Reading:
    """Read epochs, steps and rates of a log; one line that names the next action when there are none."""
    head(path)
    name = plain(path.name)
    told, sample = _find(path, pattern, section)
    if not told:
        tried = "your --pattern" if pattern else "any pattern for epoch times or rates"
        typical = f"; a line there is '{plain(sample[len(sample) // 2], 80)}'" if sample else ""
        raise UsageError(f"no line of '{name}' matches {tried}{typical}: write {EXAMPLE}")
    for measure in ("epoch_s", "step_s", "train_s"):
        for each in told.get(measure, ()):
            if each.value <= 0:
                raise UsageError(
                    f"'{name}' line {each.line} says {each.value:g} s for an {measure.removesuffix('_s')}: "
                    "remove that line, or print more digits"
                )
    epochs, notes = _epochs(told.get("epoch_s", []), np, name)
    tests = tuple(each.test_s for each in epochs if each.test_s is not None)
    values = {measure: tuple(each.value for each in found) for measure, found in told.items()}
    return Reading(
        name=name,
        np=np,
        epochs=tuple(each.value for each in epochs),
        tests=tests if len(tests) == len(epochs) else (),
        steps=values.get("step_s", ()),
        rates=values.get("examples_per_s_total")
        or tuple(rate * np for rate in values.get("examples_per_s_per_worker", ())),
        bare_rates=values.get("examples_per_s", ()),
        train_s=values["train_s"][-1] if "train_s" in values else None,
        notes=tuple(notes),
    )


def _find(path: Path, pattern: str, section: Section | None) -> tuple[dict[str, list[Found]], list[str]]:
    """Collect the numbers that lines tell, by name, and some lines that hold a number."""
    patterns = [compile_pattern(pattern, live=False)] if pattern else PATTERNS
    told: dict[str, list[Found]] = {}
    sample: list[str] = []
    for number, text in lines(path):
        if section and not section.first <= number < section.end:
            continue
        if len(sample) < _LOOKED_AT and re.search(r"\d", text):
            sample.append(text)
        lower = text.lower()
        if not pattern and not any(word in lower for word in _TELLING):
            continue
        match = next((match for each in patterns if (match := each.search(text))), None)
        values = _values(match, number) if match else {}
        epoch = int(values["epoch"]) if "epoch" in values else None
        for name in values.keys() & {*MEASURES, "train_s"}:
            value, test_s = values[name], values.get("test_s")
            for each in (value, test_s):
                if each and not is_possible(abs(each)):
                    raise UsageError(
                        f"'{plain(path.name)}' line {number} says {each:g} for {name}, which no training has: "
                        "remove that line"
                    )
            if value > 0 or not name.startswith("examples"):  # some trainings print a rate of 0 before their first step
                told.setdefault(name, []).append(Found(number, value, epoch, test_s))
    return told, sample


def _values(match: re.Match[str], line: int) -> dict[str, float]:
    """The numbers in a line by their names, times in seconds."""
    groups = {name: text for name, text in match.groupdict().items() if text}
    unit = groups.pop("unit", "s").lower()
    values = {}
    for name, text in groups.items():
        try:
            clock = text if text.count(":") != 1 else f"0:{text}"
            values[name] = parse_clock(clock) if ":" in text else number_of(text)
        except ValueError:
            raise UsageError(
                f"--pattern finds '{plain(text, 40)}' for {name} on line {line}: let the group match a number only"
            ) from None
    if pace := values.get("pace"):  # a bar shows whole seconds, and what an iteration takes tells more
        fine_s = values["steps"] * pace if unit == "s/it" else values["steps"] / pace
        values["epoch_s"] = fine_s if abs(fine_s - values["epoch_s"] - 0.5) <= 1 else values["epoch_s"]
    elif "epoch_s" in values:
        values["epoch_s"] *= SECONDS_PER.get(unit, 1.0)
    return values


def _epochs(told: Sequence[Found], np: int, name: str) -> tuple[list[Found], list[str]]:
    """Keep one time per epoch: the last that a bar showed on a line, and of all processes the slowest.

    Raises:
        UsageError: Epochs stand there again that are not those of every process.
    """
    shown: dict[object, Found] = {}
    for index, each in enumerate(told):
        shown[(each.line, each.epoch) if each.epoch is not None else index] = each
    by_epoch: dict[int | None, list[Found]] = {}
    for each in shown.values():
        by_epoch.setdefault(each.epoch, []).append(each)
    counts = {len(times) for times in by_epoch.values()}
    if None in by_epoch or counts <= {1}:
        return list(shown.values()), []
    if counts != {np}:
        again = next(times[1] for times in by_epoch.values() if len(times) > 1)
        raise UsageError(
            f"'{name}' line {again.line} tells epoch {again.epoch} again, and not every epoch once per process "
            f"({np}): keep the lines of one training, or of one process"
        )
    slowest = [max(times, key=lambda each: each.value) for times in by_epoch.values()]
    return slowest, [f"'{name}' tells every epoch {np} times, once per process: the slowest counts"]
