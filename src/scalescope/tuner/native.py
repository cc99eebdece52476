"""Horovod's own autotune, driven through the variables its flags set; its choice then meets the default."""

from pathlib import Path

from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.plan import Settings
from scalescope.measurement.autotune import read_autotune
from scalescope.records.autotune import DEFAULT_CACHE, Autotune
from scalescope.records.run import Failure, Point
from scalescope.records.tuning import SearchedKnob, TuneRequest, Tuning, Values
from scalescope.tuner.journal import Audience, Journal, Surroundings
from scalescope.tuner.offline import Launches, held_by_user, search_by_launches
from scalescope.tuner.space import Space
from scalescope.tuner.tuner import Tuner
from scalescope.units import plural

LOG = "autotune.csv"
_WARMUP_SAMPLES, _STEPS_PER_SAMPLE, _MOST_SAMPLES = 3, 10, 20  # What Horovod takes when nothing is said
_MEASUREMENTS = 5  # Every sample of Horovod is the median of so many
_HELD = {
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
    "HOROVOD_TORUS_ALLREDUCE": "0",
    "HOROVOD_CACHE_CAPACITY": str(DEFAULT_CACHE),
}  # Otherwise autotune searches once for every combination of them; a cache that it turns off is not off afterwards


def tune_native(request: TuneRequest, settings: Settings, point: Point, folder: Path, audience: Audience) -> Tuning:
    """Let Horovod tune itself, read its log, and launch its choice and the default in turns."""
    launches = Launches(request, settings, point, audience)
    log = folder / LOG
    steps = _steps(request)
    audience.planned(
        f"Horovod's autotune first: {steps:,} steps in one launch; "
        "then its choice and the default are launched in turns."
    )
    outcome = launches.launch(0, {}, steps, _variables(request, log))
    if isinstance(outcome, Failure):
        details = f"\n{outcome.details}" if outcome.details else ""
        raise WorkFailed(f"the launch with Horovod's autotune failed: {outcome.problem}{details}")
    if not log.exists() or log.stat().st_size == 0:
        raise UsageError(
            f"Horovod's autotune wrote nothing in {plural(outcome.steps, 'step')}: let it train for at least {steps:,}"
        )
    said = read_autotune(log)
    choice = _choice(said)
    held = held_by_user(request, settings, point)
    space = Space(
        engine=point.engine,
        knobs=tuple(
            SearchedKnob(name=name, values=(None, value), default=default, unit=unit, logarithmic=True)
            for (name, value), (default, unit) in zip(choice.items(), ((128.0, "MiB"), (1.0, "ms")), strict=True)
        ),
        held=held,
        left_out={
            "hierarchical_allreduce": "held off: it needs NCCL",
            "hierarchical_allgather": "held off: training gathers nothing",
            "cache_capacity": "held: a cache that autotune turns off is not off afterwards",
        },
        settings=({}, choice),
    )
    tuner = Tuner(space, None, launches.options, finalist=choice)
    end = "finished" if said.finished else "did not finish"
    around = Surroundings(
        engine=point.engine,
        method="native",
        prior="none: Horovod's autotune chose",
        notes=(f"Horovod's autotune {end}: {plural(len(said.samples), 'sample')}, read it with explain {LOG}",),
    )
    journal = Journal(folder, request, space, tuner, around)
    journal.warmup_steps = outcome.steps
    return search_by_launches(launches, tuner, journal, audience)


def _choice(said: Autotune) -> Values:
    """What Horovod goes on with: the sample that it crowns."""
    knobs = said.samples[said.winner].knobs
    return {"fusion_threshold_mb": knobs.fusion_threshold_mb, "cycle_time_ms": knobs.cycle_time_ms}


def _steps(request: TuneRequest) -> int:
    warmup = _WARMUP_SAMPLES if request.warmup_samples is None else request.warmup_samples
    samples = request.max_samples or _MOST_SAMPLES
    return (warmup + samples + 2) * (request.steps_per_sample or _STEPS_PER_SAMPLE) * _MEASUREMENTS


def _variables(request: TuneRequest, log: Path) -> dict[str, str]:
    wanted = {
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": request.warmup_samples,
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": request.steps_per_sample,
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": request.max_samples,
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": request.gp_noise,
    }
    told = {name: f"{value:g}" for name, value in wanted.items() if value is not None}
    return {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(log), **_HELD, **told}
