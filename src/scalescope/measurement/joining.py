"""Measurements of one training that were made apart, as separate batch jobs do: whether they make one curve, and that.

A speedup compares launches of one round. Rounds of different folders stay different, so a point is compared with the
baseline of its own folder, and where there is none with all launches of the baseline, which is said.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from scalescope.measurement.replication import baseline_of
from scalescope.records.job import NO_ENGINE
from scalescope.records.request import SCALINGS, Fingerprint, Plan
from scalescope.records.run import Measurement, Point
from scalescope.text import plain, plural


class Part(NamedTuple):
    """A measurement with what its folder tells about it."""

    name: str  # Of its folder
    measurement: Measurement
    plan: Plan | None

    @property
    def here(self) -> Fingerprint | None:
        """Fingerprint of the environment in which it was begun; None: not known."""
        return self.plan.fingerprint if self.plan else None


def add_up(one: Measurement, other: Measurement) -> bool:
    """True when each has points that the other lacks, or one is the baseline of the other: parts of one curve.

    Two measurements of the same points are one before and one after, which are compared, as are other batch sizes and
    other engines.
    """
    engines = [{run.point.engine for run in each.runs} - {NO_ENGINE} for each in (one, other)]
    if not set(one.batch or (0,)) & set(other.batch or (0,)) or (all(engines) and not engines[0] & engines[1]):
        return False
    own, others = _sizes(one), _sizes(other)
    points = {run.point for run in (*one.runs, *other.runs)}
    kinds = {*one.scaling, *other.scaling}
    bases = {base for point in points for kind in kinds if (base := baseline_of(point, kind, points)) and base != point}
    only_bases = [not (points - _keys(bases)) for points in (own, others)]
    return only_bases[0] != only_bases[1] or bool(own - others and others - own)


def _sizes(measurement: Measurement) -> set[tuple[object, ...]]:
    return _keys({run.point for run in measurement.runs})


def _keys(points: Iterable[Point]) -> set[tuple[object, ...]]:
    return {(point.engine, point.np, point.batch) for point in points}


def difference(old: Part, new: Part) -> str:
    """Differences that keep two measurements of one training from being one curve; empty: none."""
    one, other = _setup(old), _setup(new)
    changed = [what for what in one if what in other and one[what] != other[what]]
    return "; ".join(f"{what} {_shown(other[what])} instead of {_shown(one[what])}" for what in changed)


def _setup(part: Part) -> dict[str, object]:
    """Settings that must be equal, by name, as far as the folder tells them."""
    runs, plan, here = part.measurement.runs, part.plan, part.here
    told: dict[str, object] = {}
    if plan:
        told |= {"knobs": plan.request.knobs, "device": plan.request.device}
        model = msgspec.structs.asdict(plan.request.workload) if plan.request.workload else {}
        told |= {f"{name} of the model": value for name, value in model.items()}  # a command is in the training's name
    if here:
        told |= {"Python": here.python, "torch": here.torch}
    elif part.measurement.torch:
        told["torch"] = part.measurement.torch
    # As far as no launch line decided them.
    told["threads per rank"] = sorted({run.point.threads_per_rank for run in runs if run.point.threads_per_rank})
    if hosts := sorted({host.words for run in runs for host in run.hosts if host.cores}):
        told["hosts with"] = hosts
    elif here and not part.measurement.named_hosts:
        told |= {"CPU": here.cpu, "cores": here.cores, "GPUs": here.gpus}
    return told


def _shown(value: object) -> str:
    if isinstance(value, dict):
        value = [f"{name}={each}" for name, each in value.items() if each]
    return plain(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value), 80) or "none"


def join(old: Part, new: Part) -> Measurement:
    """Both as one measurement, whose rounds are those of the first and then those of the second."""
    one, other = old.measurement, new.measurement
    last = max((run.round for run in one.runs), default=0)
    runs = (msgspec.structs.replace(run, round=run.round + last) for run in other.runs)
    failures = (msgspec.structs.replace(each, round=each.round + last) for each in other.failures)
    warnings = [*one.warnings, *other.warnings]
    if old.plan and new.plan and old.plan.steps != new.plan.steps:
        warnings.append(
            f"launches in {new.name} make {plural(new.plan.steps, 'step')} and those in {old.name} {old.plan.steps}: "
            "compare steady speedups, not those of whole runs"
        )
    for engine in sorted(one.launcher.keys() & other.launcher.keys()):
        if one.launcher[engine] != other.launcher[engine]:
            warnings.append(
                f"{new.name} was started by {other.launcher[engine]} and {old.name} by {one.launcher[engine]}: "
                "compare steady speedups, not launch times"
            )
    return msgspec.structs.replace(
        one,
        scaling=tuple(kind for kind in SCALINGS["both"] if kind in (*one.scaling, *other.scaling)),
        batch=tuple(dict.fromkeys((*one.batch, *other.batch))),
        precision=one.precision if one.precision == other.precision else None,
        created=min(one.created, other.created),
        launcher={**other.launcher, **one.launcher},
        named_hosts=one.named_hosts or other.named_hosts,
        runs=(*one.runs, *runs),
        failures=(*one.failures, *failures),
        traces=(),  # they lie in different folders
        stopped="; ".join(dict.fromkeys(filter(None, (one.stopped, other.stopped)))),
        warnings=tuple(dict.fromkeys(warnings)),
    )
