"""Estimates: a profile, a cluster, a map, and where asked for some of its cells run for real."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from scalescope import host
from scalescope.engines import choices, exchanging, find_engine
from scalescope.engines.base import SHARDING, parse_knobs
from scalescope.errors import UsageError
from scalescope.estimation.calibration import calibration, remember
from scalescope.estimation.link_probe import USUAL_OPERATIONS
from scalescope.estimation.probe import groups, probe_cluster
from scalescope.estimation.profile import check_profile, launches_of, of_one_pass, take_profile
from scalescope.estimation.profile_ranks import ProfileTask
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
from scalescope.jobs.rank_program import Place, place_of, starting_s
from scalescope.jobs.request import fields_of
from scalescope.launchers.runner import end_orphans
from scalescope.measurement.resume import fingerprint_here, is_begun, unfinished_estimate
from scalescope.progress import Progress
from scalescope.records.cluster import Cluster
from scalescope.records.cluster_file import load_cluster, write_cluster
from scalescope.records.job import Knobs
from scalescope.records.prediction import Cell, Prediction
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EstimatePlan, EstimateRequest, ProbeRequest
from scalescope.records.store import in_folder, load, save
from scalescope.simulator.grid import Question, predict, recommend
from scalescope.simulator.step import predicted_step
from scalescope.text import plural
from scalescope.units import doublings, format_seconds

PLAN, PROFILE, CLUSTER, PREDICTION, STEP = "plan.json", "profile.json", "cluster.toml", "estimate.json", "step.json"
_MOST_CELLS = 1_000_000
_GROUP_S, _PROBE_S = 8.0, 12.0  # For a group of ranks, and for all groups together
_MOST_ROWS = 64  # Without --np, more slots than this are shown by their doublings


def estimate_request(**given: Any) -> EstimateRequest:
    """Make the request of estimate, from texts of the command line or from Python values.

    Raises:
        UsageError: Something cannot be read, or contradicts something else.
    """
    asked = fields_of(EstimateRequest, given, "estimate")
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
    """The map, corrected by its checks where some were asked for.

    Every part is kept as soon as it is there: after an interruption the same request continues.
    """
    knobs = _knobs(request)
    described = load_cluster(Path(request.cluster)) if request.cluster else None
    processes = _processes(request, described)
    threads = _threads(request, described, processes)
    given = _given_profile(request, described)
    if request.step_time:
        given = profile_from_step_times(
            request.workload, request.step_time, device=device_of(request, described), threads=threads, given=given
        )
    asked = msgspec.structs.replace(request, folder="", timeout_s=0.0)  # another patience asks for nothing else
    plan = EstimatePlan(request=asked, fingerprint=fingerprint_here((), "auto"))
    with result_folder("estimate", request.folder or unfinished_estimate(plan)) as folder:
        if is_begun(folder, plan):
            progress.note(f"Continuing the interrupted estimate in {folder}: what it finished is used again.")
            end_orphans(str(folder), request.hosts, request.ssh)
        save(plan, folder / PLAN)
        # A part that was finished before an interruption is used again.
        profile = given or (load(folder / PROFILE, ModelProfile) if (folder / PROFILE).exists() else None)
        profile = profile or _profile(request, threads, processes, described, folder, progress)
        save(profile, folder / PROFILE)
        if remade := sum(point.remade for point in profile.points):
            progress.note(f"Profile: {plural(remade, 'block')} of steps measured again, other programs were busy.")
        cluster = described or (load_cluster(folder / CLUSTER) if (folder / CLUSTER).exists() else None)
        cluster = cluster or _this_machine(request, knobs, profile, processes, threads, folder, progress)
        write_cluster(cluster, folder / CLUSTER)
        known, unread = calibration(knobs.engine, profile.workload.model) if described is None else (None, "")
        prediction = predict(
            Question(
                profile=profile,
                cluster=cluster,
                knobs=knobs,
                np=processes,
                batches=request.batch,
                scalings=request.scaling,
                calibration=known,
                efficiency_goal=request.efficiency,
                accumulate=request.workload.accumulate,
            )
        )
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
            drawn = predicted_step(profile, cluster, knobs, best.np, best.batch, request.workload.accumulate)
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
    place = _place(request)
    if request.cluster and place.hosts and cluster.slots_per_node != place.hosts[0].slots:
        raise UsageError(
            f"the cluster has {plural(cluster.slots_per_node, 'slot')} a node and its hosts take "
            f"{place.hosts[0].slots}: verify with the same, --hosts NAME:{cluster.slots_per_node},..."
        )
    checks = run_checks(request, prediction, profile, threads, _slots_here(request), folder, progress, place)
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
    described = load_cluster(Path(request.cluster)) if request.cluster else None
    knobs, processes = _knobs(request), _processes(request, described)
    threads = _threads(request, described, processes)
    _given_profile(request, described)
    model = request.workload.model
    source = request.profile or f"taken here, {request.seconds:g} s, {threads} threads"
    if request.step_time:
        times = ", ".join(
            f"{format_seconds(seconds)} with batch {batch}" for batch, seconds in request.step_time.items()
        )
        source = f"not taken, one process takes {times}"
    lines = [f"profile of {model}: {source}"]
    hosts = ",".join(each.name for each in _place(request).hosts) or "this machine"
    lines.append(f"cluster: {request.cluster or f'{hosts}, probed'}")
    lines.append(f"map: {knobs.engine} on {len(processes)} numbers of processes x {len(request.batch)} batch sizes")
    where = f" on {hosts}" if request.hosts else ""
    checks = f"verified: {request.verify} cells, {request.launches} launches each{where}"
    return [*lines, checks] if request.verify else lines


def _given_profile(request: EstimateRequest, described: Cluster | None) -> ModelProfile | None:
    """The profile of --profile, checked; None: it is taken here."""
    given = load(Path(request.profile), ModelProfile) if request.profile else None
    if given is not None:
        check_profile(given, request)
    if not request.step_time:
        check_device(request, described, given)
    return given


def _knobs(request: EstimateRequest) -> Knobs:
    if request.engine not in exchanging():
        find_engine(request.engine)
        raise UsageError(f"--engine takes {choices()}: one process alone is the baseline anyway")
    engine = find_engine(request.engine)
    knobs = parse_knobs(engine, request.knobs)
    for knob in engine.knobs:
        known = isinstance(knob.modelled, bool) or knobs.values.get(knob.name) in knob.modelled
        if knob.name in knobs.values and not (knob.modelled and known):
            setting = f"{knob.name}={knobs.values[knob.name]}"
            raise UsageError(
                f"an estimate does not know what {setting} changes: leave it out, or try it for real with "
                f"scalescope measure {request.workload.model} --engine {engine.name} --knob {setting}"
            )
    if request.cluster:
        return knobs
    return Knobs(
        engine=engine.name, values=engine.fitted(knobs.values, "", lambda: engine.built_with(sys.executable, "mpi"))
    )


def _place(request: EstimateRequest) -> Place:
    """Where links are probed and cells are verified."""
    return place_of(request.hosts, request.per_node)


def _slots_here(request: EstimateRequest) -> int:
    """Of all hosts that can be launched on."""
    return _place(request).slots or request.per_node or host.slots(request.device)


def _slots_of_a_host(request: EstimateRequest) -> int:
    hosts = _place(request).hosts
    return hosts[0].slots if hosts else _slots_here(request)


def _processes(request: EstimateRequest, described: Cluster | None) -> tuple[int, ...]:
    slots = described.slots if described else _slots_here(request)
    if request.np:
        if max(request.np) > slots:
            whose = f"{request.cluster} has: lower it, or describe more nodes"
            if not described:
                whose = "this machine has: lower it, name --hosts, or describe a cluster with --cluster"
            whose = "the hosts have: lower it, or name more" if _place(request).hosts else whose
            raise UsageError(f"--np {max(request.np)} is more than the {slots} slots that {whose}")
        return request.np
    if slots <= _MOST_ROWS:
        return tuple(range(1, slots + 1))
    return doublings(slots)


def _threads(request: EstimateRequest, described: Cluster | None, processes: Sequence[int]) -> int:
    if request.threads_per_rank:
        return request.threads_per_rank
    if described and described.device == "cpu":
        return host.threads_per_rank(described.cores_per_node, described.slots_per_node)
    return host.threads_per_rank(host.cores().physical, min(max(processes), _slots_of_a_host(request)))


def _profile(
    request: EstimateRequest,
    threads: int,
    processes: Sequence[int],
    described: Cluster | None,
    folder: Path,
    progress: Progress,
) -> ModelProfile:
    """One process alone, and with others of its host."""
    most = min(max(processes), host.cores().logical, described.slots_per_node if described else 10**9)
    together = () if on_gpu(request) else tuple(sorted({count for count in (2, 4, most) if 1 < count <= most}))
    passes = request.workload.accumulate
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
    progress.stage(f"profile of {request.workload.model} on one process", expected_s)
    task = ProfileTask(
        workload=of_one_pass(request.workload),
        batches=tuple(sorted(batches)),
        device=request.device,
        seconds=request.seconds / launches,
        repeats=-(-request.repeats // launches),
        together=together,
        launches=launches,
        sharding=engine.live_module if (engine := find_engine(request.engine)).shards else "",
    )
    return take_profile(task, threads_per_rank=threads, folder=folder / "profile", timeout_s=request.timeout_s)


def _this_machine(
    request: EstimateRequest,
    knobs: Knobs,
    profile: ModelProfile,
    processes: Sequence[int],
    threads: int,
    folder: Path,
    progress: Progress,
) -> Cluster:
    """This one, or the hosts that were named, probed as far as the question needs it."""
    slots = min(max(processes), _slots_of_a_host(request))
    hosts = _place(request).hosts[: -(-max(processes) // slots)]
    exchange = find_engine(knobs.engine).exchange(profile, knobs.values)
    backend = exchange.backend
    asked = ProbeRequest(
        backends=(backend,) if max(processes) > 1 else (),
        slots=slots,
        threads_per_rank=threads,
        device="cpu" if profile.kind == "cpu" else "cuda",
        seconds=min(request.seconds / 2, _GROUP_S, _PROBE_S / max(len(groups(backend, slots, hosts)), 1)),
        hosts=request.hosts[: len(hosts)],
        ssh=request.ssh,
        timeout_s=request.timeout_s,
        folder=str(folder / "probe"),
    )
    return probe_cluster(asked, progress, SHARDING if exchange.shards else USUAL_OPERATIONS)


def step_to_draw(prediction: Prediction) -> Cell | None:
    """The recommended cell, or with one process the one next to it: a step without communication shows nothing."""
    advice = recommend(prediction.cells, prediction.efficiency_goal, prediction.slots_per_node)
    if advice is None:
        return None
    several = [cell for cell in prediction.cells if cell.np > 1 and cell.fits and cell.scaling == advice.scaling]
    near = [cell for cell in several if cell.np == advice.np] or several
    return min(near, key=lambda cell: (cell.np, abs(cell.batch - advice.batch)), default=None)
