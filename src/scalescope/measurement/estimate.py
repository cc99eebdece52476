"""Estimates: a profile, a cluster, a map, and where asked for some of its cells run for real."""

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

import msgspec

from scalescope.engines import find_engine
from scalescope.engines.base import parse_knobs
from scalescope.errors import UsageError
from scalescope.measurement import residuals
from scalescope.measurement.cluster import probe_cluster
from scalescope.measurement.profile import take_profile
from scalescope.measurement.profile_ranks import ProfileTask
from scalescope.measurement.rank_program import ALLOCATOR
from scalescope.measurement.surroundings import cores_here, gpus_here, horovod_speaks_mpi, torch_version
from scalescope.measurement.sweep import Audience as MeasureAudience
from scalescope.measurement.sweep import measure
from scalescope.prediction.grid import Question, predict
from scalescope.prediction.predicted_step import predicted_step
from scalescope.records.cluster import Cluster
from scalescope.records.cluster_file import load_cluster, write_cluster
from scalescope.records.knobs import Knobs
from scalescope.records.prediction import Cell, Check, Prediction
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EstimateRequest, MeasureRequest, ProbeRequest
from scalescope.records.store import load, save

PROFILE, CLUSTER, PREDICTION, STEP = "profile.json", "cluster.toml", "estimate.json", "step.json"
_MOST_ROWS = 64
"""Without --np, more slots than this are shown by their doublings."""


class Audience(MeasureAudience, Protocol):
    """Who is told how an estimate goes on."""

    def stage(self, what: str, seconds: float | None) -> None:
        """A part of the work begins that takes about so long."""

    def tick(self, done: int) -> None:
        """So many blocks of it are done."""


def estimate(request: EstimateRequest, audience: Audience) -> tuple[Path, Prediction]:
    """The folder of the results and the map."""
    folder = Path(request.folder or "results/estimate").absolute()
    knobs = _knobs(request)
    described = load_cluster(Path(request.cluster)) if request.cluster else None
    processes = _processes(request, described)
    threads = _threads(request, described, processes)
    profile = _profile(request, threads, processes, described, folder, audience)
    cluster = described or _this_machine(request, knobs, profile, processes, threads, folder, audience)
    question = Question(
        profile=profile,
        cluster=cluster,
        knobs=knobs,
        np=processes,
        batches=request.batch,
        scalings=request.scaling,
        calibration=residuals.calibration(knobs.engine) if described is None else None,
        efficiency_goal=request.efficiency,
    )
    prediction = predict(question)
    if threads > cores_here() and not request.profile and profile.device == "cpu":
        said = f"the profile used {threads} threads on {cores_here()} cores: take it on a machine like the cluster's"
        prediction = msgspec.structs.replace(prediction, warnings=(*prediction.warnings, said))
    if (best := step_to_draw(prediction)) is not None:
        save(predicted_step(profile, cluster, knobs, best.np, best.batch), folder / STEP)
    save(profile, folder / PROFILE)
    write_cluster(cluster, folder / CLUSTER)
    save(prediction, folder / PREDICTION)
    if request.verify:
        checks = _verify(request, prediction, threads, folder, audience)
        factor = prediction.calibration.factor if prediction.calibration else 1.0
        residuals.keep(checks, factor, knobs.engine, prediction.what)
        prediction = msgspec.structs.replace(prediction, checks=checks)
        save(prediction, folder / PREDICTION)
    return folder, prediction


def dry_run(request: EstimateRequest) -> list[str]:
    """What an estimate would do, one line for each part; nothing is started."""
    described = load_cluster(Path(request.cluster)) if request.cluster else None
    knobs, processes = _knobs(request), _processes(request, described)
    threads = _threads(request, described, processes)
    model = request.workload.model
    lines = [f"profile of {model}: " + (request.profile or f"taken here, {request.seconds:g} s, {threads} threads")]
    lines.append(f"cluster: {request.cluster or 'this machine, probed'}")
    lines.append(f"map: {knobs.engine} on {len(processes)} numbers of processes x {len(request.batch)} batch sizes")
    return [*lines, f"verified: {request.verify} cells, {request.launches} launches each"] if request.verify else lines


def _knobs(request: EstimateRequest) -> Knobs:
    if request.engine not in ("ddp", "horovod"):
        find_engine(request.engine)
        raise UsageError("--engine takes ddp or horovod: one process without an engine is the baseline anyway")
    knobs = parse_knobs(find_engine(request.engine), request.knobs)
    if request.engine == "horovod" and not request.cluster and "controller" not in knobs.values:
        controller = "mpi" if horovod_speaks_mpi(sys.executable) else "gloo"
        return Knobs(engine=knobs.engine, values={**knobs.values, "controller": controller})
    return knobs


def _slots_here(request: EstimateRequest) -> int:
    gpus = 0 if request.device == "cpu" else gpus_here()
    return gpus or cores_here()


def _processes(request: EstimateRequest, described: Cluster | None) -> tuple[int, ...]:
    slots = described.slots if described else _slots_here(request)
    if request.np:
        if max(request.np) > slots:
            where = f"{request.cluster} has" if described else "this machine has"
            raise UsageError(
                f"--np {max(request.np)} is more than the {slots} slots that {where}: "
                + (
                    "lower it, or describe more nodes"
                    if described
                    else "lower it, or describe a cluster with --cluster"
                )
            )
        return request.np
    if slots <= _MOST_ROWS:
        return tuple(range(1, slots + 1))
    return doublings(slots)


def _threads(request: EstimateRequest, described: Cluster | None, processes: Sequence[int]) -> int:
    if request.threads_per_rank:
        return request.threads_per_rank
    if described and described.device == "cpu":
        return max(described.cores_per_node // described.slots_per_node, 1)
    return max(cores_here() // max(min(max(processes), _slots_here(request)), 1), 1)


def _profile(
    request: EstimateRequest,
    threads: int,
    processes: Sequence[int],
    described: Cluster | None,
    folder: Path,
    audience: Audience,
) -> ModelProfile:
    """The user's profile when it fits the question, otherwise a new one."""
    if request.profile:
        profile = load(Path(request.profile), ModelProfile)
        check_profile(profile, request)
        return profile
    on_gpu = request.device != "cpu" and gpus_here() > 0
    together = min(max(processes), cores_here(), described.slots_per_node if described else 10**9)
    crowds = () if on_gpu else tuple(sorted({count for count in (2, 4, together) if 1 < count <= together}))
    batches = {
        -(-batch // count) if scaling == "strong" else batch
        for scaling in request.scaling
        for batch in request.batch
        for count in processes
        if scaling == "weak" or batch >= count
    }
    audience.stage(f"profile of {request.workload.model} on one process", request.seconds)
    task = ProfileTask(
        workload=request.workload,
        batches=tuple(sorted(batches)),
        device=request.device,
        seconds=request.seconds,
        repeats=request.repeats,
        crowds=crowds,
    )
    return take_profile(task, threads_per_rank=threads, folder=folder / "profile", tell=audience.tick)


def check_profile(profile: ModelProfile, request: EstimateRequest) -> None:
    """The profile is of this model and of the torch that is here."""
    if profile.workload != request.workload:
        given, found = request.workload.model, profile.workload.model
        other = f"{found}, not of {given}" if given != found else f"{found} with other arguments, inputs or optimizer"
        raise UsageError(f"{request.profile} is a profile of {other}: leave --profile out to take a new one")
    here = torch_version()
    if here and here.partition("+")[0] != profile.torch.partition("+")[0]:
        raise UsageError(
            f"{request.profile} was taken with torch {profile.torch} and here is {here}: "
            "leave --profile out to take a new one"
        )


def _this_machine(
    request: EstimateRequest,
    knobs: Knobs,
    profile: ModelProfile,
    processes: Sequence[int],
    threads: int,
    folder: Path,
    audience: Audience,
) -> Cluster:
    """One node: this one, probed as far as the question needs it."""
    slots = min(max(processes), _slots_here(request))
    backend = find_engine(knobs.engine).exchange(profile, knobs.values).backend
    asked = ProbeRequest(
        backends=(backend,) if slots > 1 else (),
        slots=slots,
        threads_per_rank=threads,
        device="cpu" if profile.device == "cpu" else "cuda",
        seconds=min(request.seconds / 4, 8.0),
        folder=str(folder / "probe"),
    )
    return probe_cluster(asked, audience)


def _verify(
    request: EstimateRequest, prediction: Prediction, threads: int, folder: Path, audience: Audience
) -> tuple[Check, ...]:
    """Run some cells for real, through measure."""
    chosen = cells_to_verify(prediction.cells, request.verify, _slots_here(request))
    if not chosen:
        raise UsageError("--verify needs a cell with 2 or more processes that this machine can run: name one with --np")
    checks = []
    for count in sorted({cell.np for cell in chosen}):
        cells = [cell for cell in chosen if cell.np == count]
        _, measurement = measure(
            MeasureRequest(
                workload=request.workload,
                np=(count,),
                batch=tuple(sorted({cell.batch for cell in cells})),
                engines=(request.engine,),
                knobs=request.knobs,
                threads_per_rank=threads,
                env=ALLOCATOR,
                device=request.device,
                timeout_s=request.timeout_s,
                launches=request.launches,
                folder=str(folder / f"verify-np{count}"),
            ),
            audience,
        )
        for cell in cells:
            found = [run.step_s for run in measurement.runs if run.point.batch == cell.batch]
            if found:
                checks.append(_check(cell, found))
    return tuple(checks)


def _check(cell: Cell, measured_s: Sequence[float]) -> Check:
    return Check(
        np=cell.np,
        batch=cell.batch,
        scaling=cell.scaling,
        predicted_s=cell.step_s,
        low_s=cell.low_s,
        high_s=cell.high_s,
        measured_s=median(measured_s),
        measured_low_s=min(measured_s),
        measured_high_s=max(measured_s),
    )


def step_to_draw(prediction: Prediction) -> Cell | None:
    """The recommended cell, or with one process the one next to it: a step without communication shows nothing."""
    advice = prediction.recommended
    if advice is None:
        return None
    several = [cell for cell in prediction.cells if cell.np > 1 and cell.fits and cell.scaling == advice.scaling]
    near = [cell for cell in several if cell.np == advice.np] or several
    return min(near, key=lambda cell: (cell.np, abs(cell.batch - advice.batch)), default=None)


def cells_to_verify(cells: Sequence[Cell], count: int, slots: int) -> list[Cell]:
    """Cells that can be run here, spread over the batch sizes, the most processes first."""
    possible = {(cell.np, cell.batch): cell for cell in cells if 1 < cell.np <= slots and cell.fits}
    by_np = {
        np: sorted((cell for cell in possible.values() if cell.np == np), key=lambda cell: cell.batch)
        for np in sorted({np for np, _ in possible}, reverse=True)
    }
    chosen: list[Cell] = []
    for of_np in by_np.values():
        left = min(count - len(chosen), len(of_np))
        places = {round(i * (len(of_np) - 1) / max(left - 1, 1)) for i in range(left)}
        chosen += [of_np[place] for place in sorted(places)]
    return chosen[:count]


def doublings(largest: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, and the largest itself."""
    return (*(2**power for power in range(largest.bit_length()) if 2**power < largest), largest)
