"""Estimates: a profile, a cluster, a map, and where asked for some of its cells run for real."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from scalescope import host
from scalescope.engines import choices, exchanging, find_engine
from scalescope.engines.base import SHARDING, parse_knobs
from scalescope.errors import UsageError
from scalescope.estimation.begun import is_begun, unfinished_estimate
from scalescope.estimation.calibration import calibration, remember
from scalescope.estimation.link_probe import USUAL_OPERATIONS
from scalescope.estimation.places import place_here, processes_of, slots_here, this_machine, threads_of
from scalescope.estimation.profile import check_profile, launches_of, of_one_pass, take_profile
from scalescope.estimation.profile_blocks import ProfileTask, Sharding
from scalescope.estimation.script import dry_run_script, estimate_script
from scalescope.estimation.step_time import (
    check_device,
    device_of,
    known_times,
    on_gpu,
    profile_from_step_times,
    stated_warning,
)
from scalescope.estimation.verification import corrected, run_checks
from scalescope.jobs.folders import result_folder
from scalescope.jobs.masking import masked
from scalescope.jobs.rank_program import starting_s
from scalescope.jobs.request import fields_of
from scalescope.launchers.runner import end_orphans
from scalescope.measurement.fingerprint import fingerprint_here
from scalescope.options import options_of
from scalescope.progress import Progress
from scalescope.records.cluster import Cluster
from scalescope.records.cluster_file import load_cluster, write_cluster
from scalescope.records.files import CLUSTER, PLAN, PREDICTION, PROFILE, STEP
from scalescope.records.job import Knobs
from scalescope.records.prediction import Cell, Prediction
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EstimatePlan, EstimateRequest
from scalescope.records.store import in_folder, load, save
from scalescope.simulator.grid import Question, predict, recommend, together
from scalescope.simulator.step import predicted_step
from scalescope.text import listed, plural

_MOST_CELLS = 1_000_000


def estimate_request(**given: Any) -> EstimateRequest:
    """Make the request of estimate, from texts of the command line or from Python values.

    Raises:
        UsageError: Something cannot be read, or contradicts something else.
    """
    asked = fields_of(EstimateRequest, given, "estimate")
    if asked.get("command"):  # a script decides by itself what a MODEL is told
        own = {"batch", "scaling", "engine", "knobs", "profile", "step_time", "repeats", "seconds"}
        for option in options_of(EstimateRequest):
            if option.field in own and option.field in asked:
                raise UsageError(f"{option.flag} goes with a MODEL: a script shows its own, leave {option.flag} out")
        return EstimateRequest(**asked)
    if asked.get("allow_writes"):
        raise UsageError("--allow-writes goes with a script after --: a MODEL saves nothing")
    if times := asked.get("step_time"):
        asked |= known_times(times, asked.get("batch", ()))
        if asked.get("verify"):
            raise UsageError("--verify measures on this machine, --step-time is of another one: leave one of them out")
    request = EstimateRequest(**asked)
    cells = len(request.np) * len(request.batch) * len(request.scaling)
    if cells > _MOST_CELLS:
        raise UsageError(f"the map would have {cells:,} cells: ask for at most {_MOST_CELLS:,}, by --np and --batch")
    return request


def estimate(request: EstimateRequest, progress: Progress) -> Prediction:
    """The map, corrected by its checks where some were asked for; of a script by `estimate_script`.

    Every part is kept as soon as it is there: after an interruption the same request continues.
    """
    if request.command:
        return estimate_script(request, progress)
    asked_knobs = _knobs(request)
    described = load_cluster(Path(request.cluster)) if request.cluster else None
    processes = processes_of(request, described)
    threads = threads_of(request, described, processes)
    given = _given_profile(request, described)
    if request.step_time:
        given = profile_from_step_times(
            request.trained, request.step_time, device=device_of(request, described), threads=threads, given=given
        )
    # Another patience asks for nothing else; values of variables are for their owner alone.
    asked = msgspec.structs.replace(request, folder="", timeout_s=0.0, env=masked(request.env))
    plan = EstimatePlan(request=asked, fingerprint=fingerprint_here((), "auto"))
    with result_folder("estimate", request.folder or unfinished_estimate(plan)) as folder:
        if is_begun(folder, plan):
            progress.note(f"Continuing the interrupted estimate in {folder}: what it finished is used again.")
            end_orphans(str(folder), request.hosts, request.ssh)
        save(plan, folder / PLAN)
        # A part that was finished before an interruption is used again.
        profile = given or (load(folder / PROFILE, ModelProfile) if (folder / PROFILE).exists() else None)
        profile = profile or _profile(request, asked_knobs, threads, processes, described, folder, progress)
        save(profile, folder / PROFILE)
        if remade := sum(point.remade for point in profile.points):
            progress.note(f"Profile: {plural(remade, 'block')} of steps measured again, other programs were busy.")
        cluster = described or (load_cluster(folder / CLUSTER) if (folder / CLUSTER).exists() else None)
        if cluster is None:
            probed: list[Cluster] = []
            for knobs in asked_knobs:
                exchange = find_engine(knobs.engine).exchange(profile, knobs.values)
                used = SHARDING if exchange.shards else USUAL_OPERATIONS
                place = folder / "probe" if not probed else folder / f"probe-{knobs.engine}"
                probed.append(
                    this_machine(
                        request,
                        exchange.backend,
                        used,
                        device=profile.kind,
                        processes=processes,
                        threads=threads,
                        folder=place,
                        progress=progress,
                    )
                )
            cluster = _joined(probed)
        write_cluster(cluster, folder / CLUSTER)
        predictions, unread = [], ""
        for knobs in asked_knobs:
            known, unread = calibration(knobs.engine, profile.workload.model) if described is None else (None, "")
            question = Question(
                profile=profile,
                cluster=cluster,
                knobs=knobs,
                np=processes,
                batches=request.batch,
                scalings=request.scaling,
                calibration=known,
                efficiency_goal=request.efficiency,
                accumulate=request.trained.accumulate,
            )
            predictions.append(predict(question))
        prediction = together(predictions)
        cores, few_cores = host.cores().physical, ""
        if threads > cores and not request.profile and profile.kind == "cpu":
            few_cores = f"the profile used {threads} threads on {cores} cores: take it on a machine like the cluster's"
        prediction = _with_warnings(prediction, unread, few_cores, stated_warning(request))
        save(prediction, folder / PREDICTION)
        if request.verify:
            if advice := prediction.recommended:
                cell = f"{plural(advice.np, 'process')} with batch {advice.batch:,}"
                progress.note(f"Before its checks the map recommends {cell}: {advice.speedup:.2f}x.")
            else:
                progress.note("Before its checks the map recommends nothing: it is not sure enough.")
            prediction = checked(request, prediction, profile, threads, cluster, folder, progress)
        if (best := step_to_draw(prediction)) is not None:
            knobs = next(each for each in asked_knobs if each.engine == (best.engine or prediction.engine))
            drawn = predicted_step(profile, cluster, knobs, best.np, best.batch, request.trained.accumulate)
            save(drawn, folder / STEP)
        save(prediction, folder / PREDICTION)
        save(msgspec.structs.replace(plan, finished=True), folder / PLAN)
    return in_folder(prediction, folder)


def checked(
    request: EstimateRequest,
    prediction: Prediction,
    profile: ModelProfile,
    threads: int,
    cluster: Cluster,
    folder: Path,
    progress: Progress,
) -> Prediction:
    """Run the cells that decide, remember how wrong the map was, and correct it."""
    place = place_here(request)
    if request.cluster and place.hosts and cluster.slots_per_node != place.hosts[0].slots:
        raise UsageError(
            f"the cluster has {plural(cluster.slots_per_node, 'slot')} a node and its hosts take "
            f"{place.hosts[0].slots}: verify with the same, --hosts NAME:{cluster.slots_per_node},..."
        )
    checks = run_checks(request, prediction, profile, threads, slots_here(request), folder, progress, place)
    unwritten = ""
    if prediction.trusted:
        factor = prediction.calibration.factor if prediction.calibration else 1.0
        unwritten = remember(checks, factor, prediction.engine, prediction.what)
    return _with_warnings(corrected(prediction, checks, answered=(cluster.disturbed,)), unwritten)


def _with_warnings(prediction: Prediction, *warnings: str) -> Prediction:
    more = (warning for warning in warnings if warning)
    return msgspec.structs.replace(prediction, warnings=(*prediction.warnings, *more))


def dry_run(request: EstimateRequest) -> list[str]:
    """List the parts of an estimate, a line each; nothing is started."""
    if request.command:
        return dry_run_script(request)
    described = load_cluster(Path(request.cluster)) if request.cluster else None
    processes = processes_of(request, described)
    engines = listed(knobs.engine for knobs in _knobs(request))
    threads = threads_of(request, described, processes)
    _given_profile(request, described)
    taken = request.profile or f"taken here, {request.seconds:g} s, {threads} threads"
    hosts = ",".join(each.name for each in place_here(request).hosts) or "this machine"
    return [
        f"profile of {request.trained.model}: {'by --step-time' if request.step_time else taken}",
        f"cluster: {request.cluster or f'{hosts}, probed'}",
        f"map: {engines} on {len(processes)} numbers of processes x {len(request.batch)} batch sizes",
        *([f"verified: {request.verify} cells, {request.launches} launches each on {hosts}"] if request.verify else []),
    ]


def _given_profile(request: EstimateRequest, described: Cluster | None) -> ModelProfile | None:
    """The profile of --profile, checked; None: it is taken here."""
    given = load(Path(request.profile), ModelProfile) if request.profile else None
    if given is not None:
        check_profile(given, request)
    if not request.step_time:
        check_device(request, described, given)
    return given


def _knobs(request: EstimateRequest) -> list[Knobs]:
    """Knobs of each engine of the map."""
    if several := request.engine if len(request.engines) > 1 else "":
        if request.knobs:
            raise UsageError(f"--knob is of one engine: leave it out, or name one of {several} with --engine")
        if request.verify:
            raise UsageError(f"--verify runs cells of one engine: estimate {several} first, then verify the better one")
    found = []
    for name in request.engines:
        engine = find_engine(name)
        if name not in exchanging():
            raise UsageError(f"--engine takes {choices()}: one process alone is the baseline anyway")
        knobs = parse_knobs(engine, request.knobs)
        for knob in engine.knobs:
            known = isinstance(knob.modelled, bool) or knobs.values.get(knob.name) in knob.modelled
            if knob.name in knobs.values and not (knob.modelled and known):
                setting = f"{knob.name}={knobs.values[knob.name]}"
                raise UsageError(
                    f"an estimate does not know what {setting} changes: leave it out, or try it for real with "
                    f"scalescope measure {request.trained.model} --engine {engine.name} --knob {setting}"
                )
        if not request.cluster:
            has_mpi = partial(engine.built_with, sys.executable, "mpi")
            knobs = Knobs(engine=engine.name, values=engine.fitted(knobs.values, None, has_mpi))
        found.append(knobs)
    return found


def _joined(probed: Sequence[Cluster]) -> Cluster:
    """This machine by all of its probes; what two of them measured is that of the first."""
    first = probed[0]
    costs = {
        (each.backend, each.operation, each.ranks, each.nodes): each for one in reversed(probed) for each in one.costs
    }
    overlaps = {(each.backend, each.ranks, each.nodes): each for one in reversed(probed) for each in one.overlaps}
    return msgspec.structs.replace(
        first,
        costs=tuple(costs.values()),
        overlaps=tuple(overlaps.values()),
        disturbed="; ".join(dict.fromkeys(one.disturbed for one in probed if one.disturbed)),
    )


def _profile(
    request: EstimateRequest,
    asked_knobs: Sequence[Knobs],
    threads: int,
    processes: Sequence[int],
    described: Cluster | None,
    folder: Path,
    progress: Progress,
) -> ModelProfile:
    """One process alone, and with others of its host."""
    most = min(max(processes), host.cores().logical, described.slots_per_node if described else 10**9)
    together = () if on_gpu(request) else tuple(sorted({count for count in (2, 4, most) if 1 < count <= most}))
    passes = request.trained.accumulate
    batches = {
        -(-each // passes)
        for scaling in request.scaling
        for batch in request.batch
        for count in processes
        if (each := -(-batch // count) if scaling == "strong" else batch) >= passes
    }
    if not batches:
        raise UsageError(f"--accumulate {passes} is more than the samples of any batch: lower it, or raise --batch")
    ranks = max(together, default=1)
    # On a GPU importing torch takes longer than the launches differ.
    launches = 1 if on_gpu(request) else launches_of(request.seconds)
    expected_s = request.seconds + launches * starting_s(ranks)
    progress.stage(f"profile of {request.trained.model} on one process", expected_s)
    sharding = None
    for knobs in asked_knobs:
        engine = find_engine(knobs.engine)
        if engine.shards and max(processes) > 1:
            reshards = knobs.values.get("reshard_after_forward")
            sharding = Sharding(
                live_module=engine.live_module,
                reshards=None if reshards is None else bool(reshards),
                ranks=tuple(sorted({2, max(processes)})),  # what lies between them follows
            )
    task = ProfileTask(
        workload=of_one_pass(request.trained),
        batches=tuple(sorted(batches)),
        device=request.device,
        seconds=request.seconds / launches,
        repeats=-(-request.repeats // launches),
        together=together,
        launches=launches,
        sharding=sharding,
    )
    return take_profile(
        task, threads_per_rank=threads, folder=folder / "profile", timeout_s=request.timeout_s, env=request.env
    )


def step_to_draw(prediction: Prediction) -> Cell | None:
    """The recommended cell, or with one process the one next to it: a step without communication shows nothing."""
    advice = recommend(prediction.cells, prediction.efficiency_goal, prediction.slots_per_node)
    if advice is None:
        return None
    several = [
        cell
        for cell in prediction.cells
        if cell.np > 1 and cell.fits and (cell.scaling, cell.engine) == (advice.scaling, advice.engine)
    ]
    near = [cell for cell in several if cell.np == advice.np] or several
    return min(near, key=lambda cell: (cell.np, abs(cell.batch - advice.batch)), default=None)
