"""Landscapes of real trainings, and searches over them.

`tune_record` measures the landscapes that benchmarks/landscapes does not hold yet: settings in turn while one training
runs, switched as `scalescope tune` does it. `tune_recorded` searches them; a sample is a block drawn from the real
blocks of its setting.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple, Protocol

import msgspec
from threadpoolctl import threadpool_limits

from benchmarks.shared import LONGEST_S
from scalescope.engines import ENGINES
from scalescope.jobs.launch import run_job
from scalescope.jobs.plan import points, resolve_here
from scalescope.progress import Progress
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import MeasureRequest
from scalescope.records.tuning import TuneRequest, Values
from scalescope.stats import relative_deviation
from scalescope.tuner.blocks import Block, Outcome, SampleRequest
from scalescope.tuner.controller_files import ControllerFiles
from scalescope.tuner.search import ONLINE, Options
from scalescope.tuner.space import Space, online_space
from scalescope.tuner.tuner import Tuner

ON_REQUEST = tuple(knob.name for engine in ENGINES.values() for knob in engine.knobs if knob.on_request)

KEPT = Path(__file__).with_name("landscapes")
WORK = Path("results") / "bench" / "tune_record"
TENSORS = WorkloadSpec(model="benchmarks/models.py:small_tensors", model_args={"layers": 30}, inputs=("96",))
TRANSFORMER = WorkloadSpec(model="transformer", model_args={"layers": 2, "width": 128, "vocab": 2000, "sequence": 32})


class Case(NamedTuple):
    """A training whose landscape is kept."""

    name: str
    request: TuneRequest
    chosen_on: bool  # Whether constants of the search were chosen on it; the others report


CASES = (
    Case("ddp_small_tensors", TuneRequest(workload=TENSORS, np=2, batch=16), True),
    Case("ddp_cnn", TuneRequest(workload=WorkloadSpec(model="cnn"), np=2, batch=8), False),
    Case("ddp_transformer", TuneRequest(workload=TRANSFORMER, np=2, batch=16), False),
    *(
        Case(
            f"horovod_{moved_by}_{name}",
            TuneRequest(workload=workload, np=2, batch=16, engine="horovod", launcher=launcher),
            name == "small_tensors",
        )
        for moved_by, launcher in (("mpi", "mpirun"), ("gloo", "horovodrun"))
        for name, workload in (("small_tensors", TENSORS), ("transformer", TRANSFORMER))
    ),
)

Round = dict[int, list[float]]  # Cell -> the steps of one block; no steps: the setting failed


class Landscape(msgspec.Struct, kw_only=True):
    """Real step times of every setting of a space."""

    space: Space
    survey: dict[str, Any] | None
    predicted: list[float] | None
    all_settings: int  # Of the whole space, of which this one may be a part
    grid: list[Round] = []
    again: list[Round] = []

    def blocks(self, cell: int) -> list[list[float]]:
        """All blocks of a cell."""
        return [found[cell] for found in (*self.grid, *self.again) if cell in found]

    def best_of_grid(self, count: int) -> list[int]:
        """The fastest cells, before they are measured again."""
        cells = range(len(self.space.settings))
        return sorted(cells, key=lambda cell: _mean([found[cell] for found in self.grid if cell in found]))[:count]


def save(landscape: Landscape, path: Path) -> None:
    """Keep what is measured so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".partial").write_bytes(msgspec.json.encode(landscape))
    path.with_suffix(".partial").replace(path)


def load(path: Path) -> Landscape | None:
    """What was measured before, if anything was."""
    return msgspec.json.decode(path.read_bytes(), type=Landscape) if path.exists() else None


def _mean(blocks: list[list[float]]) -> float:
    """Of the medians; a setting that failed takes for ever."""
    return fmean(median(block) for block in blocks) if blocks and all(blocks) else math.inf


STEPS = 6  # Of a block
ROUNDS, CELLS = 4, 20  # Over the whole grid, of at most so many settings
ROUNDS_AGAIN, BEST = 4, 3  # The best cells of the grid are measured again, next to the default
MOST_SPREAD = 0.1  # Of the default's blocks: a landscape of a machine that others use tells nothing
_FEWEST = 4  # Values of a size or a time that a part of a space keeps


class OutOfTime(Exception):
    """The section's time is over; what is measured is kept."""


def tune_record() -> list[dict[str, Any]]:
    """Every case that is not kept yet, as far as the time goes; a case that was cut goes on where it was."""
    until = time.monotonic() + LONGEST_S
    rows = []
    for case in CASES:
        kept = KEPT / f"{case.name}.json"
        try:
            landscape = load(kept) or _record(case, kept, until)
        except (OutOfTime, RuntimeError) as problem:
            rows.append({"landscape": case.name, "recorded": f"no: {problem}"})
            continue
        blocks = sum(len(each) for each in landscape.grid)
        rows.append({"landscape": case.name, "recorded": f"{len(landscape.space.settings)} settings, {blocks} blocks"})
    return rows


def _record(case: Case, kept: Path, until: float) -> Landscape:
    """Rounds over the grid, then the best settings and the default once more; kept when it is whole.

    Where an engine allows few switches, as Horovod does, every launch makes as many rounds as it can.
    """
    folder = WORK / case.name
    path = folder / "landscape.json"
    found = load(path)

    def work(trained: Trained) -> None:
        nonlocal found
        if found is None:
            space, count = _thinned(trained.space), len(trained.space.settings)
            found = Landscape(space=space, survey=trained.survey, predicted=None, all_settings=count)
            save(found, path)
        cells, most = list(range(len(found.space.settings))), trained.most_switches
        rounds = ROUNDS if most is None else min(ROUNDS, len(found.grid) + max(most // len(cells), 1))
        again = ROUNDS_AGAIN if most is None else min(ROUNDS_AGAIN, len(found.again) + most // 6)
        only_grid = most is not None and len(found.grid) < ROUNDS
        while len(found.grid) < rounds:
            _measure(found, found.grid, cells, len(found.grid), trained)
        contenders = sorted({0, *found.best_of_grid(BEST)})
        while len(found.again) < again and not only_grid:
            _measure(found, found.again, contenders, 1000 + len(found.again), trained)

    def _measure(found: Landscape, rounds: list[Round], cells: list[int], seed: int, trained: Trained) -> None:
        """One more round, cells in a new order; kept at once."""
        if time.monotonic() > until:
            raise OutOfTime
        order = random.Random(seed).sample(cells, len(cells))
        blocks = trained.blocks([found.space.settings[cell] for cell in order], STEPS)
        rounds.append(dict(zip(order, blocks, strict=True)))
        save(found, path)

    folder.mkdir(parents=True, exist_ok=True)
    while found is None or len(found.grid) < ROUNDS or len(found.again) < ROUNDS_AGAIN:
        while_training(case.request, folder, work)
    spread = relative_deviation([median(each[0]) for each in (*found.grid, *found.again)])
    if spread > MOST_SPREAD:
        raise RuntimeError(
            f"the default's blocks differ by {spread:.0%}: remove {folder} and record on a quiet machine"
        )
    save(_rounded(found), kept)
    return found


def _rounded(landscape: Landscape) -> Landscape:
    """Four digits of every step are more than are sure."""
    short = [
        [{cell: [float(f"{step:.4g}") for step in steps] for cell, steps in each.items()} for each in rounds]
        for rounds in (landscape.grid, landscape.again)
    ]
    return msgspec.structs.replace(landscape, grid=short[0], again=short[1])


def _thinned(space: Space) -> Space:
    """A part of a space: every second value of the longest knob, again and again, until few settings are left.

    The default's own values stay.
    """
    kept = {knob.name: list(knob.values) for knob in space.knobs}
    complete = [(values, space.complete(values)) for values in space.settings]
    while True:
        settings = tuple(values for values, whole in complete if all(whole.get(name) in kept[name] for name in kept))
        numbers = [knob for knob in space.knobs if knob.logarithmic and len(kept[knob.name]) > _FEWEST]
        if len(settings) <= CELLS or not numbers:
            break
        longest = max(numbers, key=lambda knob: len(kept[knob.name]))
        values = kept[longest.name]
        kept[longest.name] = [value for at, value in enumerate(values) if at % 2 == 0 or value == longest.default]
    used = {name: {space.complete(values)[name] for values in settings} for name in kept}
    knobs = tuple(
        msgspec.structs.replace(knob, values=tuple(value for value in knob.values if value in used[knob.name]))
        for knob in space.knobs
    )
    return msgspec.structs.replace(space, settings=settings, knobs=knobs)


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


class Trained:
    """A running training: blocks of any setting, in the order in which they are asked for."""

    def __init__(self, files: ControllerFiles) -> None:
        self._files = files
        hello = files.hello()
        if hello.refused:
            raise RuntimeError(hello.refused)
        files.send("warmup", steps=_WARMUP_STEPS)
        files.send("survey", steps=_SURVEY_STEPS)
        self.survey: dict[str, Any] = files.survey()
        self.space: Space = online_space(hello, self.survey, {}, ON_REQUEST)
        self.most_switches = hello.most_switches

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
    """Launch the training, do the work next to it, and end it."""
    asked = MeasureRequest(
        workload=request.workload,
        np=(request.np,),
        batch=(request.batch,) if request.batch else (),
        engines=(request.engine,) if request.engine else (),
        launcher=request.launcher,
        device="cpu",
        folder=str(folder),
    )
    settings = msgspec.structs.replace(resolve_here(asked, folder.absolute()), cwd=str(Path.cwd()))
    point = points(settings)[-1]
    tuned = msgspec.structs.replace(settings.request, env={**settings.request.env, "SCALESCOPE_TUNE": "1"})
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
                msgspec.structs.replace(settings, request=tuned), point, training, _FOREVER, Beside(beside)
            )
        finally:
            over.set()
        beside.result()
    if launched.problem:
        raise RuntimeError(f"{launched.problem}\n{launched.details}")


TOLERANCE = 0.02  # Settings this near to the best are good
SEARCHES = 40  # Per landscape and method
MOST = 40  # Samples, until a method is given up

Draw = Callable[[int, int], list[float]]  # The steps of a block: of which setting, and how many were asked for


def tune_recorded() -> list[dict[str, Any]]:
    """Per landscape: samples until a good setting was visited, and what whole searches decide."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        landscape = load(KEPT / f"{case.name}.json")
        if landscape is None:
            continue
        assert landscape.survey
        space = landscape.space
        predicted = space.predict(landscape.survey)  # By the simulator of today
        step_s, best, good = _truth(landscape)
        methods: dict[str, Callable[[int], Searcher]] = {
            "random search": lambda seed, space=space: RandomSearch(space, seed),  # type: ignore[misc]
            "scalescope": lambda _, space=space, predicted=predicted: Ours(space, predicted),  # type: ignore[misc]
        }
        row: dict[str, Any] = {
            "landscape": case.name,
            "constants": "chosen on it" if case.chosen_on else "held out",
            "settings": len(step_s),
            "good": len(good),
            "best gain %": 100 * (step_s[0] / step_s[best] - 1),
        }
        for name, method in methods.items():
            found = sorted(_samples(good, method(seed), _drawing(landscape, seed)) for seed in range(SEARCHES))
            middle = found[(len(found) - 1) // 2]
            row[f"{name}, median"] = middle if middle <= MOST else "not found"
        outcomes = [decide(space, predicted, ONLINE, _drawing(landscape, seed))[0] for seed in range(SEARCHES)]
        used = [space.settings.index(each.values) for each in outcomes if each.decision == "use"]
        gains = [step_s[0] / step_s[cell] - 1 for cell in used]
        row |= {
            "decision": f"{len(used)} use another",
            "slower than the default": sum(gain < 0 for gain in gains),
            "true gain, mean %": 100 * sum(gains) / SEARCHES,
        }
        rows.append(row)
    return rows


def _truth(landscape: Landscape) -> tuple[list[float], int, set[int]]:
    """Step times as well as they are known, the best cell, and the good ones: within 2 % or two standard errors of it.

    A cell that was measured again counts by that alone, and the best is one of these.
    """
    again = {cell for found in landscape.again for cell in found}
    step_s = []
    for cell in range(len(landscape.space.settings)):
        rounds = landscape.again if cell in again else landscape.grid
        step_s.append(_mean([found[cell] for found in rounds if cell in found]))
    best = min(again, key=lambda cell: step_s[cell])
    medians = [median(found[best]) for found in landscape.again if found.get(best)]
    error = stdev(medians) / math.sqrt(len(medians)) / step_s[best] if len(medians) > 1 else 0.0
    most_s = step_s[best] * (1 + max(TOLERANCE, 2 * error))
    return step_s, best, {cell for cell, each in enumerate(step_s) if each <= most_s}


class Searcher(Protocol):
    """A method of search over numbered settings, the default first."""

    def ask(self) -> int | None:
        """The next setting; None: it wants no more."""

    def tell(self, cell: int, steps: list[float]) -> None:
        """What the setting took."""


class RandomSearch:
    """Settings in random order, none of them twice."""

    def __init__(self, space: Space, seed: int) -> None:
        others = list(range(1, len(space.settings)))
        self._left = iter([0, *random.Random(seed).sample(others, len(others))])

    def ask(self) -> int | None:
        return next(self._left, None)

    def tell(self, cell: int, steps: list[float]) -> None:
        """Nothing is learnt."""


class Ours:
    """scalescope's search, up to where the finalist would meet the default."""

    def __init__(self, space: Space, predicted: list[float] | None) -> None:
        self._space, self._tuner = space, Tuner(space, predicted, ONLINE)
        self._asked: SampleRequest | None = None

    def ask(self) -> int | None:
        self._asked = asked = self._tuner.next()
        return None if asked is None or asked.phase == "confirm" else self._space.settings.index(asked.values)

    def tell(self, cell: int, steps: list[float]) -> None:
        assert self._asked
        self._tuner.tell(self._asked, _block_of(self._asked, steps, ONLINE))


def _samples(good: set[int], searcher: Searcher, draw: Draw) -> int:
    """How many a search takes, the default's with them, until it visits a good setting."""
    with threadpool_limits(1):
        for samples in range(1, MOST + 1):
            cell = searcher.ask()
            if cell is None:
                break
            if cell in good:
                return samples
            searcher.tell(cell, draw(cell, ONLINE.steps_per_sample))
    return MOST + 1


def decide(space: Space, predicted: list[float] | None, options: Options, draw: Draw) -> tuple[Outcome, int]:
    """The whole search, confirmation included; its outcome and how many samples it took to search."""
    tuner, searched = Tuner(space, predicted, options), 0
    with threadpool_limits(1):
        while asked := tuner.next():
            searched += asked.phase != "confirm"
            steps = draw(space.settings.index(asked.values), asked.steps)
            tuner.tell(asked, _block_of(asked, steps, options))
    return tuner.outcome(), searched


def _block_of(asked: SampleRequest, steps: list[float], options: Options) -> Block:
    """The steps as a training would report them, cut short where it would cut."""
    steps = steps[: asked.steps] if asked.steps else steps
    first = steps[: options.check]
    if asked.limit_s is not None and len(steps) > len(first) and median(first) > asked.limit_s:
        return Block(step_s=tuple(first), cut=True, discarded=options.discard, seconds=sum(first))
    return Block(step_s=tuple(steps), discarded=options.discard, seconds=sum(steps))


def _drawing(landscape: Landscape, seed: int) -> Draw:
    """Blocks of a cell at random."""
    chance = random.Random(seed)
    return lambda cell, _: chance.choice(landscape.blocks(cell))
