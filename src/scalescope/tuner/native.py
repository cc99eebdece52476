"""Horovod's own autotune, and its choice against the default: inside one launch, or by relaunch where it must be."""

from pathlib import Path
from typing import Any

from scalescope.engines import find_engine
from scalescope.engines.horovod import DEFAULT_CACHE
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.plan import Settings
from scalescope.logs.autotune import read_autotune
from scalescope.progress import Progress
from scalescope.records.autotune import Autotune
from scalescope.records.run import Failure, Point
from scalescope.records.tuning import Method, SearchedKnob, TuneRequest, Tuning, Values
from scalescope.text import knob_name, plural
from scalescope.tuner.controller_files import Hello, SampleReport
from scalescope.tuner.journal import Journal
from scalescope.tuner.offline import Launches, fixed_by_user, search_by_launches
from scalescope.tuner.online import OnlineSearch, tune_online
from scalescope.tuner.search import Options
from scalescope.tuner.space import Space
from scalescope.tuner.tuner import Tuner

LOG = "autotune.csv"
# Defaults of Horovod's autotune.
_AUTOTUNE_WARMUP, _AUTOTUNE_STEPS, _AUTOTUNE_SAMPLES = 3, 10, 20
_MEASUREMENTS = 5  # Every sample of Horovod is the median of this many
# Autotune searches once for every combination of switches that are not fixed; a cache that it turns off is not off
# afterwards, and training gathers nothing.
_FIXED = {"HOROVOD_HIERARCHICAL_ALLGATHER": "0", "HOROVOD_CACHE_CAPACITY": str(DEFAULT_CACHE)}
_OF_NCCL = {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0", "HOROVOD_TORUS_ALLREDUCE": "0"}  # Fixed in builds without it
_MORE_STEPS = 3  # How many times a quarter of them is added where autotune has not finished


def tune_native(request: TuneRequest, settings: Settings, point: Point, folder: Path, progress: Progress) -> Tuning:
    """In one launch: the default, Horovod's search, then its choice and the default in interleaved blocks."""
    return tune_online(request, settings, point, folder, progress, NativeSearch)


class NativeSearch(OnlineSearch):
    """Lets Horovod search while the training runs."""

    @property
    def _needed(self) -> int:
        return super()._needed + _autotune_steps(self._request)

    def _plan(self) -> str:
        steps = _autotune_steps(self._request)
        return f"Horovod's autotune while it trains: {steps:,} steps; then its choice against the default."

    def _measured(self, **fields: Any) -> SampleReport:
        """Measure a sample outside the search."""
        return self._files.sample(self._files.send("sample", check=0, **fields))

    def _begin(self, hello: Hello) -> tuple[Tuner, Journal]:
        steps = self._options.steps_per_sample
        first = self._measured(values=self._fixed, discard=self._options.discard, steps=steps)
        log = self._folder / LOG
        enough = _autotune_steps(self._request, nccl_build=hello.nccl_build)
        left, made = enough, 0
        for _ in range(1 + _MORE_STEPS):
            variables = autotune_variables(self._request, log, nccl_build=hello.nccl_build)
            report = self._measured(values=self._fixed, variables=variables, discard=0, steps=left)
            if report.problem:
                raise WorkFailed(f"Horovod's autotune did not run: {report.problem}")
            made += left
            tried = _read(log, made, enough)
            if tried.finished:
                break
            left = -(-enough // 4)
        space = _space(hello.engine, tried, self._fixed)
        tuner, journal = _begin_comparison(
            self._folder,
            self._request,
            space,
            tried,
            self._options,
            method="native",
            nodes=len(set(hello.hosts)) or 1,
        )
        journal.warmup_steps = self._warmup_steps + made
        asked = tuner.next()
        assert asked is not None
        journal.add(tuner.tell(asked, self._block(first)), self._progress)
        return tuner, journal


def tune_native_by_relaunch(
    request: TuneRequest, settings: Settings, point: Point, folder: Path, progress: Progress
) -> Tuning:
    """Let Horovod tune itself in one launch, then launch its choice and the default alternately."""
    launches = Launches(request, settings, point, progress)
    log = folder / LOG
    nccl_build = find_engine(point.engine).built_with(settings.python, "nccl")
    steps = _autotune_steps(request, nccl_build=nccl_build)
    progress.note(
        f"Horovod's autotune first: {steps:,} steps in one launch; then its choice and the default alternately."
    )
    outcome = launches.launch(0, {}, steps, autotune_variables(request, log, nccl_build=nccl_build))
    if isinstance(outcome, Failure):
        raise outcome.error("the launch with Horovod's autotune failed")
    tried = _read(log, outcome.steps, steps)
    space = _space(point.engine, tried, fixed_by_user(request, settings, point))
    tuner, journal = _begin_comparison(folder, request, space, tried, launches.options, method="offline")
    journal.warmup_steps = outcome.steps
    return search_by_launches(launches, tuner, journal, progress)


def _read(log: Path, steps: int, enough: int) -> Autotune:
    if not log.exists() or log.stat().st_size == 0:
        made = plural(steps, "step")
        raise UsageError(f"Horovod's autotune wrote nothing in {made}: let it train for at least {enough:,}")
    return read_autotune(log)


def _choice(tried: Autotune) -> Values:
    knobs = tried.samples[tried.winner].knobs
    return {"fusion_threshold_mb": knobs.fusion_threshold_mb, "cycle_time_ms": knobs.cycle_time_ms}


def _space(engine: str, tried: Autotune, fixed: Values) -> Space:
    """The default and what Horovod has chosen."""
    choice = _choice(tried)
    return Space(
        engine=engine,
        knobs=tuple(
            SearchedKnob(
                name=knob.name, values=(None, choice[knob.name]), default=knob.default, unit=knob.unit, logarithmic=True
            )
            for knob in find_engine(engine).knobs
            if knob.name in choice
        ),
        fixed=fixed,
        left_out={
            **dict.fromkeys(("hierarchical_allreduce", "torus_allreduce"), "searched by NCCL builds only"),
            "hierarchical_allgather": "switched off: training gathers nothing",
            "cache_capacity": "fixed: a cache that autotune turns off is not off afterwards",
        },
        settings=({}, choice),
    )


def _begin_comparison(
    folder: Path,
    request: TuneRequest,
    space: Space,
    tried: Autotune,
    options: Options,
    *,
    method: Method,
    nodes: int = 1,
) -> tuple[Tuner, Journal]:
    tuner = Tuner(space, None, options, finalist=_choice(tried))
    end = "finished" if tried.finished else "did not finish"
    note = f"Horovod's autotune {end}: {plural(len(tried.samples), 'sample')}, read it with explain {LOG}"
    prior = "none: Horovod's autotune chose"
    return tuner, Journal(folder, request, space, tuner, method=method, nodes=nodes, prior=prior, notes=(note,))


def _autotune_steps(request: TuneRequest, *, nccl_build: bool = False) -> int:
    warmup = _AUTOTUNE_WARMUP if request.warmup_samples is None else request.warmup_samples
    free = _OF_NCCL.keys() - _fixed_variables(request) if nccl_build else ()
    samples = (1 << len(free)) * ((request.max_samples or _AUTOTUNE_SAMPLES) + 1)
    return (warmup + samples + 1) * ((request.steps_per_sample or _AUTOTUNE_STEPS) * _MEASUREMENTS + 1)


def _fixed_variables(request: TuneRequest) -> set[str]:
    """Variables of the knobs that the user fixed."""
    return {f"HOROVOD_{knob_name(text).upper()}" for text in request.knobs}


def autotune_variables(request: TuneRequest, log: Path, *, nccl_build: bool) -> dict[str, str]:
    """Variables that make Horovod tune itself, without those that the user fixed."""
    wanted = {
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": request.warmup_samples,
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": request.steps_per_sample,
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": request.max_samples,
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": request.autotune_noise or request.gp_noise,
    }
    given = {name: f"{value:g}" for name, value in wanted.items() if value is not None}
    by_user, inert = _fixed_variables(request), {} if nccl_build else _OF_NCCL
    fixed = {name: text for name, text in {**_FIXED, **inert}.items() if name not in by_user}
    return {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(log), **fixed, **given}
