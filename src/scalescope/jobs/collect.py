"""From what the ranks of one launch wrote to a Run: steps, and phases that add up to the launch's wall time."""

import os
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, harmonic_mean, median
from typing import Any, Literal

import msgspec

from scalescope import host
from scalescope.engines import COLLECTIVES, PLAIN, exchanging
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.interleaved import FEWEST, Pairs
from scalescope.jobs.output import Match
from scalescope.jobs.rank_log import RankLog, Step
from scalescope.line_pattern import rate_of
from scalescope.records.job import NO_ENGINE, Ending
from scalescope.records.run import PHASES, Load, Point, RankHost, RankSummary, Run, Unsteady
from scalescope.stats import FEWEST_STEPS
from scalescope.steady import UNSETTLED, blocks, steadiness, step_times
from scalescope.text import plural
from scalescope.warmup import enough_steps, warmup_steps

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


def collect(point: Point, logs: Sequence[RankLog], ending: Ending, folder: str, *, own: bool) -> Run:
    """The launch as measured by the agents in its ranks; `own`: the command started them."""
    steps_of = {id(log): log.steps() for log in logs}
    logs = [log for log in logs if steps_of[id(log)]]
    if not logs:
        raise WorkFailed(
            "no rank made an optimizer step: check that the script trains with torch.optim, "
            "or give --pattern with a regular expression for the lines it prints per step"
        )
    _check_world(point, logs, own=own)
    pace, warnings = _pace(step_times([[step.seconds for step in steps_of[id(log)]] for log in logs]))
    changed = sorted({path for log in logs for path in log.changed_files_read})
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        warnings.append(
            f"this launch read {changed[0]}{more}, which an earlier launch changed: launches do not start equal; "
            "put {launch} or {run_dir} into the path"
        )
    if ending.leftovers:
        left = plural(ending.leftovers, "process")
        warnings.append(f"{left} still ran after the launcher's end and had to be removed")
    ranks = [_summary(log, steps_of[id(log)], pace["warmup_steps"], ending) for log in logs]
    samples = float(point.global_batch) if point.global_batch else None
    if all(rank.samples_per_step for rank in ranks):  # of all ranks; what was asked for where they cannot tell
        samples = sum(rank.samples_per_step or 0 for rank in ranks)
    if samples and point.global_batch and abs(samples / point.global_batch - 1) > 0.05:
        warnings.append(
            f"--batch says {point.global_batch} samples per step over all processes and the ranks trained on "
            f"{samples:.4g}: pass {{batch}} or {{global_batch}} to the script"
        )
    exchanges, engine = _exchanges(logs, pace["steps"]), logs[0].engine or PLAIN.name
    return Run(
        point=point,
        folder=folder,
        wall_s=ending.wall_s,
        phases={phase: fmean(rank.phases[phase] for rank in ranks) for phase in PHASES},
        **pace,
        throughput=samples / pace["mean_step_s"] if samples else None,
        samples_per_step=samples,
        engine_seen=COLLECTIVES.name if engine == PLAIN.name and exchanges else engine,
        exchanges=exchanges,
        backend=logs[0].backend,
        source="optimizer",
        ranks=tuple(ranks),
        hosts=_hosts(logs),
        batch_job=logs[0].batch_job,
        warnings=tuple(warnings),
    )


def _pace(durations: Sequence[float]) -> tuple[dict[str, Any], list[str]]:
    """Fields of a Run that tell its warm-up and its pace after that, with warnings of steps that do not keep it."""
    if len(durations) < FEWEST_STEPS:
        raise UsageError(
            f"only {plural(len(durations), 'step')} in a launch, fewer than warm-up needs: "
            f"train for at least {FEWEST_STEPS} steps, better 30, so that a steady state can be told from it"
        )
    warmup = warmup_steps(durations)
    steady = durations[warmup:]
    medians = blocks(steady)
    pace = {
        "steps": len(durations),
        "warmup_steps": warmup,
        "step_s": median(medians),
        "mean_step_s": fmean(steady),
        "blocks": medians,
    }
    if not enough_steps(durations, warmup):
        return {**pace, "unsteady": Unsteady(kind="faster", sentence=UNSETTLED)}, [UNSETTLED]
    found = steadiness(steady)
    if found.kind == "even":
        return pace, []
    if found.kind == "bimodal":
        unsteady = Unsteady(kind="kinds", sentence=found.sentence)
    else:
        kind: Literal["faster", "slower"] = "slower" if found.drift > 0 else "faster"
        unsteady = Unsteady(kind=kind, sentence=found.sentence, drift=abs(found.drift))
    return {**pace, "unsteady": unsteady}, [found.sentence]


def _hosts(logs: Sequence[RankLog]) -> tuple[RankHost, ...]:
    """The hosts of these ranks, in order of rank."""
    on_host: dict[str, list[RankLog]] = {}
    for log in logs:
        on_host.setdefault(log.host, []).append(log)
    return tuple(
        msgspec.structs.replace(there[0].machine, ranks=tuple(log.rank or 0 for log in there))
        for there in on_host.values()
    )


def _exchanges(logs: Sequence[RankLog], steps: int) -> bool | None:
    """True when there was a collective for every step, as an exchange of gradients needs; None: not known."""
    counts = [log.collectives for log in logs if log.collectives is not None]
    if logs[0].engine not in ("", PLAIN.name) and len(logs) > 1:
        return True
    return max(counts) >= steps if counts and len(logs) > 1 else None


def _check_world(point: Point, logs: Sequence[RankLog], *, own: bool = False) -> None:
    """The launched processes really train together."""
    sizes = {log.world_size for log in logs if log.world_size}
    started = max([len(logs), *sizes])
    if own and started != point.np:
        raise WorkFailed(
            f"--np {point.np} was asked for and the command started {plural(started, 'rank')}: put {{np}} where it "
            "takes their number, and see whether it needs another option to start as many here"
        )
    if point.np > 1 and not sizes:
        raise WorkFailed(
            f"{point.np} processes ran and none joined a process group: each trained alone; "
            "the script must call torch.distributed.init_process_group or hvd.init"
        )
    if sizes and sizes != {point.np}:
        raise WorkFailed(
            f"{point.np} processes were launched but the script saw a world of {max(sizes)}: "
            f"name the engine the script uses with --engine {' or --engine '.join(exchanging())}"
        )
    if len(logs) != point.np:
        raise WorkFailed(f"{point.np} ranks were launched and {len(logs)} made steps: see the ranks' output")


def _summary(log: RankLog, steps: Sequence[Step], warmup: int, ending: Ending) -> RankSummary:
    steady = steps[min(warmup, len(steps) - 1) :]
    counted = [step.samples for step in steady if step.samples]
    return RankSummary(
        rank=log.rank or 0,
        host=log.host,
        pid=log.pid,
        phases=split_into_phases(log, steps, warmup, ending),
        steps=len(steps),
        samples_per_step=fmean(counted) if counted else None,
        step_s=median(step.seconds for step in steady),
    )


def collect_matches(
    point: Point, matches: Sequence[Match], first_output_ns: int, ending: Ending, folder: str, pattern: str
) -> Run:
    """The launch as far as its output tells: one step per line that matched."""
    if len(matches) < 2:
        raise WorkFailed(
            f"--pattern '{pattern}' matched {len(matches)} lines and at least 2 are needed: "
            "compare it with the output that was kept"
        )
    ends = [match.at_ns for match in matches]
    between = [(b - a) * 1e-9 for a, b in pairwise(ends)]
    told = [match.values["step_s"] for match in matches if "step_s" in match.values]
    rates = [rate for match in matches if (rate := rate_of(match.values, point.np)) is not None]
    durations = told if len(told) == len(matches) else between
    pace, warnings = _pace(durations)
    warmup = pace["warmup_steps"]
    rate = harmonic_mean(rates[min(warmup, len(rates) - 1) :]) if rates else None  # work over elapsed time
    first_ns = ends[0] - int(durations[0] * 1e9) if durations is told else ends[0]
    first_ns = max(first_ns, first_output_ns)
    if durations is not told and 2 * sum(match.came_with_others for match in matches) > len(matches):
        # lines that a buffer held back say how many steps there were, not how long each of them took
        warnings.insert(
            0,
            "matching lines arrived several at a time, so that only their mean time is known: flush after every line, "
            "or print the time of a step and match it with (?P<step_s>...)",
        )
    warmup_s = sum(durations[:warmup])
    phases = {
        "launch": (first_output_ns - ending.started_ns) * 1e-9,
        "build": (first_ns - first_output_ns) * 1e-9,
        "warmup": warmup_s,
        "steady": (ends[-1] - first_ns) * 1e-9 - warmup_s,
        "teardown": (ending.ended_ns - ends[-1]) * 1e-9,
    }
    return Run(
        point=point,
        folder=folder,
        wall_s=ending.wall_s,
        phases=phases,
        **pace,
        throughput=rate or (point.global_batch / pace["mean_step_s"] if point.global_batch else None),
        samples_per_step=float(point.global_batch) if point.global_batch else None,
        engine_seen="",
        backend="",
        source="pattern",
        ranks=(),
        warnings=tuple(warnings),
    )


def collect_pairs(point: Point, logs: Sequence[RankLog], ending: Ending, folder: str, pairs: Pairs) -> Run:
    """An interleaved launch: the steps of one process alone and of all processes, in blocks."""
    _check_world(point, logs)
    if len(pairs.seconds) < FEWEST:
        raise WorkFailed(f"only {len(pairs.seconds)} pairs of blocks were made: raise --budget")
    mean_step_s = fmean(together for _, together in pairs.seconds)
    samples = float(point.global_batch) if point.global_batch else None
    return Run(
        point=point,
        folder=folder,
        wall_s=ending.wall_s,
        phases={},
        steps=len(pairs.seconds),
        warmup_steps=0,
        step_s=median(together for _, together in pairs.seconds),
        mean_step_s=mean_step_s,
        pairs=pairs.seconds,
        throughput=samples / mean_step_s if samples else None,
        samples_per_step=samples,
        engine_seen=logs[0].engine or NO_ENGINE,
        backend=logs[0].backend,
        source="turns",
        hosts=_hosts(logs),
        batch_job=logs[0].batch_job,
        load=Load(
            foreign_cores=pairs.foreign_cores,
            cores=host.cores().machine_logical,
            load_average=os.getloadavg()[0],
        ),
        ranks=tuple(
            RankSummary(
                rank=log.rank or 0,
                host=log.host,
                pid=log.pid,
                phases={},
                steps=log.events,
                samples_per_step=None,
                step_s=None,
            )
            for log in logs
        ),
    )
