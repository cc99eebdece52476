"""Messages of a step by pass, operation and process group: how much is exposed, and what was prefetched."""

from collections import Counter

import msgspec
import numpy as np

from scalescope.diagnosis.traces import JobTraces
from scalescope.intervals import between, common, union
from scalescope.records.explanation import ExchangeAccount
from scalescope.traces.trace import Trace

_PASSES = ("forward", "backward", "")
_Kind = tuple[str, str, str]  # Pass, operation and group


def exchanges(job: JobTraces, warmup: int, factor: float) -> tuple[ExchangeAccount, ...]:
    """The collectives of a typical steady step; none where the traces do not say when each was exposed.

    Args:
        job: Traces of one or more ranks.
        warmup: Steps that do not count.
        factor: Seconds without the tracer for each traced one.
    """
    traces = [trace for trace in job.traces if trace.exposed is not None and len(trace.starts_s) > warmup]
    found: dict[_Kind, list[ExchangeAccount]] = {}
    for trace in traces:
        for kind, account in _of_rank(trace, warmup).items():
            found.setdefault(kind, []).append(account)
    waiting = _waiting(job, warmup)
    accounts = []
    for kind in sorted(found, key=lambda kind: (_PASSES.index(kind[0]), kind[1:])):
        rows, first = found[kind], found[kind][0]
        names = dict.fromkeys(name for row in rows for name in row.module_exposed_s or {})
        by_module = {
            name: factor * sum((row.module_exposed_s or {}).get(name, 0.0) for row in rows) / len(rows)
            for name in names
        }
        exposed_s = factor * sum(row.exposed_s for row in rows) / len(rows)
        accounts.append(
            msgspec.structs.replace(
                first,
                seconds=factor * sum(row.seconds for row in rows) / len(rows),
                exposed_s=exposed_s,
                waiting_s=None if waiting is None else min(factor * waiting[kind], exposed_s),
                module_exposed_s=dict(sorted(by_module.items(), key=lambda each: -each[1])) or None,
            )
        )
    return tuple(accounts)


def kinds_of(trace: Trace) -> list[_Kind]:
    """Pass, operation and group of each of a trace's collectives."""
    operations = trace.collectives.operation.tolist()
    if trace.issued is None:
        return [("", operation, "") for operation in operations]
    return list(zip(trace.issued.phase.tolist(), operations, trace.issued.group.tolist(), strict=True))


def _of_rank(trace: Trace, warmup: int) -> dict[_Kind, ExchangeAccount]:
    starts, ends = trace.starts_s[warmup:], trace.ends_s[warmup:]
    seen, kinds = trace.collectives, kinds_of(trace)
    inside = (seen.start_s >= starts[0]) & (seen.start_s < ends[-1])
    accounts = {}
    for kind in dict.fromkeys(kinds):
        those = np.array([each == kind for each in kinds]) & inside
        moments = union(seen.start_s[those], seen.end_s[those])
        alone = common(trace.exposed, moments) if trace.exposed is not None else moments
        known = those & (seen.bytes >= 0)
        issued, group = trace.issued, kind[2]
        alike = len(set(trace.group_ranks.values())) < 2  # Of gloo's collectives nothing tells the group
        names = [] if issued is None else issued.module[those].tolist()
        each_s = between(alone, seen.start_s[those], seen.end_s[those]) / len(starts)
        module_exposed_s = dict[str, float]()
        for module, seconds in zip(names, each_s.tolist(), strict=False):
            if module:
                module_exposed_s[module] = module_exposed_s.get(module, 0.0) + seconds
        accounts[kind] = ExchangeAccount(
            phase=kind[0],
            operation=kind[1],
            group=group,
            ranks=trace.group_ranks.get(group) if group else trace.world_size if alike else None,
            modules=len(module_exposed_s),
            count=float(those.sum()) / len(starts),
            prefetched=0.0 if issued is None else float(issued.prefetched[those].sum()) / len(starts),
            bytes=float(seen.bytes[known].mean() * those.sum()) / len(starts) if known.any() else None,
            seconds=float(between(moments, starts, ends).mean()),
            exposed_s=float(between(alone, starts, ends).mean()),
            waiting_s=None,
            module_exposed_s=module_exposed_s,
        )
    return {kind: account for kind, account in accounts.items() if account.count}


def _waiting(job: JobTraces, warmup: int) -> Counter[_Kind] | None:
    """Seconds of a step that a rank waits for the last one; None where ranks cannot be compared."""
    compared, first = job.compared, job.traces[0]
    if compared is None or len(first.starts_s) <= warmup or any(trace.parts.waiting is None for trace in job.traces):
        return None
    kinds, starts, waiting = kinds_of(first), first.collectives.start_s, Counter[_Kind]()
    begin, end, steps = first.starts_s[warmup], first.ends_s[-1], len(first.starts_s) - warmup
    for at, seconds in zip(compared.at.tolist(), compared.mean_wait_s.tolist(), strict=True):
        if begin <= starts[at] < end:
            waiting[kinds[at]] += seconds / steps
    return waiting
