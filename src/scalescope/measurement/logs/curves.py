"""Training logs that people already have in, a curve out.

How many processes wrote a log is told by --np, by headings in a file that holds several, or by the file's name.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from scalescope.errors import UsageError
from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.logs.epochs import excess_sentence, slower_sentences, testing_sentence
from scalescope.measurement.logs.lines import Reading, Section, read_log, sections
from scalescope.measurement.observation import Observation, infer
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.scaling import Curve, Scaling
from scalescope.steady import steadiness
from scalescope.text import listed, plain, plural
from scalescope.warmup import warmup_steps

_WORD = "gpus?|ranks?|procs?|process|processes|workers?|devices?"
_NAMED = rf"{_WORD}|np|nproc|n|world[-_]?size"
_LABELLED = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<!\d)(?<!\dx)(\d{{1,5}})(?:{_WORD})(?![a-z\d])(?![-_ ]?per)",
        rf"(?<![a-z])(?:{_NAMED})(\d{{1,5}})(?!\d)",
        rf"(?<!\d)(?<!\dx)(\d{{1,5}})[-_ ]x?(?:{_WORD})(?![a-z\d])(?![-_= ]\d)(?![-_ ]?per)",
        rf"(?<![a-z])(?:{_NAMED})[-_=](\d{{1,5}})(?!\d)",
    )
]  # 2gpus, np4, 2-gpus, np-4: who stands closer to its word comes first
_FREE = re.compile(r"(?<![a-z\d])(\d{1,4})(?![a-z\d])", re.IGNORECASE)
_ANY = re.compile(r"(?<!\d)(\d{1,4})(?!\d)")


def process_counts(paths: Sequence[Path], np: Sequence[int]) -> list[int]:
    """The number of processes of every log, in the same order."""
    if np and len(np) != len(paths):
        raise UsageError(f"--np gives {len(np)} counts for {len(paths)} logs: give one per log, in the same order")
    if any(count < 1 for count in np):
        raise UsageError(f"--np must be 1 or more, not '{','.join(map(str, np))}'")
    return list(np) if np else [_from_name(path) for path in paths]


def _from_name(path: Path) -> int:
    """The labelled number of the name (2gpus, np4), or its only number; a clear line when there is neither."""
    looks = [(pattern, path.name) for pattern in _LABELLED]
    looks += [(_FREE, path.stem), (_FREE, path.name), (_ANY, path.stem)]
    for pattern, text in looks:
        counts = {int(count) for count in pattern.findall(text)} - {0}
        if len(counts) == 1:
            return counts.pop()
        if counts:
            break
    raise UsageError(
        f"the name '{plain(path.name)}' does not tell how many processes wrote it: add --np with one count per log"
    )


def read_logs(paths: Sequence[Path], np: Sequence[int] = (), pattern: str = "") -> Scaling:
    """The curve of several logs, and what had to be assumed to read them; counts come from `np` or the file names."""
    logs = _logs(paths, np, pattern)
    readings = [read_log(path, count, pattern, section) for path, count, section in logs]
    if all(reading.epochs for reading in readings):
        curve, findings = _timed(readings, "epoch")
    elif all(reading.steps for reading in readings):
        curve, findings = _timed(readings, "step")
    elif all(reading.rates or reading.bare_rates for reading in readings):
        curve, findings = _rated(readings)
    elif all(reading.train_s for reading in readings):
        curve, findings = _whole(readings)
    else:
        raise UsageError(_unlike(readings))
    if not np:
        findings += _told_counts(logs)
    if curve.baseline_np is None:
        findings.append("one number of processes only: add the logs of others to compare with")
    elif curve.baseline_np > 1:
        findings.append(f"there is no log of 1 process: speedups are relative to {curve.baseline_np}")
    notes = [note for reading in readings for note in reading.notes]
    return Scaling(
        what=", ".join(dict.fromkeys(reading.name for reading in readings)),
        source="logs",
        curves=(curve,),
        trust=which_to_trust((curve,)),
        findings=tuple(dict.fromkeys([*findings, *notes, *what_stands_out((curve,))])),
    )


def _logs(paths: Sequence[Path], np: Sequence[int], pattern: str) -> list[tuple[Path, int, Section | None]]:
    """Every log: its file, its number of processes and, where headings divide the file, its lines."""
    if np:
        return [(path, count, None) for path, count in zip(paths, process_counts(paths, np), strict=True)]
    found: list[tuple[Path, int, Section | None]] = []
    for path in paths:
        parts = sections(path, pattern)
        found += [(path, part.np, part) for part in parts] if parts else [(path, _from_name(path), None)]
    return found


def _told_counts(logs: Sequence[tuple[Path, int, Section | None]]) -> list[str]:
    """Who told the numbers of processes."""
    named = [count for _, count, section in logs if section is None]
    told = [f"the file names tell {_listed(named)}; --np overrules them"] if named else []
    headed = [(path, count) for path, count, section in logs if section is not None]
    for path in dict.fromkeys(path for path, _ in headed):
        counts = [count for of, count in headed if of == path]
        told.append(f"headings in '{plain(path.name)}' tell {_listed(counts)}")
    return told


def _listed(counts: Sequence[int]) -> str:
    apart = sorted(set(counts))
    return plural(apart[0], "process") if len(apart) == 1 else f"{listed(apart)} processes"


def _unlike(readings: Sequence[Reading]) -> str:
    """Which two logs tell different things."""
    kinds = {"epoch times": "epochs", "step times": "steps", "rates": "rates", "a train time": "train_s"}

    def told(reading: Reading) -> str:
        return next((kind for kind, field in kinds.items() if getattr(reading, field)), "rates")

    first, other = readings[0], next(each for each in readings if told(each) != told(readings[0]))
    return (
        f"'{first.name}' tells {told(first)} and '{other.name}' tells {told(other)}: "
        "name logs of one kind, or say with --pattern what to read"
    )


def _rounds(readings: Sequence[Reading]) -> list[int]:
    """Logs of the same number of processes are repeated launches, in the order in which they were named."""
    return [1 + sum(earlier.np == reading.np for earlier in readings[:index]) for index, reading in enumerate(readings)]


def _timed(readings: Sequence[Reading], noun: str) -> tuple[Curve, list[str]]:
    """From times of epochs or steps: train time is their sum exactly."""
    observations, uneven = [], []
    for reading, number in zip(readings, _rounds(readings), strict=True):
        durations = reading.epochs if noun == "epoch" else reading.steps
        warmup = warmup_steps(durations)
        first, rest = durations[:warmup], durations[warmup:]
        steady_s, mean_s = median(rest), fmean(rest)
        phases = {"warmup": sum(first), "steady": sum(rest)}
        if reading.tests:
            phases["evaluation"] = sum(reading.tests)
        observations.append(
            Observation(
                engine="",
                np=reading.np,
                round=number,
                rate=1 / steady_s,
                mean_rate=1 / mean_s,
                median_rate=1 / steady_s,
                by_median=True,
                work=float(len(durations)),
                parts={"warmup": sum(first) - warmup * steady_s, "uneven": sum(rest) - len(rest) * steady_s},
                step_s=steady_s,
                phases=phases,
                steps=len(durations),
                warmup_steps=warmup,
            )
        )
        judged = steadiness(rest, noun=noun)
        if judged.kind != "even":
            uneven.append((reading, judged.sentence))
    curve = make_curve(observations, Frame(engine="", work_unit=f"{noun}s"))
    said = [
        f"on {plural(reading.np, 'process')} {sentence}{_by_mean(curve, reading.np)}" for reading, sentence in uneven
    ]
    if noun == "step":
        return curve, [*said, "a step is taken as the same work at every number of processes, as with a shared batch"]
    more = [excess_sentence(curve), *slower_sentences(curve), testing_sentence(curve)]
    assumed = "an epoch is taken as the same work at every number of processes"
    return curve, [each for each in (*more, *said, assumed) if each]


def _by_mean(curve: Curve, np: int) -> str:
    """Both efficiencies, where median and mean tell different stories."""
    point = next(point for point in curve.points if point.np == np)
    if not point.efficiency or not point.mean_efficiency or np == curve.baseline_np:
        return ""
    median_share, mean_share = point.efficiency.value, point.mean_efficiency
    if abs(mean_share / median_share - 1) < 0.01:
        return ""
    return f"; efficiency is {100 * median_share:.0f} % by the median and {100 * mean_share:.0f} % by the mean"


def _rated(readings: Sequence[Reading]) -> tuple[Curve, list[str]]:
    """From rates alone: a steady speedup and nothing else."""
    findings = []
    rates = [(reading, reading.rates) for reading in readings]
    if not all(reading.rates for reading in readings):
        bare = {reading.np: _steady_rate(reading.bare_rates) for reading in readings if reading.bare_rates}
        if not all(reading.bare_rates for reading in readings):
            raise UsageError(_unlike_rates(readings))
        inference = infer("the rate", bare, rename="say with --pattern and a group examples_per_s_{}")
        findings.append(inference.sentence)
        rates = [
            (reading, tuple(rate * (1 if inference.total else reading.np) for rate in reading.bare_rates))
            for reading in readings
        ]
    observations = [
        Observation(
            engine="",
            np=reading.np,
            round=number,
            rate=_steady_rate(told),
            mean_rate=fmean(told[_warmup(told) :]),
            median_rate=_steady_rate(told),
            work=1.0,
            throughput=_steady_rate(told),
        )
        for (reading, told), number in zip(rates, _rounds(readings), strict=True)
    ]
    return make_curve(observations, Frame(engine="")), findings


def _warmup(rates: Sequence[float]) -> int:
    return warmup_steps([1 / rate for rate in rates])


def _steady_rate(rates: Sequence[float]) -> float:
    return median(rates[_warmup(rates) :])


def _unlike_rates(readings: Sequence[Reading]) -> str:
    said = next(reading for reading in readings if not reading.bare_rates)
    bare = next(reading for reading in readings if not reading.rates)
    return (
        f"'{said.name}' says whose its rates are and '{bare.name}' does not: "
        "say with --pattern and a group examples_per_s_total or examples_per_s_per_worker what to read"
    )


def _whole(readings: Sequence[Reading]) -> tuple[Curve, list[str]]:
    """From train times alone: a train speedup and nothing else."""
    observations = [
        Observation(engine="", np=reading.np, round=number, rate=None, work=1.0, whole_train_s=reading.train_s)
        for reading, number in zip(readings, _rounds(readings), strict=True)
    ]
    curve = make_curve(observations, Frame(engine=""))
    return curve, ["every log is taken to do the same work in all"]
