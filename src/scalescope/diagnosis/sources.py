"""Files that explain takes: traces, run folders, tables, logs. The kind is recognised, read and explained.

Traces may come with the log of the same run, which tells its epochs, and with an estimate to compare them with. What
reads tables and logs is imported where they are read: traces alone do without it.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from scalescope.diagnosis.explanation import explained
from scalescope.diagnosis.findings import find
from scalescope.diagnosis.findings.case import Case
from scalescope.diagnosis.findings.network import slow_network
from scalescope.diagnosis.replay import replay_of
from scalescope.diagnosis.traces import JobTraces, read_job, traces_in, unread_in
from scalescope.engines import engine_named, exchanging, find_engine
from scalescope.errors import UsageError
from scalescope.named_paths import reading
from scalescope.records.autotune import Autotune
from scalescope.records.cluster import Operation
from scalescope.records.explanation import TRACE_RECORD, Explanation, Network
from scalescope.records.files import CLUSTER, MEASUREMENT, PROFILE, SCALING
from scalescope.records.job import NO_ENGINE, Knobs
from scalescope.records.profile import ModelProfile
from scalescope.records.scaling import Scaling
from scalescope.records.store import load, writing
from scalescope.records.timeline import Span
from scalescope.text import plain, plural
from scalescope.traces.export import HEAD, export
from scalescope.traces.nccl_log import is_nccl_log, read_nccl_log

_MOST_OF_LOG = 32 << 20  # Bytes of a log in which lines of NCCL are looked for
_OPERATIONS: dict[str, Operation] = {"allreduce": "allreduce", "broadcast": "broadcast"}


def explain(
    paths: Sequence[Path],
    *,
    np: Sequence[int] = (),
    pattern: str = "",
    estimate: Path | None = None,
    export_to: Path | None = None,
) -> Scaling | Explanation | Autotune:
    """Read these files: traces, or curves of tables, logs and measurements.

    Args:
        paths: Traces of one job and at most one log of it; or tables, logs or measurements.
        np: Processes of every log, in the same order.
        pattern: What a line of the logs looks like, where the usual ones do not fit.
        estimate: A folder of `scalescope estimate` or a cluster file to compare traces with.
        export_to: Where to write the steps of all ranks for Perfetto.

    Raises:
        UsageError: When the files do not belong together, cannot be read, or an option goes with traces only.
    """
    traced = [path for path in paths if _holds_traces(path)]
    others = [path for path in paths if path not in traced]
    nccl_logs = [path for path in others if path.is_file() and is_nccl_log(_text_of(path))]
    if traced:
        logs = [path for path in others if path not in nccl_logs]
        if len(logs) > 1:
            names = ", ".join(plain(path.name) for path in logs)
            raise UsageError(f"traces may come with one log of the same run, not with {len(logs)} ({names})")
        log, network = (logs[0] if logs else None), (_network_of(nccl_logs) if nccl_logs else None)
        return explain_traces(traced, log=log, pattern=pattern, estimate=estimate, export_to=export_to, network=network)
    if unread := [why for path in paths if not _holds_curves(path) for why in unread_in(path)]:
        raise UsageError(f"no trace was found: {unread[0]}")
    if estimate is not None:
        raise UsageError("--estimate goes with traces: name a trace or a folder of scalescope explain -- COMMAND")
    if export_to is not None:
        raise UsageError("--export goes with traces: name a trace, or -- and a command")
    from scalescope.logs.autotune import read_autotune
    from scalescope.logs.autotune_log import is_autotune_log
    from scalescope.logs.sources import explain as explain_scaling

    if len(paths) == 1 and paths[0].is_file() and is_autotune_log(_text_of(paths[0], 4096)):
        return read_autotune(paths[0])
    try:
        scaling = explain_scaling(paths, np=np, pattern=pattern)
    except UsageError:
        if not nccl_logs or len(nccl_logs) < len(paths):
            raise
        return explain_nccl(nccl_logs)
    if nccl_logs:
        advice = tuple(f"{finding.sentence} {finding.change}" for finding in explain_nccl(nccl_logs).findings)
        scaling = msgspec.structs.replace(scaling, findings=(*scaling.findings, *advice))
    return scaling


def explain_nccl(paths: Sequence[Path]) -> Explanation:
    """Explain the network of one job from its NCCL logs, with what to change; there are no steps in them."""
    network = _network_of(paths)
    explanation = Explanation(
        kind="NCCL log",
        what=", ".join(path.name for path in paths),
        files=tuple(map(str, paths)),
        ranks=(),
        world_size=None,
        engine=NO_ENGINE,
        backend="nccl",
        device="cuda",
        steps_from="none",
        warmup_steps=0,
        step_s=None,
        accounting=None,
        network=network,
    )
    finding = slow_network(Case(explanation, JobTraces("NCCL log", ()), None))
    return msgspec.structs.replace(explanation, findings=(finding,) if finding else ())


def _network_of(paths: Sequence[Path]) -> Network | None:
    return read_nccl_log(chain.from_iterable(_text_of(path).splitlines() for path in paths))


def _text_of(path: Path, most: int = _MOST_OF_LOG) -> str:
    """The first bytes of a log, whatever follows them: NCCL speaks while it starts, a killed job may leave zeros."""
    with reading(path), open(path, "rb") as file:
        return file.read(most).decode("utf-8", "replace")


def explain_traces(
    paths: Sequence[Path],
    *,
    log: Path | None = None,
    pattern: str = "",
    estimate: Path | None = None,
    export_to: Path | None = None,
    network: Network | None = None,
) -> Explanation:
    """Traces of one job, with findings; `network` is what NCCL's log says of it."""
    job = read_job(paths)
    if log is None:
        explanation = explained(job)
    else:
        from scalescope.diagnosis.log_epochs import log_of, with_epochs, without_testing

        from_log = log_of(job, log, pattern)
        job = without_testing(job, from_log)
        explanation = with_epochs(explained(job), job, from_log)
    if estimate is not None:
        explanation = with_estimate(explanation, job, estimate)
    if export_to is not None:
        _export(job, export_to)
    if network is not None:
        explanation = msgspec.structs.replace(explanation, network=network)
    explanation = msgspec.structs.replace(explanation, notes=(*explanation.notes, *_passed_over(paths)))
    case = Case(explanation, job, replay_of(job, explanation))
    return msgspec.structs.replace(explanation, findings=find(case))


def _passed_over(paths: Sequence[Path]) -> list[str]:
    """Count the files of a named folder that are neither traces nor reported as unreadable."""
    told = []
    for folder in paths:
        if not folder.is_dir() or (folder / TRACE_RECORD).is_file():
            continue
        files = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
        others = len(files) - len(traces_in(folder)) - len(unread_in(folder))
        if others > 0:
            told.append(f"{plural(others, 'other file')} of {plain(folder.name)} passed over: no traces")
    return told


def _holds_traces(path: Path) -> bool:
    if path.is_dir():
        return (path / TRACE_RECORD).is_file() or (not _holds_curves(path) and bool(traces_in(path)))
    return bool(traces_in(path))


def _holds_curves(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (MEASUREMENT, SCALING))


def check_export(path: Path) -> None:
    """An earlier export may be replaced, anything else not: a user's traces look much the same."""
    if path.is_dir():
        raise UsageError(f"--export '{path}' is a folder: name a file, such as {path / 'steps.json'}")
    if not path.is_file():
        return
    with reading(path), open(path, "rb") as file:
        head = file.read(len(HEAD))
    if head and head != HEAD:
        raise UsageError(f"--export '{path}' exists and is no export of scalescope explain: choose another name")


def _export(job: JobTraces, path: Path) -> None:
    """Writes the traced steps of every rank, on one clock."""
    check_export(path)
    if not any(len(trace.starts_s) for trace in job.traces):
        raise UsageError("there are no steps to export: the traces have none")

    def spans() -> Iterator[Span]:
        for at, trace in enumerate(job.traces):
            if len(trace.starts_s):
                yield from job.spans(at, float(trace.starts_s[0]), float(trace.ends_s[-1]))

    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        export(spans(), path, job.clocks)


def with_estimate(explanation: Explanation, job: JobTraces, place: Path) -> Explanation:
    """`place` is a folder of scalescope estimate, or a cluster.toml of scalescope probe."""
    file = place / CLUSTER if place.is_dir() else place
    if not file.is_file():
        raise UsageError(f"{place.name} holds no cluster.toml: name a folder of scalescope estimate, or a cluster.toml")
    from scalescope.records.cluster_file import load_cluster
    from scalescope.simulator.costs import CostModel
    from scalescope.simulator.step import predicted_step

    cluster = load_cluster(file)
    backend = f"{engine_named(explanation.engine).backend_prefix}{explanation.backend}"
    transfers = list(explanation.transfers)
    if cluster.inside is not None or any(costs.backend == backend for costs in cluster.costs):
        for at, transfer in enumerate(transfers):
            if operation := _OPERATIONS.get(transfer.operation):
                costs = CostModel(cluster, backend, operation)
                seconds = float(costs.seconds(float(transfer.bytes), transfer.ranks, job.hosts))
                transfers[at] = msgspec.structs.replace(transfer, probed_s=seconds)
    explanation = msgspec.structs.replace(explanation, transfers=tuple(transfers))
    profile_file = file.parent / PROFILE
    batch = job.record.point.batch if job.record else None
    if not profile_file.is_file() or batch is None or explanation.engine not in exchanging():
        return explanation
    knobs = Knobs(engine=explanation.engine, values=find_engine(explanation.engine).values_for(explanation.backend))
    ranks = explanation.world_size or len(explanation.ranks)
    predicted = predicted_step(load(profile_file, ModelProfile), cluster, knobs, ranks, batch)
    return msgspec.structs.replace(explanation, predicted_step=predicted)
