"""`tune`: from a request to a decision, online, by relaunch, or through Horovod's own autotune."""

import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec

from scalescope.engines import ENGINES, USUAL, find_engine
from scalescope.errors import UsageError
from scalescope.jobs.folders import check_record, interrupted_in, result_folder
from scalescope.jobs.interpreter import why_not_live
from scalescope.jobs.launch import check_reachable, check_requirements, launch_folder, rehearse
from scalescope.jobs.masking import save_plan, shown_commands
from scalescope.jobs.plan import Settings, launcher_of, make_job, points, resolve_here
from scalescope.measurement.fingerprint import fingerprint_here
from scalescope.measurement.resume import resumed_plan
from scalescope.progress import Progress
from scalescope.records.files import PLAN
from scalescope.records.request import MeasureRequest, launch_of
from scalescope.records.run import Point
from scalescope.records.store import complete_lines, drop_torn_line, in_folder, load, load_lines, writing
from scalescope.records.tuning import Method, Sample, TuneRequest, Tuning
from scalescope.stats import FEWEST_STEPS
from scalescope.text import knob_name
from scalescope.tuner.journal import SAMPLES, TunePlan
from scalescope.tuner.native import LOG as AUTOTUNE_LOG
from scalescope.tuner.native import autotune_variables, tune_native, tune_native_by_relaunch
from scalescope.tuner.offline import tune_offline, use_setting
from scalescope.tuner.online import tune_online
from scalescope.tuner.search import ONLINE, prepare
from scalescope.tuner.settings import THREADS, fixed_knobs

_Search = Callable[[TuneRequest, Settings, Point, Path, Progress], Tuning]


def tune(request: TuneRequest, progress: Progress) -> Tuning:
    """Search for better knobs."""
    settings, point = _resolved(request)
    method = _method(request, point.engine)
    _check_sample(request, method)
    check_requirements(settings)
    prepare()  # now, and not while ranks wait for an answer
    here = fingerprint_here(request.command, request.device)
    with result_folder("tune", request.folder) as folder, interrupted_in(folder):
        if any(complete_lines(folder / SAMPLES)):
            resumable = resumed_as(load(folder / PLAN, TunePlan).request, folder) is not None
            resume = ", or resume with --resume" if resumable else ""
            raise UsageError(f"{folder} already holds a search: choose another folder with -o{resume}")
        check_record(folder / PLAN, TunePlan)
        request = msgspec.structs.replace(request, folder=str(folder))
        save_plan(TunePlan(request=request, cwd=str(Path.cwd()), fingerprint=here), folder)
        settings = msgspec.structs.replace(settings, cwd=str(Path.cwd()), folder=str(folder))
        check_reachable(settings, point, folder)
        steps = rehearse(settings, [point])[0] if request.workload else None
        if request.start_from is not None:
            return in_folder(use_setting(request, settings, point, folder, method, steps, progress), folder)
        search = _search(request, settings, point, method, progress)
        found = search(request, settings, point, folder, progress)
        if method == "native" and request.log_file and (folder / AUTOTUNE_LOG).exists():
            with writing(Path(request.log_file)):
                Path(request.log_file).write_bytes((folder / AUTOTUNE_LOG).read_bytes())
        return in_folder(found, folder)


def _search(request: TuneRequest, settings: Settings, point: Point, method: Method, progress: Progress) -> _Search:
    """The method's, or by relaunch where this machine's engine cannot change while it trains."""
    engine = find_engine(point.engine)
    why_not = "" if method == "offline" else why_not_live(settings.python, engine)
    if not why_not:
        searches: dict[Method, _Search] = {"online": tune_online, "offline": tune_offline, "native": tune_native}
        return searches[method]
    if request.method == "online":
        raise UsageError(f"{engine.title}'s knobs cannot change while it trains: {why_not}: use --offline")
    progress.note(f"{engine.title}'s knobs cannot change while it trains: {why_not}. Tuning by relaunch instead.")
    return tune_native_by_relaunch if method == "native" else tune_offline


def resume(folder: Path, progress: Progress, budget_s: float | None = None) -> Tuning:
    """Resume a search by relaunch, or a comparison that was not decided; finished samples are kept."""
    folder = folder.absolute()
    if not (folder / PLAN).exists():
        raise UsageError(f"{folder} holds no search to resume: name the folder that was given with -o")
    load(folder / PLAN, TunePlan)  # a folder of something else is refused before the lock's file is made in it
    with resumed_plan(folder, TunePlan, "search") as plan, interrupted_in(folder):
        request = msgspec.structs.replace(plan.request, folder=str(folder), budget_s=budget_s)
        settings, point = _resolved(request)
        drop_torn_line(folder / SAMPLES)
        finished = load_lines(folder / SAMPLES, Sample)
        method = resumed_as(request, folder)
        if method is None:
            raise UsageError(
                "--resume needs an --offline search, or one that compared a setting with the default: start anew"
            )
        save_plan(plan, folder)
        settings = msgspec.structs.replace(settings, cwd=plan.cwd)
        if method == "online":
            found = tune_online(request, settings, point, folder, progress, finished=finished)
        else:
            found = tune_offline(request, settings, point, folder, progress, finished, plan.notes)
        return in_folder(found, folder)


def resumed_as(request: TuneRequest, folder: Path) -> Method | None:
    """Choose how an interrupted search is resumed: by relaunch, or with another launch of what it compared."""
    if request.method == "native" or request.start_from is not None:
        return None
    if (folder / "launches").is_dir() or request.method == "offline":
        return "offline"
    compared = any(sample.phase == "confirm" for sample in load_lines(folder / SAMPLES, Sample))
    return "online" if compared else None


def how_to_finish(plan: TunePlan, folder: Path) -> str:
    """The command that resumes the search in a folder, or what to do where nothing can be resumed."""
    if resumed_as(plan.request, folder):
        return f"scalescope tune --resume {shlex.quote(str(folder))}"
    return "it cannot be resumed; type the same command with another folder (-o) to start over"


def dry_run(request: TuneRequest) -> list[str]:
    """List the commands that would be started first, as a shell takes them."""
    settings, point = _resolved(request)
    method = _method(request, point.engine)
    _check_sample(request, method)
    place = launch_folder(settings, 1, point) if method == "offline" else Path(settings.folder, "training")
    if method != "offline":
        ours = {"SCALESCOPE_TUNE": "1"}
        if method == "native":  # while it trains these are set between two steps
            log = Path(settings.folder) / AUTOTUNE_LOG
            nccl_build = find_engine(point.engine).built_with(settings.python, "nccl")
            ours |= autotune_variables(request, log, nccl_build=nccl_build)
        env = {**settings.request.env, **ours}
        settings = msgspec.structs.replace(settings, request=msgspec.structs.replace(settings.request, env=env))
    job = make_job(settings, point, place, "LAUNCH", 29500)
    return shown_commands(launcher_of(settings, point), job, request.env)


def _check_sample(request: TuneRequest, method: Method) -> None:
    """Samples that are too short to tell anything, refused before anything starts."""
    each = request.steps_per_sample
    least = {"online": ONLINE.fewest_times, "offline": FEWEST_STEPS, "native": 1}[method]
    if each is not None and each < least and request.start_from is None:
        raise UsageError(f"--steps-per-sample {each} is too short to tell anything: give at least {least}")


def _method(request: TuneRequest, engine: str) -> Method:
    chosen = find_engine(engine)
    if request.method == "online" and not chosen.changes_live:
        native = ", or --method native" if chosen.autotunes else ""
        raise UsageError(f"{chosen.title}'s knobs are fixed when it starts: use --offline{native}")
    if request.method == "native" and not chosen.autotunes:
        whose = " or ".join(each.title for each in ENGINES.values() if each.autotunes)
        raise UsageError(f"--method native is {whose}'s autotune: leave it out for {chosen.title}")
    return request.method or ("online" if chosen.changes_live else "offline")


def _resolved(request: TuneRequest) -> tuple[Settings, Point]:
    """Settings of every launch, and the one point that is launched."""
    own = [text for text in request.knobs if knob_name(text) == THREADS.name]  # no engine's knob
    threads = fixed_knobs(USUAL.name, own).get(THREADS.name)
    settings = resolve_here(
        MeasureRequest(
            **launch_of(request),
            np=(request.np,),
            batch=(request.batch,) if request.batch else (),
            engines=(request.engine,) if request.engine else (),
            knobs=tuple(text for text in request.knobs if text not in own),
            threads_per_rank=int(threads) if threads else request.threads_per_rank,
            steps=request.steps,
            folder=request.folder,
        ),
        Path(request.folder or "results").absolute(),
    )
    return settings, points(settings)[-1]
