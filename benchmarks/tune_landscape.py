"""Real landscapes: settings measured by turns while one training runs, switched as `scalescope tune` does it."""

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import msgspec

from scalescope.engines import ENGINES
from scalescope.jobs.launch import run_job
from scalescope.jobs.plan import Settings, points, resolve_here
from scalescope.progress import Progress
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Point
from scalescope.records.tuning import TuneRequest, Values
from scalescope.tuner.controller_files import ControllerFiles
from scalescope.tuner.search import ONLINE
from scalescope.tuner.space import Space, online_space

ON_REQUEST = tuple(knob.name for engine in ENGINES.values() for knob in engine.knobs if knob.on_request)

TOLERANCE = 0.02
AGAIN = 3  # The best cells of the grid are measured once more, beside the default
_FEWEST = 4  # Values of a size or a time that a part of a space keeps
Round = dict[int, list[float]]  # Cell -> the steps of one block; no steps: the setting failed


class Landscape(msgspec.Struct, kw_only=True):
    """What every setting of a space really took."""

    space: Space
    survey: dict[str, Any] | None
    predicted: list[float] | None
    all_settings: int  # Of the whole space, of which this one may be a part
    grid: list[Round] = []
    again: list[Round] = []

    def blocks(self, cell: int) -> list[list[float]]:
        """All blocks of a cell."""
        return [found[cell] for found in (*self.grid, *self.again) if cell in found]

    def cell_of(self, values: Values) -> int | None:
        """Where a setting stands in the space."""
        wanted = self.space.complete(values)
        cells = (cell for cell, each in enumerate(self.space.settings) if self.space.complete(each) == wanted)
        return next(cells, None)

    def mean_over_median(self) -> float:
        """Of the default's steps: a step is told by its median, throughput is made by their mean."""
        blocks = self.blocks(0)
        return fmean(step for block in blocks for step in block) / _mean(blocks)

    def best_of_grid(self, count: int) -> list[int]:
        """The fastest cells, before they are measured again."""
        cells = range(len(self.space.settings))
        return sorted(cells, key=lambda cell: _mean([found[cell] for found in self.grid if cell in found]))[:count]


class Truth(NamedTuple):
    """Step times as well as they are known; what was measured again counts by that alone."""

    step_s: list[float]
    best: int
    tolerance: float  # 2 %, or two standard errors of the best
    good: frozenset[int]

    def gain(self, cell: int) -> float:
        """Over the default."""
        return self.step_s[0] / self.step_s[cell] - 1

    def regret(self, cell: int) -> float:
        """How much longer than the best it takes; nothing is better than what was best when measured again."""
        return max(self.step_s[cell] / self.step_s[self.best] - 1, 0.0)


def truth_of(landscape: Landscape) -> Truth:
    """The best is the fastest of those that were measured again."""
    step_s = []
    again = {cell for found in landscape.again for cell in found}
    for cell in range(len(landscape.space.settings)):
        rounds = landscape.again if cell in again else landscape.grid
        step_s.append(_mean([found[cell] for found in rounds if cell in found]))
    best = min(again, key=lambda cell: step_s[cell])
    medians = [median(found[best]) for found in landscape.again if found.get(best)]
    error = stdev(medians) / math.sqrt(len(medians)) / step_s[best] if len(medians) > 1 else 0.0
    tolerance = max(TOLERANCE, 2 * error)
    good = frozenset(cell for cell, each in enumerate(step_s) if each <= step_s[best] * (1 + tolerance))
    return Truth(step_s, best, tolerance, good)


def thinned(space: Space, most: int, wanted: Sequence[Values]) -> Space:
    """A part of a space: every second value of the longest knob, again and again, until few settings are left.

    The default's own values stay, and so do the settings that are wanted.
    """
    kept = {knob.name: list(knob.values) for knob in space.knobs}
    while len(found := _inside(space, kept)) > most:
        numbers = [knob for knob in space.knobs if knob.logarithmic and len(kept[knob.name]) > _FEWEST]
        if not numbers:
            break
        longest = max(numbers, key=lambda knob: len(kept[knob.name]))
        values = kept[longest.name]
        kept[longest.name] = [value for at, value in enumerate(values) if at % 2 == 0 or value == longest.default]
    known = [space.complete(values) for values in found]
    extra = [values for values in wanted if space.complete(values) not in known]
    settings = (*found, *extra)
    used = {knob.name: {space.complete(values)[knob.name] for values in settings} for knob in space.knobs}
    knobs = [
        msgspec.structs.replace(knob, values=tuple(value for value in knob.values if value in used[knob.name]))
        for knob in space.knobs
    ]
    return msgspec.structs.replace(space, settings=settings, knobs=tuple(knobs))


def _inside(space: Space, kept: dict[str, list[Any]]) -> list[Values]:
    complete = [(values, space.complete(values)) for values in space.settings]
    return [values for values, whole in complete if all(whole.get(name) in left for name, left in kept.items())]


class Plan(NamedTuple):
    """How a grid is measured."""

    rounds: int
    again: int  # Rounds in which the best cells, the default and what was chosen meet once more
    most_cells: int


class OutOfTime(Exception):
    """The section's time is over; what is measured is kept."""


def measure(
    landscape: Landscape,
    plan: Plan,
    path: Path,
    chosen: Sequence[Values],
    measure_round: Callable[[list[int]], Round],
    until: float,
) -> None:
    """The rounds that are not there yet, cells in a new order each time; every round is kept at once."""
    cells = list(range(len(landscape.space.settings)))
    while len(landscape.grid) < plan.rounds:
        landscape.grid.append(_shuffled(cells, len(landscape.grid), measure_round, until))
        save(landscape, path)
    picked = {landscape.cell_of(values) for values in chosen} - {None}
    contenders = sorted({0, *landscape.best_of_grid(AGAIN), *(cell for cell in picked if cell is not None)})
    while len(landscape.again) < plan.again:
        landscape.again.append(_shuffled(contenders, 1000 + len(landscape.again), measure_round, until))
        save(landscape, path)


def save(landscape: Landscape, path: Path) -> None:
    """Keep what is measured so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".partial").write_bytes(msgspec.json.encode(landscape))
    path.with_suffix(".partial").replace(path)


def load(path: Path) -> Landscape | None:
    """What was measured before, if anything was."""
    return msgspec.json.decode(path.read_bytes(), type=Landscape) if path.exists() else None


def _shuffled(cells: list[int], seed: int, measure_round: Callable[[list[int]], Round], until: float) -> Round:
    if time.monotonic() > until:
        raise OutOfTime
    return measure_round(random.Random(seed).sample(cells, len(cells)))


def _mean(blocks: list[list[float]]) -> float:
    """Of the medians; a setting that failed takes for ever."""
    return fmean(median(block) for block in blocks) if blocks and all(blocks) else math.inf


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
