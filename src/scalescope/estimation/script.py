"""The map of a script: it runs here as rank 0 of some numbers of processes, and messages get the cost of a cluster."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scalescope import host
from scalescope.engines import find_engine
from scalescope.errors import ScalescopeError, UsageError
from scalescope.estimation.begun import is_begun, unfinished_estimate
from scalescope.estimation.places import processes_of, slots_here, slots_of_a_host, this_machine, threads_of
from scalescope.estimation.verification import check_of, corrected, deciding_cells
from scalescope.jobs.command import check_command_is_here, engine_of_script
from scalescope.jobs.folders import emptied, result_folder
from scalescope.jobs.own_ranks import starts_ranks_itself
from scalescope.jobs.rank_zero import run_as_rank_zero
from scalescope.launchers.runner import end_orphans
from scalescope.measurement.fingerprint import fingerprint_here
from scalescope.measurement.sweep import continue_measurement, measure
from scalescope.progress import Progress
from scalescope.records.cluster import Cluster, Operation
from scalescope.records.cluster_file import load_cluster, write_cluster
from scalescope.records.files import CLUSTER, PLAN, PREDICTION, STEP
from scalescope.records.prediction import Prediction
from scalescope.records.rank_zero import RankZero
from scalescope.records.request import EstimatePlan, EstimateRequest, MeasureRequest
from scalescope.records.store import append, drop_torn_line, in_folder, load_lines, save
from scalescope.simulator.recorded import operations_of
from scalescope.simulator.recorded_map import (
    RecordedQuestion,
    backend_of,
    kind_of_scaling,
    predict_recorded,
    recorded_timeline,
)
from scalescope.text import plural

RECORDS = "rank_zero.jsonl"
_STRIDE = 4  # Between two numbers of processes that run: what lies between follows from its neighbours
_RUN_S = 25.0  # About what a run takes that says nothing about itself
_VERIFIED_S, _FEWEST_VERIFIED, _MOST_VERIFIED = 10.0, 30, 300  # Seconds and steps of a launch that verifies a cell


def estimate_script(request: EstimateRequest, progress: Progress) -> Prediction:
    """The map of `request.command`; runs that are there count, so that the same request continues.

    Raises:
        UsageError: The script cannot run as rank 0 of N, or not on this machine.
        WorkFailed: It failed as every rank 0.
    """
    described, processes, threads = _checked(request)
    asked = msgspec.structs.replace(request, folder="", timeout_s=0.0)  # another patience asks for nothing else
    plan = EstimatePlan(request=asked, fingerprint=fingerprint_here(request.command, request.device))
    with result_folder("estimate", request.folder or unfinished_estimate(plan)) as folder:
        if is_begun(folder, plan):
            progress.note(f"Continuing the interrupted estimate in {folder}: what it finished is used again.")
            end_orphans(str(folder), request.hosts, request.ssh)
            drop_torn_line(folder / RECORDS)
        save(plan, folder / PLAN)
        runs = _Runs(request, described, threads, folder, progress)
        records = runs.every(processes)
        cluster = described or (load_cluster(folder / CLUSTER) if (folder / CLUSTER).exists() else None)
        if cluster is None:
            largest = max(records, key=lambda record: record.np)
            cluster = this_machine(
                request,
                backend_of(largest),
                _operations(records),
                device=largest.device,
                processes=processes,
                threads=threads,
                folder=folder / "probe",
                progress=progress,
            )
        write_cluster(cluster, folder / CLUSTER)
        question = RecordedQuestion(
            what=request.what,
            records=records,
            cluster=cluster,
            np=processes,
            threads_per_rank=threads,
            efficiency_goal=request.efficiency,
        )
        prediction = predict_recorded(question)
        said, cores = runs.failed, host.cores().physical
        if threads > cores and cluster.device == "cpu":
            few = f"the script used {threads} threads on {cores} cores: run it on a machine like the cluster's"
            said = (few, *said)
        prediction = msgspec.structs.replace(prediction, warnings=(*said, *prediction.warnings))
        save(prediction, folder / PREDICTION)
        if request.verify:
            prediction = _verified(request, prediction, threads, folder, progress)
        drawn = prediction.recommended.np if prediction.recommended else max(processes)
        step = recorded_timeline(question, drawn if drawn > 1 else max(processes))
        if step is not None:
            save(step, folder / STEP)
        save(prediction, folder / PREDICTION)
        save(msgspec.structs.replace(plan, finished=True), folder / PLAN)
    return in_folder(prediction, folder)


def dry_run_script(request: EstimateRequest) -> list[str]:
    """List the runs of an estimate of a script, a line each; nothing is started."""
    described, processes, threads = _checked(request)
    first = sizes_to_run(processes, _per_node(described, request))
    lines = [f"as rank 0 of {ranks:,}: {shlex.join(request.command)}, {plural(threads, 'thread')}" for ranks in first]
    lines.append(f"cluster: {request.cluster or 'this machine, probed'}")
    lines.append(f"map: {plural(len(processes), 'number')} of processes")
    if request.verify:
        lines.append(f"verified: {plural(request.verify, 'cell')}, {plural(request.launches, 'launch')} each")
    return [*lines, f"# {plural(len(first), 'run')} of the script, each stopped after some steps"]


def _checked(request: EstimateRequest) -> tuple[Cluster | None, tuple[int, ...], int]:
    """The described cluster, the numbers of processes and the threads of each, of a script that can run here."""
    check_script(request)
    described = _cluster_of(request)
    processes = _asked_processes(request, described)
    return described, processes, threads_of(request, described, processes)


def check_script(request: EstimateRequest) -> None:
    """Refuse a script that is not there, or whose engine is not torch's, before anything runs."""
    check_command_is_here(request.command)
    engine = find_engine(engine_of_script(request.command))
    if request.verify and starts_ranks_itself(request.command):
        raise UsageError("--verify starts the ranks itself: type the script alone, -- python train.py")
    if engine.package:
        raise UsageError(
            f"{engine.title} starts its own ranks, which nothing stands in for: scalescope study makes a map of such a "
            "script from a survey of real ranks, scalescope measure launches it"
        )


def sizes_to_run(processes: Sequence[int], per_node: int) -> tuple[int, ...]:
    """Numbers of processes as whose rank 0 the script runs: the ends, a full node, and 2, 8, 32, ..."""
    most = max(processes)
    found = {1, min(processes), most, *([per_node] if per_node < most else [])}
    size = 2
    while size < most:
        found.add(size)
        size *= _STRIDE
    return tuple(sorted(each for each in found if each == 1 or each >= min(processes)))


class _Runs:
    """Runs of the script, appended to the folder as they end."""

    def __init__(
        self,
        request: EstimateRequest,
        described: Cluster | None,
        threads: int,
        folder: Path,
        progress: Progress,
    ) -> None:
        self._request, self._threads = request, threads
        self._folder, self._progress = folder, progress
        self._per_node = _per_node(described, request)
        self._records = {record.np: record for record in load_lines(folder / RECORDS, RankZero)}
        self._tried = set(self._records)
        self._problems: list[ScalescopeError] = []

    def every(self, processes: Sequence[int]) -> tuple[RankZero, ...]:
        """The records of the sizes that decide: what a full map needs first, then what changes between them."""
        wanted = sizes_to_run(processes, self._per_node)
        # The largest first, then one process: a script that fails as both fails as all.
        order = [max(wanted), *(each for each in wanted if each != max(wanted))]
        for at, ranks in enumerate(order):
            self._one(ranks)
            if at == min(1, len(order) - 1) and not self._records:
                raise self._problems[0]
        for ranks in self._between(processes):
            self._one(ranks)
        if max(wanted) > 1 == max(self._records):
            raise UsageError(f"the script runs as one process only: {self._problems[0]}")
        return tuple(record for _, record in sorted(self._records.items()))

    @property
    def failed(self) -> tuple[str, ...]:
        """A line for each size that failed, where others did not."""
        return tuple(f"left out: {problem}" for problem in self._problems)

    def _between(self, processes: Sequence[int]) -> list[int]:
        """Doublings that neighbours do not tell: next to a size that fails or does not fit; all if batches shrink."""
        fits = {ranks for ranks, record in self._records.items() if record.fits}
        shrinks = kind_of_scaling({ranks: self._records[ranks].batch for ranks in fits}) == "strong"

        def is_told(size: int) -> bool:
            below, above = (
                max(each for each in self._tried if each < size),
                min(each for each in self._tried if each > size),
            )
            return {below, above} <= fits and not shrinks

        doubled = [2**power for power in range(1, max(self._records).bit_length())]
        wanted = [each for each in doubled if each < max(self._records) and each in processes]
        return [each for each in wanted if each not in self._tried and not is_told(each)]

    def _one(self, ranks: int) -> None:
        if ranks in self._tried:
            return
        self._tried.add(ranks)
        copies = self._copies(ranks)
        beside = f", {copies} at a time" if copies > 1 else ""
        self._progress.stage(f"as rank 0 of {ranks:,}{beside}: {self._request.what}", _RUN_S)
        try:
            record = run_as_rank_zero(
                self._request.command,
                np=ranks,
                what=self._request.what,
                ranks_per_node=min(ranks, self._per_node),
                copies=copies,
                threads=self._threads,
                device=self._request.device,
                folder=emptied(self._folder / f"rank-0-of-{ranks}", "launch"),
                timeout_s=self._request.timeout_s,
                allow_writes=self._request.allow_writes,
                progress=self._progress,
            )
        except ScalescopeError as problem:
            if isinstance(problem, UsageError) and not self._records:
                raise
            self._problems.append(problem)
            return
        append(record, self._folder / RECORDS)
        self._records[ranks] = record

    def _copies(self, ranks: int) -> int:
        """Processes that step at a time, as ranks of a node do that share its cores: no more than have cores here."""
        if self._request.device != "cpu" and host.gpus():
            return 1
        return max(min(ranks, self._per_node, host.cores().logical // self._threads), 1)


def _per_node(described: Cluster | None, request: EstimateRequest) -> int:
    return described.slots_per_node if described else slots_of_a_host(request)


def _cluster_of(request: EstimateRequest) -> Cluster | None:
    """The described cluster, whose devices have to be like this machine's."""
    if not request.cluster:
        return None
    described = load_cluster(Path(request.cluster))
    here = "gpu" if request.device != "cpu" and host.gpus() > 0 else "cpu"
    if described.device != here:
        name = described.device.upper()
        why = "--device cpu says otherwise" if host.gpus() else "this machine has none"
        if here == "gpu":
            raise UsageError(f"{request.cluster} describes CPUs and this machine has a GPU: add --device cpu")
        raise UsageError(f"{request.cluster} describes {name}s and {why}: run the script where there is one of them")
    return described


def _asked_processes(request: EstimateRequest, described: Cluster | None) -> tuple[int, ...]:
    """Numbers of processes of the map, of which --verify can launch one if it is asked for."""
    processes = processes_of(request, described)
    if request.verify and not any(1 < ranks <= slots_here(request) for ranks in processes):
        raise UsageError("--verify needs a size of 2 or more processes that this machine can run: name one with --np")
    return processes


def _operations(records: Sequence[RankZero]) -> tuple[Operation, ...]:
    """Collectives to probe: those that the script calls, and what any script calls."""
    return tuple(sorted({operation for record in records for operation in operations_of(record.messages)}))


def _verified(
    request: EstimateRequest, prediction: Prediction, threads: int, folder: Path, progress: Progress
) -> Prediction:
    """The map after the cells that decide were launched for real; cells of a script have no batch to be told."""
    chosen = deciding_cells(prediction, request.verify, slots_here(request))
    if not chosen:
        said = "nothing was verified: no size of 2 or more processes fits this machine"
        return msgspec.structs.replace(prediction, warnings=(said, *prediction.warnings))
    checks = []
    for cell in chosen:
        place = folder / f"verify-np{cell.np}"
        if (place / PLAN).exists():
            made = continue_measurement(place, {"timeout_s": request.timeout_s}, progress)
        else:
            asked = MeasureRequest(
                command=request.command,
                hosts=request.hosts,
                ssh=request.ssh,
                np=(cell.np,),
                threads_per_rank=threads,
                device=request.device,
                timeout_s=request.timeout_s,
                launches=request.launches,
                steps=min(max(round(_VERIFIED_S / cell.step_s), _FEWEST_VERIFIED), _MOST_VERIFIED),
                folder=str(place),
            )
            made = measure(asked, progress)
        if made.runs:
            checks.append(check_of(cell, made.runs, 0.0))
    return corrected(prediction, checks) if checks else prediction
