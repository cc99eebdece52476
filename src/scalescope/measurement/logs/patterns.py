"""Lines that trainings print: epoch times, train times and rates, told apart by their words.

Every pattern is bounded: a long line costs no more than its length.
"""

import math
import re
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.line_pattern import MEASURES, compile_pattern
from scalescope.line_pattern import number as number_of
from scalescope.text import plain
from scalescope.units import SECONDS_PER, parse_clock

_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,4}(?:\.\d{1,20})?|\d{1,18}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)"
# A line without any of them is of no use, which is quickly seen.
_TELLING = ("epoch", "/s", "/ s", "per s", "per_s", "pers", "train_runtime")


class Found(NamedTuple):
    """One number that a line tells."""

    name: str  # One of MEASURES, or train_s
    value: float
    epoch: int | None = None
    test_s: float | None = None


class Patterns:
    """The built-in patterns: fed line by line, as Keras says which epoch it is one line before its time."""

    def __init__(self) -> None:
        self._keras = _Keras()

    def find(self, number: int, text: str) -> list[Found]:
        """Everything that the line with this number tells."""
        lower = text.lower()
        if not self._keras.waits and not any(word in lower for word in _TELLING):
            return []
        if "%|" in text:
            bar = bar_of_epoch(text)
            return [bar] if bar else []
        epoch = worded_epoch(text) or total_time_of_epoch(text) or self._keras.find(number, text)
        return [each for each in (epoch, train_runtime(text), rate(text)) if each]


_EPOCH = re.compile(r"(?<![a-z])epoch[\s:#=\[(_-]{0,8}(\d{1,9})\b(?:\s?(?:/|of)\s?\d{1,9})?", re.IGNORECASE)
_WITHIN_EPOCH = re.compile(r"\[\s{0,9}\d{1,9}\s?/|(?<![a-z])(?:batch|step|iter|iteration)s?\b\W{0,3}\d", re.IGNORECASE)
_LABELLED = re.compile(
    r"(?<![A-Za-z])(?P<label>[A-Za-z][A-Za-z_ ]{0,40}?)(?P<marked>\s?[(\[/](?:s|sec|secs|seconds)\b[)\]]?)?"
    rf"[\s:=]{{0,4}}(?:(?P<clock>\d{{1,4}}:\d\d:\d\d(?:\.\d{{1,9}})?)|(?:(?P<minutes>\d{{1,5}})\s?m(?:in)?\s?)?"
    rf"(?<![\d.])(?P<value>{_NUMBER})(?:\s{{0,2}}[(\[]?(?P<unit>{'|'.join(SECONDS_PER)})\b)?)",
    re.IGNORECASE,
)
_TEST = {"test", "testing", "val", "valid", "validation", "validating", "eval", "evaluation", "evaluating"}
_TRAIN = {"train", "training", "trained"}
_TIME = {"took", "takes", "time", "duration", "in", "runtime", "lasted", "seconds", "secs", "sec"}
_OTHER_TIMES = {
    "eta", "left", "remaining", "total", "elapsed", "since", "avg", "average", "mean", "batch", "data", "load",
    "loading", "step", "iter", "iteration", "per", "forward", "backward", "comm", "sync", "loss", "acc", "accuracy",
    "estimated",
}  # fmt: skip


def worded_epoch(text: str) -> Found | None:
    """`Epoch 3: training 1.64(s) - testing 0.28(s)`, `Epoch 1 took 3.2 s`, `epoch: 3 loss: 0.5 time: 1.2s`."""
    begun = _EPOCH.search(text)
    if not begun:
        return None
    rest = text[begun.end() : begun.end() + 400]
    if _WITHIN_EPOCH.search(rest):
        return None
    train_s, timed_s, test_s = None, None, None
    for found in _LABELLED.finditer(rest):
        words = set(re.split(r"[\s_]+", found["label"].lower()))
        seconds = _seconds(found)
        if seconds is None or words & _OTHER_TIMES:
            continue
        if words & _TEST:
            test_s = test_s if test_s is not None else seconds
        elif words & _TRAIN:
            train_s = train_s if train_s is not None else seconds
        elif words & _TIME:
            timed_s = timed_s if timed_s is not None else seconds
    value = train_s if train_s is not None else timed_s
    if value is None:
        alone = re.match(rf"\W{{1,4}}({_NUMBER})\s?(s|sec|seconds|ms)\b(?!\s?/)", rest, re.IGNORECASE)
        value = number_of(alone[1]) * SECONDS_PER[alone[2].lower()] if alone else None
    return None if value is None else Found("epoch_s", value, int(begun[1]), test_s)


def _seconds(found: re.Match[str]) -> float | None:
    """The time of a labelled number; None when it has no unit of time."""
    if found["clock"]:
        return parse_clock(found["clock"])
    unit = (found["unit"] or ("s" if found["marked"] else "")).lower()
    if unit not in SECONDS_PER:
        return None
    return 60 * float(found["minutes"] or 0) + number_of(found["value"]) * SECONDS_PER[unit]


_TOTAL_TIME = re.compile(
    r"epoch:? ?\[(\d{1,9})\] {0,4}total time: {0,4}(\d{1,4}:\d\d:\d\d(?:\.\d{1,9})?)", re.IGNORECASE
)


def total_time_of_epoch(text: str) -> Found | None:
    """torchvision's `Epoch: [0] Total time: 0:01:23 (0.0834 s / it)`."""
    found = _TOTAL_TIME.search(text)
    return Found("epoch_s", parse_clock(found[2]), int(found[1])) if found else None


_BAR = re.compile(
    r"epoch\s?(\d{1,9})\b[^|]{0,40}\b100%\|[^|]{0,400}\| ?(\d{1,12})/(\d{1,12}) "
    rf"\[(?:(\d{{1,4}}):)?(\d{{1,2}}):(\d\d)<[^,\]]{{0,20}}, {{0,4}}({_NUMBER})(it/s|s/it)",
    re.IGNORECASE,
)


def bar_of_epoch(text: str) -> Found | None:
    """A full bar of tqdm or Lightning, `Epoch 3: 100%|###| 391/391 [00:12<00:00, 31.6it/s]`."""
    found = _BAR.search(text) if "100%" in text else None
    if not found or found[2] != found[3]:
        return None
    shown_s = 3600 * int(found[4] or 0) + 60 * int(found[5]) + int(found[6])
    pace = number_of(found[7])
    fine_s = int(found[2]) * (pace if found[8].lower() == "s/it" else 1 / pace if pace else math.inf)
    return Found("epoch_s", fine_s if abs(fine_s - shown_s - 0.5) <= 1 else float(shown_s), int(found[1]))


class _Keras:
    """`Epoch 1/10`, then `100/100 [====] - 12s 120ms/step`; bars of evaluations come without the first line."""

    _EPOCH = re.compile(r"\s*Epoch (\d{1,9})/\d{1,9}\s*$")
    _BAR = re.compile(r"\s*(\d{1,12})/(\d{1,12})\b[^\d]{0,400}?\b(\d{1,9})s\b(?:[\s-]{0,4}(\d{1,9})(us|ms|s)/step)?")

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._told_on = 0

    @property
    def waits(self) -> bool:
        """Whether an epoch has begun and not ended."""
        return self._epoch is not None and self._told_on == 0

    def find(self, number: int, text: str) -> Found | None:
        """The time of an epoch, once its bar is full."""
        if begun := self._EPOCH.match(text):
            self._epoch, self._told_on = int(begun[1]), 0
            return None
        bar = self._BAR.match(text) if self._epoch is not None and self._told_on in (0, number) else None
        if not bar or bar[1] != bar[2]:
            return None
        self._told_on = number
        shown_s = float(bar[3])
        per_step_s = float(bar[4]) * SECONDS_PER[bar[5]] if bar[4] else math.inf
        fine_s = int(bar[1]) * per_step_s
        agrees = abs(fine_s - shown_s) <= 0.5 + 0.01 * shown_s  # it leaves the first step out, which can be long
        return Found("epoch_s", fine_s if agrees else shown_s, self._epoch)


_RUNTIME = re.compile(
    rf"\btrain_runtime['\"]?\s{{0,20}}[:=]\s{{0,20}}['\"]?(?:(\d{{1,4}}:\d\d:\d\d(?:\.\d{{1,9}})?)|({_NUMBER}))"
)


def train_runtime(text: str) -> Found | None:
    """The whole training, as the Hugging Face trainer ends: `'train_runtime': 123.4`."""
    found = _RUNTIME.search(text)
    if not found:
        return None
    return Found("train_s", parse_clock(found[1]) if found[1] else number_of(found[2]))


_PER_SECOND = re.compile(
    r"(?:(?<=average_)|(?<![a-z_]))(?:img|image|sample|example|sequence|seq|sentence|token|item|record)s?[\s_]?(?:/|per)[\s_]?"
    r"(?:s|sec|second)s?(?![a-z])",
    re.IGNORECASE,
)
_AFTER = re.compile(rf"([^:=]{{0,40}})[:=]['\"\s]{{0,8}}({_NUMBER})", re.IGNORECASE)
_BEFORE = re.compile(rf"(?<![\w.,])({_NUMBER})\s{{0,3}}$", re.IGNORECASE)
_RIGHT_AFTER = re.compile(rf"\s{{1,4}}({_NUMBER})", re.IGNORECASE)
_BETWEEN = {
    "per", "on", "over", "for", "across", "total", "global", "avg", "average", "mean", "all", "each", "gpu", "gpus",
    "s", "rank", "ranks", "worker", "workers", "process", "processes", "device", "devices",
}  # fmt: skip
_PER_WORKER = re.compile(r"(?:per|each|/)[\s_-]?(?:gpu|rank|worker|process|proc|device|card)(?![a-z])", re.IGNORECASE)
_SUMMED = re.compile(r"(?<![a-z])(?:total|global|aggregated?|combined|sum)(?![a-z])", re.IGNORECASE)


def rate(text: str) -> Found | None:
    """`Img/sec per GPU: 190.3`, `Total img/sec on 4 GPU(s): 760`, `123.4 images/sec`, `examples/sec = 202`."""
    unit = _PER_SECOND.search(text)
    if not unit:
        return None
    before = re.split(r"[,;|]\s", text[max(unit.start() - 80, 0) : unit.start()])[-1]
    after = text[unit.end() : unit.end() + 80]
    if set(re.findall(r"[a-z]+", before.lower())) & _TEST:
        return None
    told = _AFTER.match(after)
    if told and set(re.findall(r"[a-z]+", told[1].lower())) <= _BETWEEN:
        value, around = told[2], before + " " + told[1]
    elif told := _BEFORE.search(before):
        value, around = told[1], before + " " + re.split(r"[,;|]\s", after)[0]
    elif told := _RIGHT_AFTER.match(after):
        value, around = told[1], before
    else:
        return None
    kind = "_per_worker" if _PER_WORKER.search(around) else "_total" if _SUMMED.search(around) else ""
    return Found(f"examples_per_s{kind}", number_of(value))


class OwnPattern:
    """A user's --pattern instead of the built-in ones."""

    def __init__(self, text: str) -> None:
        self._pattern = compile_pattern(text, live=False)

    def find(self, number: int, text: str) -> list[Found]:
        """What the groups of the first match hold."""
        match = self._pattern.search(text)
        if not match:
            return []
        values = {name: _checked(name, told, number) for name, told in match.groupdict().items() if told}
        epoch = values.get("epoch")
        aside = {"epoch": None if epoch is None else int(epoch), "test_s": values.get("test_s")}
        return [Found(name, values[name], **aside) for name in MEASURES if name in values]  # type: ignore[arg-type]


def _checked(name: str, told: str, number: int) -> float:
    try:
        return number_of(told)
    except ValueError:
        raise UsageError(
            f"--pattern finds '{plain(told, 40)}' for {name} on line {number}: let the group match a number only"
        ) from None
