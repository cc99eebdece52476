"""Tunes by relaunch: each sample is one launch, through any launcher; finished samples are never repeated."""

import contextlib
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from scalescope import __version__, host
from scalescope.engines import COLLECTIVES, PLAIN, engine_named, find_engine, tunable
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.launch import launch
from scalescope.jobs.plan import Settings, make_job
from scalescope.progress import Progress
from scalescope.records.files import TUNING
from scalescope.records.job import Knobs
from scalescope.records.run import Failure, Point, Run
from scalescope.records.store import save, writing
from scalescope.records.tuning import Method, Sample, TuneRequest, Tuning, TuningCost, Values
from scalescope.text import knob_name
from scalescope.tuner.blocks import Block
from scalescope.tuner.journal import Journal, begin_search
from scalescope.tuner.search import OFFLINE, options_of
from scalescope.tuner.settings import THREADS
from scalescope.tuner.space import offline_space
from scalescope.tuner.tuner import Tuner
from scalescope.units import format_seconds

SURVEY = "survey.json"
_SURVEY_AFTER = 10
_WARMUP_SAMPLES = 1


class Launches:
    """Launches of one training with different knobs."""

    def __init__(self, request: TuneRequest, settings: Settings, point: Point, progress: Progress) -> None:
        self._request, self._settings, self._point, self._progress = request, settings, point, progress
        self.options = options_of(request, OFFLINE)
        warmup = _WARMUP_SAMPLES if request.warmup_samples is None else request.warmup_samples
        self._warmup_steps = warmup * self.options.steps_per_sample
        self.budget_s, self.began_s = request.budget_s, time.monotonic()
        self.engine = point.engine  # As the ranks of the last launch showed it

    def make(self, number: int, values: Values, env: dict[str, str] | None = None) -> Block:
        """One launch with these knobs on top of what is fixed; a failed one says why."""
        outcome = self.launch(number, values, self._warmup_steps + self.options.steps_per_sample, env)
        if isinstance(outcome, Failure):
            return Block(step_s=(), problem=outcome.problem)
        self.engine = outcome.engine_seen or self.engine
        measured = outcome.steps - outcome.warmup_steps
        return Block(
            step_s=outcome.blocks or (outcome.step_s,),
            steps=measured,
            discarded=outcome.warmup_steps,
            seconds=outcome.wall_s,
        )

    def launch(
        self, number: int, values: Values, steps: int | None, env: dict[str, str] | None = None
    ) -> Run | Failure:
        """One launch of this many steps; None: a script's whole training."""
        request = msgspec.structs.replace(
            self._settings.request,
            env={**self._settings.request.env, **(env or {})},
            steps=self._request.steps or steps,
        )
        engine = self._point.engine
        knobs = {name: value for name, value in values.items() if name != THREADS.name}
        fixed = self._settings.knobs[engine].values
        threads = int(values[THREADS.name]) if THREADS.name in values else self._settings.threads_per_rank
        settings = msgspec.structs.replace(
            self._settings,
            request=request,
            threads_per_rank=threads,
            knobs={**self._settings.knobs, engine: Knobs(engine=engine, values={**fixed, **knobs})},
        )
        point = msgspec.structs.replace(self._point, threads_per_rank=threads)
        return launch(settings, number + 1, point, request.steps or 0, self._progress)


def tune_offline(
    request: TuneRequest,
    settings: Settings,
    point: Point,
    folder: Path,
    progress: Progress,
    finished: Sequence[Sample] = (),
    notes: tuple[str, ...] = (),
) -> Tuning:
    """Search by launches, then launch the finalist and the default alternately; `finished`: samples that are there."""
    launches = Launches(request, settings, point, progress)
    options = launches.options
    first: Block | None = None
    if not finished:
        progress.note(
            f"Tuning by relaunch: at most {options.max_samples} launches to search, then the best ones against the "
            f"default, at most {options.most_pairs} pairs."
        )
        progress.stage(f"sample 0 of at most {options.max_samples} · now the default")
        first = launches.make(0, {}, {"SCALESCOPE_SURVEY": str(_SURVEY_AFTER)})
        if first.problem:
            raise WorkFailed(f"the training failed with its defaults: {first.problem}; see its output in {folder}")
        for path in sorted(Path(settings.folder, "launches").glob(f"*/{SURVEY}")):
            with writing(folder / SURVEY):  # the next launch may overwrite that of this one
                (folder / SURVEY).write_bytes(path.read_bytes())
    survey: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        survey = json.loads((folder / SURVEY).read_text())
    seen = survey.get("engine", point.engine)
    if seen in tunable() and seen != point.engine:
        titles = find_engine(seen).title, find_engine(point.engine).title
        raise UsageError(f"the script trains with {titles[0]}, not with {titles[1]}: add --engine {seen}")
    if (used := engine_named(launches.engine)) not in (PLAIN, COLLECTIVES) and not used.is_tuned:
        raise UsageError(
            f"the script trains with {used.title}, which {used.why_not_tuned}: "
            "compare settings of its own with scalescope measure"
        )
    placed = make_job(settings, point, Path(settings.folder), "none", 0).ranks_per_host
    hosts = [name for name, count in placed for _ in range(count)] or ["here"] * point.np
    space = offline_space(
        point.engine,
        survey,
        fixed_by_user(request, settings, point),
        request.search,
        hosts=hosts,
        cores=host.cores().physical,
        threads=settings.threads_per_rank or 1,
        backend=str(survey.get("backend", "")),
        nccl_build=find_engine(point.engine).built_with(settings.python, "nccl"),
    )
    nodes = len(set(hosts))
    tuner, journal = begin_search(folder, request, space, survey, options, method="offline", nodes=nodes, notes=notes)
    tuner.restore(finished)
    tuner.resume()
    journal.take_up(finished)
    return search_by_launches(launches, tuner, journal, progress, first)


def search_by_launches(
    launches: Launches, tuner: Tuner, journal: Journal, progress: Progress, first: Block | None = None
) -> Tuning:
    """Launch what the tuner asks for until it has decided; `first` is a launch that was made already.

    Half of a budget is for the search at most, and no launch is begun that would probably end after it.
    """
    longest, budget_s = first.seconds if first else 0.0, launches.budget_s
    try:
        while asked := tuner.next():
            spent = time.monotonic() - launches.began_s + longest
            if budget_s and first is None and spent > budget_s:
                tuner.stop(f"the budget of {format_seconds(budget_s)} is spent")
                break
            if budget_s and asked.phase == "search" and spent > budget_s / 2:
                tuner.end_search()
                continue
            if first is None:
                journal.begin(asked, launches.options.max_samples, progress)
                first = launches.make(asked.index, asked.values)
            longest = max(longest, first.seconds)
            journal.add(tuner.tell(asked, first), progress)
            first = None
    except KeyboardInterrupt:
        journal.close(complete=False, why_not="interrupted before it was decided")
        raise
    return journal.close(complete=True)


def use_setting(
    request: TuneRequest,
    settings: Settings,
    point: Point,
    folder: Path,
    method: Method,
    steps: int | None,
    progress: Progress,
) -> Tuning:
    """Train with the setting, without a search; `steps`: of a MODEL."""
    values = request.start_from or {}
    progress.note("Training with the setting that was found earlier; nothing is searched.")
    outcome = Launches(request, settings, point, progress).launch(0, values, steps)
    if isinstance(outcome, Failure):
        raise outcome.error("the training failed with the setting found earlier")
    record = Tuning(
        what=request.what,
        command=request.command,
        engine=point.engine,
        np=request.np,
        nodes=outcome.nodes,
        method=method,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        scalescope=__version__,
        knobs=(),
        held=fixed_by_user(request, settings, point),
        winner_step_s=outcome.step_s,
        decision="use",
        values=values,
        reason="found earlier and used without a search",
        cost=TuningCost(search_steps=0, confirm_steps=0, seconds=0.0, lost_s=0.0),
        notes=outcome.warnings,
    )
    save(record, folder / TUNING)
    return record


def fixed_by_user(request: TuneRequest, settings: Settings, point: Point) -> Values:
    """The knobs that --knob and --threads-per-rank name; not those that were resolved, such as Horovod's controller."""
    named = set(map(knob_name, request.knobs))
    fixed = {name: value for name, value in settings.knobs[point.engine].values.items() if name in named}
    if settings.threads_per_rank and (THREADS.name in named or request.threads_per_rank):
        fixed[THREADS.name] = settings.threads_per_rank
    return fixed
