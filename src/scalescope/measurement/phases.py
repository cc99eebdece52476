"""Splits a rank's time into phases that add up to the launch's wall time."""

from collections.abc import Sequence

from scalescope.measurement.rank_log import RankLog, Step
from scalescope.records.job import Ending
from scalescope.records.run import PHASES

Span = tuple[int, int]


def split_into_phases(log: RankLog, steps: Sequence[Step], warmup: int, launch: Ending) -> dict[str, float]:
    """Seconds per phase of one rank."""
    first, last = steps[0].start, steps[-1].end
    began, last_at = log.at(log.began, launch), log.at(last, launch)
    ended = max(launch.ended_ns, last_at)
    ns = dict.fromkeys(PHASES, 0)
    ns["launch"] = max(began - launch.started_ns, 0)
    ns["init"] = _inside(log.inits, (log.began, first))
    before_evaluation = _inside(log.evaluations, (log.began, first))
    ns["import"] = min(log.import_ns, first - log.began - ns["init"] - before_evaluation)
    ns["build"] = first - log.began - ns["init"] - ns["import"] - before_evaluation
    ns["warmup"] = sum(step.end - step.start for step in steps[:warmup])
    ns["steady"] = sum(step.end - step.start for step in steps[warmup:])
    between_evaluation = _inside(log.evaluations, (first, last))
    ns["pause"] = last - first - ns["warmup"] - ns["steady"] - between_evaluation
    after = (last, last + ended - last_at)
    after_evaluation, after_saves = _inside(log.evaluations, after), _inside(log.saves, after)
    ns["pause"] += after_saves
    ns["evaluation"] = before_evaluation + between_evaluation + after_evaluation
    ns["teardown"] = after[1] - last - after_evaluation - after_saves
    return {phase: duration * 1e-9 for phase, duration in ns.items()}


def _inside(spans: Sequence[Span], window: Span) -> int:
    """Nanoseconds of the spans (which do not overlap) that lie inside the window."""
    return sum(max(min(end, window[1]) - max(start, window[0]), 0) for start, end in spans)
