"""Logs of a training on several numbers of processes in, a curve out.

How many processes wrote a log is told by --np, by headings in a file that holds several, or by the file's name.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec

from scalescope.errors import UsageError
from scalescope.logs.epochs import excess_sentence, slower_sentences, testing_sentence
from scalescope.logs.lines import Reading, Section, read_log, sections
from scalescope.logs.rates import whose_rate
from scalescope.logs.trainers import trainer_reader
from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.scaling import Curve, Scaling
from scalescope.steady import steadiness
from scalescope.text import listed, plain, plural
from scalescope.units import format_seconds
from scalescope.warmup import warmup_steps

_WORD = "gpus?|ranks?|procs?|process|processes|workers?|devices?"
_NAMED = rf"{_WORD}|np|nproc|n|world[-_]?size"
_LABELLED = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<!\d)(?<!\dx)(\d{{1,5}})(?:{_WORD})(?![a-z\d])(?![-_ ]?per)",
        rf"(?<![a-z])(?:{_NAMED})[-_=]?(\d{{1,5}})(?!\d)",
    )
]  # 2gpus, np4
_ENDING = re.compile(r"\.(\d{1,5})$")  # train.out.4
# What a log tells, by the field of its reading; the first that all logs tell is used.
_KINDS = {
    "epochs": "epoch times",
    "steps": "step times",
    "windows": "samples over time",
    "rates": "rates",
    "bare_rates": "rates without saying whose",
    "train_s": "a train time",
}
_SAME_PACE = 0.01  # Efficiencies by the mean and by the median that differ by more are both shown
_SAME_WORK = 0.01  # Trainings whose samples differ by more did not do the same


def count_in_name(path: Path) -> int:
    """The number of processes by a label in the name (2gpus, np4), or by its ending (train.out.4).

    Files of trainers all have the same name: there the folders' names tell.

    Raises:
        UsageError: The name tells none, or several.
    """
    if trainer := trainer_reader(path):
        trainer(path, 1)  # one that has no times is of no use, however many processes wrote it
        named = (path, *list(path.absolute().parents)[:3])
        looks = [(pattern, each.name) for each in named for pattern in _LABELLED]
    else:
        looks = [(pattern, path.name) for pattern in _LABELLED]
        looks.append((_ENDING, path.name))
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
    if np and len(np) != len(paths):
        raise UsageError(f"--np gives {len(np)} counts for {len(paths)} logs: give one per log, in the same order")
    logs: list[tuple[Path, int, Section | None]] = [(path, count, None) for path, count in zip(paths, np, strict=False)]
    for path in paths if not np else ():
        parts = sections(path, pattern)
        logs += [(path, part.np, part) for part in parts] or [(path, count_in_name(path), None)]
    readings: list[Reading] = []
    for path, count, section in logs:
        trainer = None if pattern else trainer_reader(path)
        reading = trainer(path, count) if trainer else read_log(path, count, pattern, section)
        again = sum(earlier.np == count for earlier in readings)  # another launch of the same size
        readings.append(msgspec.structs.replace(reading, round=1 + again))
    told = next((kind for kind in _KINDS if all(getattr(reading, kind) for reading in readings)), None)
    if told is None:
        first, *others = [next(words for kind, words in _KINDS.items() if getattr(each, kind)) for each in readings]
        at = next(at for at, words in enumerate(others, start=1) if words != first)
        raise UsageError(
            f"'{readings[0].name}' tells {first} and '{readings[at].name}' tells {others[at - 1]}: "
            "name logs of one kind, or say with --pattern what to read"
        )
    if told in ("epochs", "steps"):
        curve, findings = _timed(readings, told.removesuffix("s"))
    elif told == "windows":
        curve, findings = _windowed(readings)
    elif told == "train_s":
        curve, findings = _whole(readings)
    else:
        curve, findings = _rated(readings, bare=told == "bare_rates")
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


def _told_counts(logs: Sequence[tuple[Path, int, Section | None]]) -> list[str]:
    """Report where the numbers of processes come from."""
    told = []
    by_name = {count for _, count, section in logs if section is None}
    headed = {count for _, count, section in logs if section is not None}
    for where, counts, more in (("the file names", by_name, "; --np overrules them"), ("headings", headed, "")):
        if counts:
            noun = "process" if counts == {1} else "processes"
            told.append(f"{where} tell {listed(sorted(counts))} {noun}{more}")
    return told


def _timed(readings: Sequence[Reading], noun: str) -> tuple[Curve, list[str]]:
    """From times of epochs or steps: train time is their sum exactly."""
    observations, uneven = [], []
    for reading in readings:
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
                round=reading.round,
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
            uneven.append((reading.np, judged.sentence))
    curve = make_curve(observations, Frame(engine="", work_unit=f"{noun}s"))
    said = []
    for np, sentence in uneven:
        point = next(point for point in curve.points if point.np == np)
        by_median, by_mean = point.efficiency, point.mean_efficiency
        if by_median and by_mean and np != curve.baseline_np and abs(by_mean / by_median.value - 1) >= _SAME_PACE:
            sentence += (
                f"; efficiency is {100 * by_median.value:.0f} % by the median and {100 * by_mean:.0f} % by the mean"
            )
        said.append(f"on {plural(np, 'process')} {sentence}")
    if noun == "step":
        return curve, [*said, "a step is taken as the same work at every number of processes, as with a shared batch"]
    more = [excess_sentence(curve), *slower_sentences(curve), testing_sentence(curve)]
    assumed = "an epoch is taken as the same work at every number of processes"
    return curve, [each for each in (*more, *said, assumed) if each]


def _windowed(readings: Sequence[Reading]) -> tuple[Curve, list[str]]:
    """From samples and seconds of one window after the other: the steady rate is that after warm-up."""
    observations = []
    for reading in readings:
        paces = [seconds / samples for seconds, samples in reading.windows]
        warmup = warmup_steps(paces)
        seconds, samples = map(sum, zip(*reading.windows, strict=True))
        first_s, first = map(sum, zip((0.0, 0.0), *reading.windows[:warmup], strict=True))
        rate = (samples - first) / (seconds - first_s)
        observations.append(
            Observation(
                engine="",
                np=reading.np,
                round=reading.round,
                rate=rate,
                mean_rate=rate,
                median_rate=1 / median(paces[warmup:]),
                work=samples,
                parts={"warmup": first_s - first / rate},
                throughput=rate,
                phases={"warmup": first_s, "steady": seconds - first_s},
            )
        )
    return make_curve(observations, Frame(engine="")), _work_said(readings)


def _rated(readings: Sequence[Reading], *, bare: bool) -> tuple[Curve, list[str]]:
    """From rates alone: a steady speedup and nothing else."""
    findings: list[str] = []
    told = [(each, each.bare_rates if bare else each.rates) for each in readings]
    steady = [(each, rates[warmup_steps([1 / rate for rate in rates]) :]) for each, rates in told]
    if bare:
        by_np = {each.np: median(rates) for each, rates in steady}
        total, said = whose_rate("the rate", by_np, rename="say with --pattern and a group examples_per_s_{}")
        findings.append(said)
        if not total:
            steady = [(each, tuple(rate * each.np for rate in rates)) for each, rates in steady]
    observations = [
        Observation(
            engine="",
            np=each.np,
            round=each.round,
            rate=median(rates),
            mean_rate=fmean(rates),
            median_rate=median(rates),
            work=1.0,
            throughput=median(rates),
        )
        for each, rates in steady
    ]
    return make_curve(observations, Frame(engine="")), findings


def _whole(readings: Sequence[Reading]) -> tuple[Curve, list[str]]:
    """From train times alone: a train speedup and nothing else."""
    observations = [
        Observation(engine="", np=each.np, round=each.round, rate=None, work=1.0, whole_train_s=each.train_s)
        for each in readings
    ]
    evaluated = [
        f"{format_seconds(each.evaluation_s)} of {format_seconds(each.train_s)} on {each.np}"
        for each in readings
        if each.evaluation_s and each.train_s
    ]
    said = [f"evaluation is part of the train time: {listed(evaluated)}"] if evaluated else []
    return make_curve(observations, Frame(engine="")), [*said, *_work_said(readings)]


def _work_said(readings: Sequence[Reading]) -> list[str]:
    """The work that all logs are taken to do.

    Raises:
        UsageError: They say themselves that it differs.
    """
    if not all(reading.samples for reading in readings):
        return ["every log is taken to do the same work in all"]
    least, most = (pick(readings, key=lambda reading: reading.samples or 0.0) for pick in (min, max))
    if (most.samples or 0.0) > (1 + _SAME_WORK) * (least.samples or 0.0):
        raise UsageError(
            f"'{least.name}' trained on {least.samples:,.0f} samples and '{most.name}' on {most.samples:,.0f}: "
            "train each for the same number of epochs, or of samples"
        )
    return []
