"""A training whose settings are switched while it runs, as `scalescope tune` does it, for grids and long series."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.tune_grid import Landscape, Plan, Round, load, measure, save, thinned
from scalescope.jobs.launch import run_job
from scalescope.jobs.plan import Settings, points, resolve_here
from scalescope.progress import Progress
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Point
from scalescope.records.tuning import TuneRequest, Values
from scalescope.tuner.controller_files import ControllerFiles
from scalescope.tuner.search import ONLINE
from scalescope.tuner.space import ON_REQUEST, Space, online_space

_FOREVER = 1_000_000_000
_WARMUP_STEPS = 20
_SURVEY_STEPS = 3


class Beside(Progress):
    """Progress of a launch that ends when the work next to it has failed."""

    def __init__(self, beside: "Future[None]") -> None:
        self.beside = beside

    def advance(self, steps: int) -> None:
        """Steps done."""
        if self.beside.done():
            self.beside.result()


def settled(request: TuneRequest, folder: Path) -> tuple[Settings, Point]:
    """The settings of every launch and the point that is launched."""
    settings = resolve_here(
        MeasureRequest(
            workload=request.workload,
            np=(request.np,),
            batch=(request.batch,) if request.batch else (),
            engines=(request.engine,) if request.engine else (),
            launcher=request.launcher,
            hosts=request.hosts,
            threads_per_rank=request.threads_per_rank,
            device="cpu",
            folder=str(folder),
        ),
        folder.absolute(),
    )
    return msgspec.structs.replace(settings, cwd=str(Path.cwd())), points(settings)[-1]


class Trained:
    """A running training: blocks of any setting, in the order in which they are asked for."""

    def __init__(self, files: ControllerFiles) -> None:
        self._files = files
        self._hello = files.hello()
        if self._hello.refused:
            raise RuntimeError(self._hello.refused)
        files.send("warmup", steps=_WARMUP_STEPS)
        files.send("survey", steps=_SURVEY_STEPS)
        self.survey: dict[str, Any] = files.survey()
        self.space: Space = online_space(self._hello, self.survey, {}, ON_REQUEST)
        self.most_switches = self._hello.most_switches

    def blocks(self, settings: Sequence[Values], steps: int) -> list[list[float]]:
        """All directives are there at once, so that no rank waits for the next one."""
        asked = {"discard": ONLINE.discard, "steps": steps, "check": ONLINE.check, "limit_ns": None}
        numbers = [self._files.send("sample", values=values, **asked) for values in settings]
        reports = [self._files.sample(number) for number in numbers]
        failed = [report.problem for report in reports if report.problem]
        if failed:
            raise RuntimeError(failed[0])
        return [[ns * 1e-9 for ns in report.step_ns] for report in reports]


def while_training(request: TuneRequest, folder: Path, work: Callable[[Trained], None]) -> None:
    """Launch the training, do the work beside it, and end it."""
    settings, point = settled(request, folder)
    asked = msgspec.structs.replace(settings.request, env={**settings.request.env, "SCALESCOPE_TUNE": "1"})
    over, training = threading.Event(), folder.absolute() / "training"

    def drive() -> None:
        files = ControllerFiles(training, over.is_set)
        try:
            work(Trained(files))
        finally:
            files.send("stop")

    for left in (training / "reports.jsonl", *training.glob("directive-*")):
        left.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(drive)
        try:
            launched = run_job(
                msgspec.structs.replace(settings, request=asked), point, training, _FOREVER, Beside(beside)
            )
        finally:
            over.set()
        beside.result()
    if launched.problem:
        raise RuntimeError(f"{launched.problem}\n{launched.details}")


def landscape_online(
    request: TuneRequest, plan: Plan, steps: int, folder: Path, chosen: Sequence[Values], until: float
) -> Landscape:
    """The grid of one training, then its best cells once more; a cut one goes on in another launch.

    Where an engine allows few switches, as Horovod does, every launch makes as many rounds as it can.
    """
    path = folder / "landscape.json"
    found = load(path)

    def work(trained: Trained) -> None:
        nonlocal found
        if found is None:
            space = thinned(trained.space, plan.most_cells, chosen)
            predicted = space.predict(trained.survey)
            count = len(trained.space.settings)
            found = Landscape(space=space, survey=trained.survey, predicted=predicted, all_settings=count)
            save(found, path)
        settings = found.space.settings

        def measure_round(cells: list[int]) -> Round:
            blocks = trained.blocks([settings[cell] for cell in cells], steps)
            return dict(zip(cells, blocks, strict=True))

        measure(found, _part(plan, found, trained.most_switches), path, chosen, measure_round, until)

    while found is None or len(found.grid) < plan.rounds or len(found.again) < plan.again:
        while_training(request, folder, work)
    return found


def _part(plan: Plan, found: Landscape, most_switches: int | None) -> Plan:
    """What one launch can do of a plan."""
    if most_switches is None:
        return plan
    if len(found.grid) < plan.rounds:
        rounds = len(found.grid) + max(most_switches // len(found.space.settings), 1)
        return plan._replace(rounds=min(rounds, plan.rounds), again=0)
    return plan._replace(again=min(len(found.again) + most_switches // 6, plan.again))
