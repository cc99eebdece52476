"""Several search methods over one measured landscape: a sample is a block drawn from the real blocks of its setting."""

import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, Protocol

from threadpoolctl import threadpool_limits

from benchmarks.tune_landscape import Landscape, Truth
from scalescope.records.job import KnobValue
from scalescope.records.tuning import Values
from scalescope.tuner.blocks import Block, Outcome, SampleRequest
from scalescope.tuner.search import Options
from scalescope.tuner.space import Space
from scalescope.tuner.tuner import Tuner

PEER = ("optuna==4.5.0", "alembic==1.20.1", "colorlog==6.12.0", "sqlalchemy==2.1.8", "tqdm==4.70.1", "mako==1.4.3")
PEER_FOLDER = Path("results") / "bench" / "optuna"
SEEDS = 40
SLOW_SEEDS = 10  # For a method that takes a tenth of a second to ask
MOST = 40  # Samples, until a method is given up
CHOOSE_AFTER = 12

Draw = Callable[[int, int], list[float]]  # The steps of a block: of which setting, and how many were asked for


class Searcher(Protocol):
    """A method of search over numbered settings, the default first."""

    def ask(self) -> int | None:
        """The next setting; None: it wants no more."""

    def tell(self, cell: int, steps: list[float]) -> None:
        """What the setting took."""

    def choice(self) -> int:
        """What it would choose now."""


class _Observed:
    """Remembers what was seen and chooses the best of it."""

    def __init__(self) -> None:
        self.seen: dict[int, list[float]] = {}

    def tell(self, cell: int, steps: list[float]) -> None:
        self.seen.setdefault(cell, []).append(median(steps))

    def choice(self) -> int:
        return min(self.seen, key=lambda cell: fmean(self.seen[cell]))


class RandomSearch(_Observed):
    """Settings in random order, none of them twice."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__()
        others = list(range(1, len(space.settings)))
        self._left = iter([0, *random.Random(seed).sample(others, len(others))])

    def ask(self) -> int | None:
        return next(self._left, None)


class Optuna(_Observed):
    """One of Optuna's samplers, as it comes, over the places of values in their knobs; sizes are spaced by octaves."""

    def __init__(self, space: Space, seed: int, sampler: str) -> None:
        super().__init__()
        optuna = optuna_module()
        self._study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed))
        self._space, self._known, self._trial = space, _places(space), None
        self._study.enqueue_trial(dict(zip([knob.name for knob in space.knobs], self._known[0], strict=True)))

    def ask(self) -> int | None:
        self._trial = trial = self._study.ask()
        found = []
        for knob in self._space.knobs:
            places = len(knob.values)
            if knob.logarithmic:
                found.append(int(trial.suggest_int(knob.name, 0, places - 1)))
            else:
                found.append(int(trial.suggest_categorical(knob.name, list(range(places)))))
        return _nearest(self._known, tuple(found))

    def tell(self, cell: int, steps: list[float]) -> None:
        super().tell(cell, steps)
        self._study.tell(self._trial, median(steps))


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
    methods: dict[str, tuple[int, Callable[[int], Searcher]]] = {
        "random search": (SEEDS, lambda seed: RandomSearch(space, seed)),
        "Optuna TPE": (SEEDS, lambda seed: Optuna(space, seed, "TPESampler")),
        "Optuna GPSampler": (SLOW_SEEDS, lambda seed: Optuna(space, seed, "GPSampler")),
        "scalescope, no prior": (SEEDS, lambda _: Ours(space, None, options)),
    }
    if predicted:
        methods["scalescope"] = (SEEDS, lambda _: Ours(space, predicted, options))
    steps, rows = options.steps_per_sample, []
    for name, (seeds, make) in methods.items():
        with threadpool_limits(1):
            runs = [replay(truth, make(seed), drawing(landscape, seed), steps) for seed in range(seeds)]
        rows.append({"method": name, "runs": seeds, **_summary(runs)})
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


def _places(space: Space) -> list[tuple[int, ...]]:
    """Of every setting: where its values stand in their knobs."""
    found = []
    for values in space.settings:
        complete = space.complete(values)
        found.append(tuple(_place(knob.values, complete[knob.name]) for knob in space.knobs))
    return found


def _place(values: tuple[KnobValue | None, ...], value: KnobValue) -> int:
    return values.index(value)


def _nearest(known: list[tuple[int, ...]], wanted: tuple[int, ...]) -> int:
    """The setting that stands for a combination: settings that do the same are in a space once."""
    return min(range(len(known)), key=lambda cell: _distance(known[cell], wanted))


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(abs(here - there) for here, there in zip(one, other, strict=True))


def optuna_module() -> Any:
    """Optuna in a folder of its own, behind everything that is installed."""
    if not (PEER_FOLDER / "ready").exists():
        words = [sys.executable, "-m", "pip", "install", "-q", "--target", str(PEER_FOLDER), "--no-deps", *PEER]
        subprocess.run(words, check=True, capture_output=True, timeout=600)
        (PEER_FOLDER / "ready").touch()
    if str(PEER_FOLDER) not in sys.path:
        sys.path.append(str(PEER_FOLDER))
    import optuna  # type: ignore[import-not-found]

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna
