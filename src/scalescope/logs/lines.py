"""One log, read line by line: the epochs it tells in order, the steps, the rates."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scalescope.errors import UsageError
from scalescope.line_pattern import EXAMPLE, MEASURES, compile_pattern
from scalescope.line_pattern import number as number_of
from scalescope.logs.counts import count_in_heading, count_in_name
from scalescope.logs.files import head, lines
from scalescope.text import plain
from scalescope.units import SECONDS_PER, is_possible, parse_clock

_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,4}(?:\.\d{1,20})?|\d{1,18}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)"
_CLOCK = r"(?:\d{1,4}:)?\d\d:\d\d(?:\.\d{1,9})?"
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
        rf"\[(?P<epoch_s>{_CLOCK})<[^,\]]{{0,20}}, {{0,4}}(?P<pace>{_NUMBER})(?P<unit>it/s|s/it)",
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
_TIMES = ("epoch_s", "step_s", "train_s")  # None of them is 0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Times and rates of one log."""

    name: str
    np: int
    counted_by: str = ""  # What told `np`: the file names, headings; empty: the user
    epochs: tuple[float, ...] = ()  # Seconds of training per epoch, in order
    tests: tuple[float, ...] = ()  # Seconds of testing after each of them, where the log tells it of all
    steps: tuple[float, ...] = ()
    windows: tuple[tuple[float, float], ...] = ()  # Seconds of training and samples of all processes, in order
    rates: tuple[float, ...] = ()  # Of all processes together
    bare_rates: tuple[float, ...] = ()  # Of all or of each: the log does not say
    train_s: float | None = None
    samples: float | None = None  # That all processes trained on in all
    notes: tuple[str, ...] = ()


_Told = dict[str, float]  # What a line tells, by measure: seconds and rates, its number as `line`, the epoch


def read_log(path: Path, np: int | None = None, pattern: str = "") -> list[Reading]:
    """Read a log: one reading, or one per heading where these name several sizes.

    Args:
        path: The log.
        np: Processes that wrote it; None: headings in it tell, or else its name.
        pattern: The user's regular expression for its lines.

    Raises:
        UsageError: It tells no times and no rates, or impossible ones, or nothing tells `np`.
    """
    head(path)
    name = plain(path.name)
    patterns = [compile_pattern(pattern, live=False)] if pattern else PATTERNS
    sections: list[tuple[int | None, list[_Told]]] = [(None, [])]  # By the heading above them
    typical = ""
    for number, line in lines(path):
        if count := count_in_heading(line):
            sections.append((count, []))
        if re.search(r"\d", line):
            typical = f"; a line there is '{plain(line, 80)}'"
        if pattern or any(word in line.lower() for word in _TELLING):
            match = next(filter(None, (each.search(line) for each in patterns)), None)
            told = _told(match, number, name) if match else {}
            if any(told.get(measure) for measure in (*MEASURES, "train_s")):  # a rate of 0 comes before a step
                sections[-1][1].append(told)
    found = [told for _, section in sections for told in section]
    if not found:
        tried = "your --pattern" if pattern else "any pattern for epoch times or rates"
        raise UsageError(f"no line of '{name}' matches {tried}{typical}: write {EXAMPLE}")
    headed = [(count, section) for count, section in sections if count and section]
    if np is None and len({count for count, _ in headed}) > 1:
        return [_reading(section, name, count, "headings") for count, section in headed]
    return [_reading(found, name, np or count_in_name(path), "" if np else "the file names")]


def _told(match: re.Match[str], line: int, name: str) -> _Told:
    """The times and rates of a line, times in seconds."""
    groups = {group: text for group, text in match.groupdict().items() if text}
    unit = groups.pop("unit", "s").lower()
    values: _Told = {"line": line}
    for group, text in groups.items():
        try:
            clock = text if text.count(":") == 2 else f"0:{text}"
            values[group] = parse_clock(clock) if ":" in text else number_of(text)
        except ValueError:
            raise UsageError(
                f"--pattern finds '{plain(text, 40)}' for {group} on line {line}: let the group match a number only"
            ) from None
    if pace := values.get("pace"):  # a bar shows whole seconds, and its pace tells more where it fits them
        exact_s = values["steps"] * pace if unit == "s/it" else values["steps"] / pace
        if abs(exact_s - values["epoch_s"] - 0.5) <= 1:
            values["epoch_s"] = exact_s
    elif "epoch_s" in values:
        values["epoch_s"] *= SECONDS_PER.get(unit, 1.0)
    for measure in (*_TIMES, *MEASURES, "test_s"):
        value = values.get(measure)
        if value is not None and not is_possible(value) and (value or measure in _TIMES):
            raise UsageError(
                f"'{name}' line {line} says {value:g} for {measure}, which no training has: remove that line"
            )
    return values


def _reading(found: Sequence[_Told], name: str, np: int, counted_by: str) -> Reading:
    def all_of(measure: str) -> tuple[float, ...]:
        return tuple(told[measure] for told in found if told.get(measure))

    epochs, notes = _epochs([told for told in found if "epoch_s" in told], np, name)
    tests = tuple(told["test_s"] for told in epochs if "test_s" in told)
    return Reading(
        name=name,
        np=np,
        counted_by=counted_by,
        epochs=tuple(told["epoch_s"] for told in epochs),
        tests=tests if len(tests) == len(epochs) else (),
        steps=all_of("step_s"),
        rates=all_of("examples_per_s_total") or tuple(np * rate for rate in all_of("examples_per_s_per_worker")),
        bare_rates=all_of("examples_per_s"),
        train_s=next(iter(all_of("train_s")[-1:]), None),
        notes=notes,
    )


def _epochs(told: Sequence[_Told], np: int, name: str) -> tuple[list[_Told], tuple[str, ...]]:
    """Keep one time per epoch: the last that a bar showed on a line, and of all processes the slowest.

    Raises:
        UsageError: Epochs stand there again that are not those of every process.
    """
    if any("epoch" not in each for each in told):
        return list(told), ()
    by_epoch: dict[float, list[_Told]] = {}
    for each in {(each["line"], each["epoch"]): each for each in told}.values():
        by_epoch.setdefault(each["epoch"], []).append(each)
    slowest = [max(same, key=lambda each: each["epoch_s"]) for same in by_epoch.values()]
    times = {len(same) for same in by_epoch.values()}
    if times <= {1}:
        return slowest, ()
    if times != {np}:
        again = next(same[1] for same in by_epoch.values() if len(same) > 1)
        raise UsageError(
            f"'{name}' line {again['line']} tells epoch {again['epoch']:g} again, and not every epoch once per process "
            f"({np}): keep the lines of one training, or of one process"
        )
    return slowest, (f"'{name}' tells every epoch {np} times, once per process: the slowest counts",)
