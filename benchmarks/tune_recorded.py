"""Searches over recorded landscapes; `tune_record` measures those that benchmarks/landscapes does not hold yet.

A sample is a block drawn from the real blocks of its setting.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, Protocol

import msgspec
from threadpoolctl import threadpool_limits

from benchmarks.tune_landscape import Landscape, OutOfTime, Plan, Truth, landscape_online, load, save, truth_of
from scalescope.records.profile import WorkloadSpec
from scalescope.records.tuning import TuneRequest, Values
from scalescope.stats import relative_deviation
from scalescope.tuner.blocks import Block, Outcome, SampleRequest
from scalescope.tuner.search import ONLINE, Options
from scalescope.tuner.space import Space
from scalescope.tuner.tuner import Tuner

KEPT = Path(__file__).with_name("landscapes")
WORK = Path("results") / "bench" / "tune_record"
LONGEST_S = 18 * 60
MOST_SPREAD = 0.1  # Of the default's blocks: a landscape of a machine that others use tells nothing
STEPS, ROUNDS, AGAIN, CELLS = 6, 4, 4, 20
DECISIONS = 40
SEEDS = 40
MOST = 40  # Samples, until a method is given up
CHOOSE_AFTER = 12

Draw = Callable[[int, int], list[float]]  # The steps of a block: of which setting, and how many were asked for

TENSORS = WorkloadSpec(model="benchmarks/models.py:small_tensors", model_args={"layers": 30}, inputs=("96",))
TRANSFORMER = WorkloadSpec(model="transformer", model_args={"layers": 2, "width": 128, "vocab": 2000, "sequence": 32})


class Recorded(NamedTuple):
    """A training whose landscape is kept."""

    name: str
    request: TuneRequest
    chosen_on: bool  # Whether constants were chosen on it; the others report


CNN = WorkloadSpec(model="cnn")
CASES = (
    Recorded("ddp_small_tensors", TuneRequest(workload=TENSORS, np=2, batch=16), True),
    Recorded("ddp_cnn", TuneRequest(workload=CNN, np=2, batch=8), False),
    Recorded("ddp_transformer", TuneRequest(workload=TRANSFORMER, np=2, batch=16), False),
    *(
        Recorded(
            f"horovod_{moved_by}_{name}",
            TuneRequest(workload=workload, np=2, batch=16, engine="horovod", launcher=launcher),
            name == "small_tensors",
        )
        for moved_by, launcher in (("mpi", "mpirun"), ("gloo", "horovodrun"))
        for name, workload in (("small_tensors", TENSORS), ("transformer", TRANSFORMER))
    ),
)


def tune_record() -> list[dict[str, Any]]:
    """Every case that is not kept yet, as far as the time goes; a case that was cut goes on where it was."""
    until = time.monotonic() + LONGEST_S
    rows = []
    for case in CASES:
        kept = KEPT / f"{case.name}.json"
        try:
            landscape = load(kept) or record(case, kept, until)
        except (OutOfTime, RuntimeError) as problem:
            rows.append({"landscape": case.name, "recorded": f"no: {problem}"})
            continue
        blocks = sum(len(each) for each in landscape.grid)
        rows.append({"landscape": case.name, "recorded": f"{len(landscape.space.settings)} settings, {blocks} blocks"})
    return rows


def record(case: Recorded, kept: Path, until: float) -> Landscape:
    """Rounds over the grid, then the best settings and the default once more; kept when it is whole."""
    folder = WORK / case.name
    folder.mkdir(parents=True, exist_ok=True)
    found = landscape_online(case.request, Plan(ROUNDS, AGAIN, CELLS), STEPS, folder, [], until)
    medians = [median(found.grid[at][0]) for at in range(len(found.grid))] + [median(each[0]) for each in found.again]
    if (spread := relative_deviation(medians)) > MOST_SPREAD:
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
    return msgspec.structs.replace(landscape, grid=short[0], again=short[1], predicted=None)


def tune_recorded() -> list[dict[str, Any]]:
    """Per landscape: how well the simulator orders it, and every method's samples to a good setting."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        landscape = load(KEPT / f"{case.name}.json")
        if landscape is None:
            continue
        assert landscape.survey
        landscape.predicted = landscape.space.predict(landscape.survey)  # by the simulator of today
        truth = truth_of(landscape)
        about = {
            "landscape": case.name,
            "constants": "chosen on it" if case.chosen_on else "held out",
            "settings": len(truth.step_s),
            "good": len(truth.good),
            "best gain %": 100 * truth.gain(truth.best),
            "order of the simulator": order(landscape.predicted or [], truth.step_s),
        }
        found = [*compare(landscape, truth, ONLINE), decisions(landscape, truth)]
        rows += [{**(about if row is found[0] else dict.fromkeys(about)), **_short(row)} for row in found]
    return rows


def order(predicted: list[float], measured: list[float]) -> float | None:
    """Spearman's rank correlation: 1 is the right order."""
    from scipy.stats import spearmanr

    return float(spearmanr(predicted, measured).statistic) if predicted else None


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = ("method", "samples, median", "90 %", "samples made", "from the best %", "true gain %", "decision")
    return {name: row.get(name) for name in names}


def decisions(landscape: Landscape, truth: Truth) -> dict[str, Any]:
    """Whole searches over the blocks, with confirmation: what the decisions are really worth."""
    gains, ends = [], []
    for seed in range(DECISIONS):
        outcome, _ = decide(landscape.space, landscape.predicted, ONLINE, drawing(landscape, seed))
        if outcome.decision == "use" and outcome.gain:
            gains.append(truth.gain(landscape.space.settings.index(outcome.values)))
            ends.append(outcome.gain.low)
    worse = sum(gain < 0 for gain in gains)
    return {
        "method": "scalescope, decided",
        "runs": DECISIONS,
        "decision": f"{len(gains)} use another, {worse} of them slower than the default",
        "lower end %": 100 * min(ends) if ends else None,
        "true gain %": 100 * sum(gains) / DECISIONS,
    }


class Searcher(Protocol):
    """A method of search over numbered settings, the default first."""

    def ask(self) -> int | None:
        """The next setting; None: it wants no more."""

    def tell(self, cell: int, steps: list[float]) -> None:
        """What the setting took."""

    def choice(self) -> int:
        """What it would choose now."""


class RandomSearch:
    """Settings in random order, none of them twice; it chooses the best of what it saw."""

    def __init__(self, space: Space, seed: int) -> None:
        self.seen: dict[int, list[float]] = {}
        others = list(range(1, len(space.settings)))
        self._left = iter([0, *random.Random(seed).sample(others, len(others))])

    def ask(self) -> int | None:
        return next(self._left, None)

    def tell(self, cell: int, steps: list[float]) -> None:
        self.seen.setdefault(cell, []).append(median(steps))

    def choice(self) -> int:
        return min(self.seen, key=lambda cell: fmean(self.seen[cell]))


class Ours:
    """scalescope's search, up to where the finalist would meet the default."""

    def __init__(self, space: Space, predicted: list[float] | None, options: Options) -> None:
        self._space, self._tuner = space, Tuner(space, predicted, options)
        self._asked: SampleRequest | None = None
        self._options = options

    def ask(self) -> int | None:
        self._asked = asked = self._tuner.next()
        return None if asked is None or asked.phase == "confirm" else _cell(self._space, asked.values)

    def tell(self, cell: int, steps: list[float]) -> None:
        assert self._asked
        self._tuner.tell(self._asked, block_of(self._asked, steps, self._options))

    def choice(self) -> int:
        return _cell(self._space, self._tuner.best[0])


class Replayed(NamedTuple):
    """One search over a landscape."""

    found_after: int | None  # Samples, the default's with them, until a good setting was visited
    samples: int
    regret: float  # Of what it chooses after 12 samples, over the best


def replay(truth: Truth, searcher: Searcher, draw: Draw, steps: int) -> Replayed:
    """Let it search until it has found a good setting and has had the samples after which it must choose."""
    found_after, choice, samples = None, 0, 0
    while samples < MOST and (cell := searcher.ask()) is not None:
        searcher.tell(cell, draw(cell, steps))
        samples += 1
        if samples <= CHOOSE_AFTER:
            choice = searcher.choice()
        if found_after is None and cell in truth.good:
            found_after = samples
        if found_after and samples >= CHOOSE_AFTER:
            break
    return Replayed(found_after, samples, truth.regret(choice))


def compare(landscape: Landscape, truth: Truth, options: Options) -> list[dict[str, Any]]:
    """Every method over the same blocks; one row each."""
    space, predicted = landscape.space, landscape.predicted
    methods: dict[str, Callable[[int], Searcher]] = {
        "random search": lambda seed: RandomSearch(space, seed),
        "scalescope, no prior": lambda _: Ours(space, None, options),
    }
    if predicted:
        methods["scalescope"] = lambda _: Ours(space, predicted, options)
    steps, rows = options.steps_per_sample, []
    for name, make in methods.items():
        with threadpool_limits(1):
            runs = [replay(truth, make(seed), drawing(landscape, seed), steps) for seed in range(SEEDS)]
        rows.append({"method": name, "runs": SEEDS, **_summary(runs)})
    return rows


def decide(space: Space, predicted: list[float] | None, options: Options, draw: Draw) -> tuple[Outcome, int]:
    """The whole search, confirmation included; its outcome and how many samples it took to search."""
    tuner, searched = Tuner(space, predicted, options), 0
    with threadpool_limits(1):
        while asked := tuner.next():
            searched += asked.phase != "confirm"
            tuner.tell(asked, block_of(asked, draw(_cell(space, asked.values), asked.steps), options))
    return tuner.outcome(), searched


def block_of(asked: SampleRequest, steps: list[float], options: Options) -> Block:
    """The steps as a training would report them, cut short where it would cut."""
    steps = steps[: asked.steps] if asked.steps else steps
    first = steps[: options.check]
    if asked.limit_s is not None and len(steps) > len(first) and median(first) > asked.limit_s:
        return Block(step_s=tuple(first), cut=True, discarded=options.discard, seconds=sum(first))
    return Block(step_s=tuple(steps), discarded=options.discard, seconds=sum(steps))


def drawing(landscape: Landscape, seed: int) -> Draw:
    """Blocks of a cell at random."""
    chance = random.Random(seed)
    return lambda cell, _: chance.choice(landscape.blocks(cell))


def _summary(runs: list[Replayed]) -> dict[str, Any]:
    found = sorted(MOST + 1 if run.found_after is None else run.found_after for run in runs)
    return {
        "samples, median": _shown(found[(len(found) - 1) // 2]),
        "90 %": _shown(found[-(-9 * len(found) // 10) - 1]),
        "samples made": fmean(run.samples for run in runs),
        "from the best %": 100 * fmean(run.regret for run in runs),
    }


def _shown(samples: int) -> str:
    return "not found" if samples > MOST else str(samples)


def _cell(space: Space, values: Values) -> int:
    return space.settings.index(values)
