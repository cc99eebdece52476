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
from scalescope.records.run import Measurement, Point, RankHost
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
    found = [
        f"{what} {_shown(there)} instead of {_shown(here)}"
        for what, here, there in _settings(old, new)
        if here != there
    ]
    if found:
        return "; ".join(found)
    machines, others = _machines(old), _machines(new)
    if machines and others and machines.keys() != others.keys():
        odd = [host for kind, host in others.items() if kind not in machines] or [*others.values()]
        usual = [host for kind, host in machines.items() if kind not in others] or [*machines.values()]
        return f"hosts with {odd[0].words} instead of {usual[0].words}"
    return ""


_HERE = {"CPU": "cpu", "cores": "cores", "GPUs": "gpus"}  # Compared where ranks did not tell about their hosts


def _settings(old: Part, new: Part) -> list[tuple[str, object, object]]:
    """Settings that must be equal: name, old value, new value."""
    found: list[tuple[str, object, object]] = []
    if old.plan and new.plan:
        one, other = old.plan.request, new.plan.request
        found += [("knobs", one.knobs, other.knobs), ("device", one.device, other.device)]
        if one.workload and other.workload:  # a command is in the name of the training
            names = one.workload.__struct_fields__
            found += [
                (f"{name} of the model", getattr(one.workload, name), getattr(other.workload, name)) for name in names
            ]
    if old.here and new.here:
        found += [("Python", old.here.python, new.here.python), ("torch", old.here.torch, new.here.torch)]
        if not (_machines(old) and _machines(new)) and not old.measurement.named_hosts:
            found += [(name, getattr(old.here, key), getattr(new.here, key)) for name, key in _HERE.items()]
    elif old.measurement.torch and new.measurement.torch:
        found.append(("torch", old.measurement.torch, new.measurement.torch))
    return [*found, ("threads per rank", _threads(old), _threads(new))]


def _threads(part: Part) -> list[int]:
    """Threads per rank of its runs, as far as no launch line decided them."""
    return sorted({threads for run in part.measurement.runs if (threads := run.point.threads_per_rank)})


def _machines(part: Part) -> dict[tuple[str, int, tuple[str, ...]], RankHost]:
    """Hosts of its ranks, one of every kind."""
    return {host.kind: host for run in part.measurement.runs for host in run.hosts if host.cores}


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return plain(", ".join(f"{name}={each}" for name, each in value.items() if each), 80) or "none"
    if isinstance(value, list | tuple):
        return plain(", ".join(map(str, value)), 80) or "none"
    return plain(str(value), 80) or "none"


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
