"""From a request to points and jobs: which configurations are launched, and with which settings."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from scalescope import host
from scalescope.engines import USUAL, find_engine
from scalescope.engines.base import parse_knobs
from scalescope.errors import UsageError
from scalescope.host import Cores, threads_per_rank
from scalescope.jobs.command import engine_of_script, fill_placeholders, interpreter_of, is_python, uses_placeholder
from scalescope.jobs.hosts import cores_of, slots_of_allocation, slurm_allocation
from scalescope.jobs.interleaved import Interleaved
from scalescope.jobs.own_ranks import places_ranks_elsewhere, starts_ranks_itself
from scalescope.jobs.request import check_baseline, check_batches, check_modes
from scalescope.jobs.train_model import TrainingTask
from scalescope.launchers import Launcher, find_launcher
from scalescope.launchers.srun import SRUN
from scalescope.records.job import NO_ENGINE, Host, Job, Knobs, fewest_nodes, place
from scalescope.records.request import QUICK_PRECISION, USUAL_BATCH, MeasureRequest
from scalescope.records.run import Point
from scalescope.records.site import load_site
from scalescope.text import knob_name

AGENT_HOOK = Path(__file__).parent.parent / "agent" / "hook"
BINDING = "none"  # Ranks may use any core of their host, under every launcher
CARRIED_TO_HOSTS = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
# Of ranks that train a MODEL, profile it or probe: freed memory stays with the process. Otherwise thousands of page
# faults in each step come and go by chance, and launches of one model differ by a quarter.
ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}
# torch's profiler leaves small pieces between freed tensors, so glibc finds no room for the same tensors in the next
# step and takes new memory, 50 MB in each: its faults are 500 times fewer in huge pages, and come before the steps.
TRACED_ALLOCATOR = {**ALLOCATOR, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "SCALESCOPE_ROOM": "1"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that are equal at every point of a measurement."""

    request: MeasureRequest
    folder: str
    python: str
    engines: tuple[str, ...]
    launchers: dict[str, str]  # Per engine
    knobs: dict[str, Knobs]  # Per engine
    hosts: tuple[Host, ...]
    slots: int
    # Ranks that each node of the allocation takes where the command places them; empty: not known.
    node_slots: tuple[int, ...] = ()
    threads_per_rank: int | None  # None: a launch line of the user decides it
    # Per host that gets ranks; this machine's name is empty. Nothing where ranks compute on GPUs.
    physical_cores: dict[str, int]
    named_hosts: bool  # Whether ranks may be on other machines than this one
    env: dict[str, str]
    container: tuple[str, ...] = ()  # Words before the command of every rank; empty: none
    cwd: str = ""
    since_ns: int = 0  # When the measurement began, nanoseconds since the epoch
    warnings: tuple[str, ...] = ()  # About every launch
    trace: str = ""  # Steps that every rank captures, as the agent reads it; empty: none
    as_it_is: str = ""  # Why the command is started without the launcher that was planned; empty: it is not


def resolve_here(request: MeasureRequest, folder: Path | None = None) -> Settings:
    """Everything that holds for all points, as launched from this machine."""
    folder = folder or Path(request.folder or "results").absolute()
    gpus = 0 if request.device == "cpu" else host.gpus()
    return resolve(request, folder, here=host.cores(), gpus=gpus, ask=cores_of)


# Names, the program that reaches them and a Python in; cores of each host and warnings out.
AskHosts = Callable[[Sequence[str], str, str], tuple[Mapping[str, Cores], Sequence[str]]]


def resolve(request: MeasureRequest, folder: Path, *, here: Cores, gpus: int, ask: AskHosts) -> Settings:
    """Decide everything that holds for all points; `here` and `gpus` are this machine's, `ask` asks other hosts."""
    check_modes(request)
    container = load_site(request.site).container if request.site else ()
    python = interpreter_of(request.command, sys.executable) if request.command and not container else sys.executable
    of_host = sys.executable if container else python
    if container:  # whose Python it is
        python = request.command[0] if is_python(request.command) else "python"
    engines = request.engines or ((USUAL.name,) if request.workload else (engine_of_script(request.command),))
    launchers, knobs = {}, {}
    for name in engines:
        as_it_is = request.command and (name == NO_ENGINE or starts_ranks_itself(request.command))
        launcher = request.launcher or ("own" if as_it_is else "")
        knobs[name] = _knobs(name, request, launcher, python, many=len(engines) > 1)
        launchers[name] = launcher or find_engine(name).launcher(knobs[name].values)
    told = uses_placeholder(request.command, "np", "per_node")
    if "own" in launchers.values() and len(set(request.np)) > 1 and not told:
        raise UsageError(
            "the command starts its ranks itself, so it must be told how many: leave torchrun out (-- python SCRIPT), "
            "put {np} where it takes their number (--nproc-per-node {np}), or name one number with --np"
        )
    elsewhere = places_ranks_elsewhere(request.command, request.launcher)
    node_slots = slots_of_allocation() if elsewhere else ()
    if request.per_node:
        node_slots = (request.per_node,) * len(node_slots)
    if elsewhere and not node_slots and uses_placeholder(request.command, "nodes", "per_node"):
        raise UsageError(
            "{nodes} and {per_node} come from a Slurm allocation: run this inside one, for example "
            "salloc -N 4 scalescope ..., or name one number with --np and write its nodes into the command"
        )
    in_allocation = any(find_launcher(name).scheduler for name in launchers.values())
    hosts, env = request.hosts, {}
    allocated: Mapping[str, int] = {}  # Cores that the job has on its nodes
    if in_allocation:
        allocation = slurm_allocation(request.per_node)
        hosts, allocated = hosts or allocation.hosts, allocation.cores
        env["MASTER_ADDR"] = allocation.first_address
    for name in launchers.values():
        if hosts and not find_launcher(name).reaches_hosts:
            raise UsageError("the command places its ranks itself: name hosts there and leave --hosts out")
        if hosts and find_launcher(name).only_ssh and Path(request.ssh).name != "ssh":
            raise UsageError(f"{name} reaches hosts with ssh alone: leave --ssh out, or use --launcher mpirun")
    slots = sum(each.slots for each in hosts) if hosts else max(request.np) if elsewhere else gpus or here.logical
    named_hosts = elsewhere or (bool(hosts) and not env.get("MASTER_ADDR", "").startswith("127."))
    if hosts and named_hosts:
        env |= {name: os.environ[name] for name in CARRIED_TO_HOSTS if name in os.environ}
    placed = dict(place(max(request.np), hosts, oversubscribe=request.oversubscribe)) or {"": max(request.np)}
    cores: Mapping[str, Cores] = {} if elsewhere else dict.fromkeys(placed, here)
    warnings: Sequence[str] = ()
    if hosts and named_hosts:
        cores, warnings = ask(tuple(placed), SRUN.program if in_allocation else request.ssh, of_host)
    physical = {name: found.physical for name, found in cores.items()}
    if in_allocation:  # a node may have more cores than Slurm gave of it
        given = {each.name: allocated.get(each.name, each.slots) for each in hosts}
        physical = {name: min(cores, given[name]) for name, cores in physical.items()}
    fullest = request.per_node or 0  # equal in every job of a measurement, whatever its points are
    threads = [threads_per_rank(physical[name], max(n, fullest)) for name, n in placed.items() if name in physical]
    return Settings(
        request=request,
        folder=str(folder),
        python=python,
        engines=engines,
        launchers=launchers,
        knobs=knobs,
        hosts=hosts,
        slots=slots,
        node_slots=node_slots,
        threads_per_rank=request.threads_per_rank or (min(threads) if threads else None),
        physical_cores={} if gpus else physical,
        named_hosts=named_hosts,
        env=env,
        container=container,
        warnings=tuple(warnings),
    )


def started_as_it_is(settings: Settings, why: str) -> Settings:
    """The same, with the command started without a launcher of ours."""
    return msgspec.structs.replace(settings, launchers=dict.fromkeys(settings.launchers, "own"), as_it_is=why)


def _knobs(name: str, request: MeasureRequest, launcher: str, python: str, *, many: bool) -> Knobs:
    """The user's knobs of one engine, with those that follow from the launcher."""
    engine = find_engine(name)
    own_names = {knob.name for knob in engine.knobs}
    wanted = [text for text in request.knobs if not many or knob_name(text) in own_names]
    knobs = parse_knobs(engine, wanted)
    if request.command and wanted and not engine.sets_in_scripts:
        raise UsageError(f"knobs of {name} go with a MODEL: set {knob_name(wanted[0])} in your script, or leave it out")
    starter = find_launcher(launcher) if launcher else None
    return Knobs(engine=name, values=engine.fitted(knobs.values, starter, lambda: engine.built_with(python, "mpi")))


def points(settings: Settings) -> tuple[Point, ...]:
    """The configurations to launch, the baseline first."""
    request = settings.request
    check_batches(request.command, request.batch)
    check_baseline(request)
    if uses_placeholder(request.command, "per_node") and not uses_placeholder(request.command, "np"):
        for np in request.np:
            nodes, per_node = nodes_of(settings, np)
            if nodes * per_node != np:
                raise UsageError(
                    f"--np {np} does not fill {nodes} nodes evenly, and {{per_node}} alone says {nodes * per_node}: "
                    f"tell the command {{np}} as well (srun -n {{np}}), or leave {np} out of --np"
                )
    planned = []
    assumed = bool(request.command) and not request.engines
    for batch in batches(request):
        for np in request.np:
            alone = [NO_ENGINE] if request.workload and np == 1 else []
            for scaling in request.scaling:
                share = _share(batch, np) if scaling == "strong" else batch
                for engine in [*alone, *settings.engines]:
                    threads = settings.threads_per_rank
                    planned.append(Point(engine=engine, np=np, batch=share, threads_per_rank=threads, assumed=assumed))
    most = max(point.np for point in planned)
    if most > settings.slots and not request.oversubscribe:
        raise UsageError(
            f"--np {most}: there is room for {settings.slots} (one process per GPU or core, or the slots of --hosts): "
            "lower it, name more with --hosts, or allow it with --oversubscribe"
        )
    return tuple(dict.fromkeys(planned))


def batches(request: MeasureRequest) -> Sequence[int | None]:
    """The batch sizes as asked; None when the script alone knows."""
    return request.batch or ((None,) if request.command else (USUAL_BATCH,))


def _share(batch: int | None, np: int) -> int | None:
    """The part of a global batch that one of np processes gets."""
    if batch is None or batch % np == 0:
        return None if batch is None else batch // np
    below, above = batch // np * np, (batch // np + 1) * np
    near = f"{below} or {above}" if below else str(above)
    raise UsageError(
        f"--batch {batch} cannot be shared by {np} processes: strong scaling divides the batch evenly among them; "
        f"take {near}, or leave {np} out of --np"
    )


def launcher_of(settings: Settings, point: Point) -> Launcher:
    """The baseline is started like the first engine's ranks."""
    return find_launcher(settings.launchers.get(point.engine, settings.launchers[settings.engines[0]]))


def nodes_of(settings: Settings, np: int) -> tuple[int, int]:
    """Nodes that np ranks need, and the most ranks that one of them gets."""
    placed = place(np, settings.hosts, oversubscribe=settings.request.oversubscribe)
    if placed:
        return len(placed), max(count for _, count in placed)
    return fewest_nodes(np, settings.node_slots or (np,))


def make_job(settings: Settings, point: Point, folder: Path, launch: str, port: int) -> Job:
    """One launch of a point."""
    request = settings.request
    knobs = settings.knobs.get(point.engine, Knobs(engine=point.engine))
    around = knobs if point.engine in settings.knobs else settings.knobs[settings.engines[0]]
    path = {**os.environ, **request.env}.get("PYTHONPATH", "")
    agent = {"PYTHONPATH": os.pathsep.join([str(AGENT_HOOK), path]) if path else str(AGENT_HOOK)}
    engine, allocator = find_engine(point.engine), TRACED_ALLOCATOR if settings.trace else ALLOCATOR
    variables = engine.environment(knobs.values, named_hosts=settings.named_hosts)
    if launcher_of(settings, point).name == "own":  # the command gets its knobs and nothing else
        named = {knob.variable for knob in engine.knobs if knob.name in knobs.values}
        variables = {name: value for name, value in variables.items() if name in named}
    if request.command:
        allocator = {}  # a user's script runs as it is
        nodes, per_node = nodes_of(settings, point.np)
        placeholders = {
            "np": point.np,
            "nodes": nodes,
            "per_node": per_node,
            "batch": point.batch,
            "global_batch": point.global_batch,
            "run_dir": str(folder),
            "launch": folder.name,
        }
        command = fill_placeholders(request.command, placeholders)
        agent["SCALESCOPE_SINCE_NS"] = str(settings.since_ns)
        agent["SCALESCOPE_STEPS"] = str(request.steps or "")
        if in_ranks := engine.in_ranks(knobs.values):
            agent["SCALESCOPE_KNOBS"] = json.dumps(in_ranks)
    else:
        command = (settings.python, "-m", "scalescope.jobs.train_model", str(folder / "task.json"))
    if settings.trace:
        agent["SCALESCOPE_TRACE"] = settings.trace
    return Job(
        command=command,
        np=point.np,
        knobs=around,
        container=settings.container,
        folder=str(folder),
        launch=launch,
        threads_per_rank=settings.threads_per_rank,
        hosts=settings.hosts,
        env={**allocator, **variables, **settings.env, **request.env, **agent},
        launcher_args=request.launcher_args,
        port=port,
        ssh=request.ssh,
        python=settings.python,
        cwd=settings.cwd or str(Path.cwd()),
        oversubscribe=request.oversubscribe,
    )


def make_task(settings: Settings, point: Point, steps: int) -> TrainingTask:
    """The task that each rank of a MODEL job reads."""
    request = settings.request
    assert request.workload
    assert point.batch
    interleaved = None
    if request.quick:
        launches = len(points(settings)) * request.most_launches
        share_s = request.budget_s / launches if request.budget_s else None
        interleaved = Interleaved(precision=QUICK_PRECISION, seconds=share_s)
    values = settings.knobs.get(point.engine, Knobs(engine=point.engine)).values
    return TrainingTask(
        workload=request.workload,
        engine=point.engine,
        knobs=dict(values),
        batch=point.batch,
        steps=steps,
        may_end_early=request.steps is None,
        device=request.device,
        interleaved=interleaved,
    )
