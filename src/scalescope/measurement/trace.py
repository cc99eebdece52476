"""One traced launch of a model or a command, to be explained."""

from pathlib import Path

import msgspec

from scalescope.engines import find_engine
from scalescope.jobs.environment import shown_commands
from scalescope.jobs.launch import rehearse
from scalescope.jobs.plan import Settings, launcher_of, make_job, points
from scalescope.measurement.capture import choose_window, trace_folder, traced_launch
from scalescope.measurement.resume import begin
from scalescope.measurement.sweep import check_reachable, check_requirements, settle_here
from scalescope.progress import Progress
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Point


def traced_run(request: MeasureRequest, progress: Progress) -> Path:
    """Launch it once with capture; the folder that holds traced.json and what it names."""
    request = msgspec.structs.replace(request, trace=True, quick=False)
    settings, point = _settled(request)
    check_requirements(settings)
    with begin(request, "explain") as started:
        folder, plan = started.folder, started.plan
        settings = msgspec.structs.replace(settings, since_ns=plan.since_ns, cwd=plan.cwd, folder=str(folder))
        check_reachable(settings, point, folder)
        if request.workload:
            rehearse(settings, [point])
        return traced_launch(settings, point, None, progress)[0]


def traced_commands(request: MeasureRequest) -> list[str]:
    """What a traced launch would start, as a shell takes it; nothing is started."""
    request = msgspec.structs.replace(request, trace=True, quick=False)
    settings, point = _settled(request)
    timeline = find_engine(point.engine).tracer == "timeline"
    window = choose_window(
        timeline=timeline, most=request.steps, from_start=request.from_start, cpu_detail=request.cpu_detail
    )
    steps = window.total(timeline=timeline)
    limited = msgspec.structs.replace(settings.request, steps=steps)
    settings = msgspec.structs.replace(settings, trace=str(window), request=limited)
    job = make_job(settings, point, trace_folder(settings, point), "LAUNCH", request.port or 29500)
    return shown_commands(launcher_of(settings, point), job, request.env)


def _settled(request: MeasureRequest) -> tuple[Settings, Point]:
    """The one point: the largest number of processes; without an engine where one process needs none."""
    request = msgspec.structs.replace(request, np=(max(request.np),))
    settings = settle_here(request, Path(request.folder or "results").absolute())
    planned = points(settings)
    return settings, planned[-1 if request.engines else 0]
