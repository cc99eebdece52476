"""Logs of a training on several numbers of processes in, a curve and what had to be assumed for it out."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from scalescope.errors import UsageError
from scalescope.logs.assumptions import rounds, whose_rate, without_one_process
from scalescope.logs.epochs import excess_sentence, testing_sentence
from scalescope.logs.lines import Reading, read_log
from scalescope.logs.trainers import is_trainer_file, read_trainer_file
from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.scaling import Curve, Scaling
from scalescope.steady import steadiness
from scalescope.text import listed, plural
from scalescope.warmup import warmup_steps

# What a log tells, by the field of its reading; the first that all logs tell is used.
_KINDS = {
    "epochs": "epoch times",
    "steps": "step times",
    "windows": "samples over time",
    "rates": "rates",
    "bare_rates": "rates without saying whose",
    "train_s": "a train time",
}
_ASSUMED = {
    "epochs": "an epoch is taken as the same work at every number of processes",
    "steps": "a step is taken as the same work at every number of processes, as with a shared batch",
}
_SAME_PACE = 0.01  # Efficiencies by the mean and by the median that differ by more are both shown
_SAME_WORK = 0.01  # Trainings whose samples differ by more did not do the same


def read_logs(paths: Sequence[Path], np: Sequence[int] = (), pattern: str = "") -> Scaling:
    """Read logs of one training as a curve.

    Args:
        paths: Logs, or files of Hugging Face's or Lightning's trainer.
        np: Processes of each of them; none: headings in them tell, or their names.
        pattern: The user's regular expression for lines.

    Raises:
        UsageError: One of them cannot be read, or they do not belong together; it names the next action.
    """
    if np and len(np) != len(paths):
        raise UsageError(f"--np gives {len(np)} counts for {len(paths)} logs: give one per log, in the same order")
    counts: list[int | None] = list(np) or [None] * len(paths)
    readings: list[Reading] = []
    for path, count in zip(paths, counts, strict=True):
        if not pattern and is_trainer_file(path):
            readings.append(read_trainer_file(path, count))
        else:
            readings += read_log(path, count, pattern)
    kind = next((kind for kind in _KINDS if all(getattr(reading, kind) for reading in readings)), None)
    if kind is None:
        told = [f"'{each.name}' {next(_KINDS[kind] for kind in _KINDS if getattr(each, kind))}" for each in readings]
        raise UsageError(f"logs tell different things ({', '.join(told[:3])}): say with --pattern what to read of all")
    findings: list[str] = []
    if kind == "bare_rates":
        by_np = {each.np: median(each.bare_rates) for each in readings}
        are_totals, said = whose_rate(by_np, rename="say with --pattern and a group examples_per_s_{}")
        findings.append(said)
        for at, each in enumerate(readings):
            rates = tuple(rate if are_totals else each.np * rate for rate in each.bare_rates)
            readings[at] = msgspec.structs.replace(each, rates=rates)
    repetitions = rounds([reading.np for reading in readings])
    observations = [
        _observation(reading, kind, repetition) for reading, repetition in zip(readings, repetitions, strict=True)
    ]
    unit = kind if kind in ("epochs", "steps") else "samples"
    curve = make_curve(observations, Frame(engine="", work_unit=unit))
    if kind == "epochs":
        findings += filter(None, (excess_sentence(curve), testing_sentence(curve)))
    if kind in _ASSUMED:
        findings += [*_uneven(readings, kind, observations, curve), _ASSUMED[kind]]
    if kind in ("windows", "train_s"):
        findings += _same_work(readings)
    for where in sorted({reading.counted_by for reading in readings} - {""}):
        read = sorted({reading.np for reading in readings if reading.counted_by == where})
        findings.append(f"numbers of processes come from {where}: {listed(read)}")
    findings += without_one_process(curve)
    findings += [note for reading in readings for note in reading.notes]
    return Scaling(
        what=", ".join(dict.fromkeys(reading.name for reading in readings)),
        source="logs",
        curves=(curve,),
        trust=which_to_trust((curve,)),
        findings=tuple(dict.fromkeys([*findings, *what_stands_out((curve,))])),
    )


def _observation(reading: Reading, kind: str, repetition: int) -> Observation:
    """A log as one run: what follows from the kind of figures it tells, and nothing else."""
    run = Observation(engine="", np=reading.np, round=repetition, rate=None, work=1.0)
    if kind == "train_s":
        return msgspec.structs.replace(run, whole_train_s=reading.train_s)
    if kind == "windows":
        windows = list(reading.windows)
    elif kind in ("epochs", "steps"):
        windows = [(seconds, 1.0) for seconds in getattr(reading, kind)]
    else:
        windows = [(1 / rate, 1.0) for rate in reading.rates]
    warmup = warmup_steps([seconds / work for seconds, work in windows])
    pace_s = median(seconds / work for seconds, work in windows[warmup:])
    first_s, first = map(sum, zip(*windows[:warmup], strict=True)) if warmup else (0.0, 0.0)
    rest_s, rest = map(sum, zip(*windows[warmup:], strict=True))
    run = msgspec.structs.replace(run, rate=1 / pace_s, mean_rate=rest / rest_s, median_rate=1 / pace_s, by_median=True)
    if kind in ("rates", "bare_rates"):
        return msgspec.structs.replace(run, throughput=1 / pace_s)
    run = msgspec.structs.replace(
        run,
        work=first + rest,
        parts={"warmup": first_s - first * pace_s, "uneven": rest_s - rest * pace_s},
        phases={"warmup": first_s, "steady": rest_s} | ({"evaluation": sum(reading.tests)} if reading.tests else {}),
    )
    if kind == "windows":
        return msgspec.structs.replace(run, throughput=1 / pace_s)
    return msgspec.structs.replace(run, step_s=pace_s, steps=len(windows), warmup_steps=warmup)


def _uneven(readings: Sequence[Reading], kind: str, observations: Sequence[Observation], curve: Curve) -> list[str]:
    """Report epochs or steps of two kinds or with a drift, and what that does to the efficiency."""
    said = []
    for reading, run in zip(readings, observations, strict=True):
        durations = reading.epochs if kind == "epochs" else reading.steps
        judged = steadiness(durations[run.warmup_steps :], noun=kind.removesuffix("s"))
        if judged.kind == "even":
            continue
        sentence = f"on {plural(run.np, 'process')} {judged.sentence}"
        point = next(point for point in curve.points if point.np == run.np)
        by_median, by_mean = point.efficiency, point.mean_efficiency
        if by_median and by_mean and run.np != curve.baseline_np and abs(by_mean / by_median.value - 1) >= _SAME_PACE:
            shares = f"{100 * by_median.value:.0f} % by the median and {100 * by_mean:.0f} % by the mean"
            sentence += f"; efficiency is {shares}"
        said.append(sentence)
    return said


def _same_work(readings: Sequence[Reading]) -> list[str]:
    """Report that all logs are taken to do the same work, where they do not tell it.

    Raises:
        UsageError: They tell that the work differs.
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
