"""Made-up landscapes of step times, and trainings that a tuner drives."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from scalescope.records.tuning import Sample, SearchedKnob, Values
from scalescope.tuner.blocks import Block, SampleRequest
from scalescope.tuner.search import ONLINE, Options
from scalescope.tuner.space import Space
from scalescope.tuner.tuner import Tuner

CAPS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 50.0)
Truth = Callable[[Values], float]


def space() -> Space:
    """Caps with and without hierarchy; 25 MiB without it is the default."""
    settings: list[Values] = [{}]
    for hierarchical in (False, True):
        for cap in CAPS:
            values: Values = {} if cap == 25 else {"bucket_cap_mb": cap}
            if hierarchical:
                values["hierarchical_allreduce"] = True
            if values:
                settings.append(values)
    return Space(
        engine="ddp",
        knobs=(
            SearchedKnob(name="bucket_cap_mb", values=CAPS, default=25.0, unit="MiB", logarithmic=True),
            SearchedKnob(name="hierarchical_allreduce", values=(False, True), default=False),
        ),
        settings=tuple(settings),
        current={"bucket_cap_mb": 25.0, "hierarchical_allreduce": False},
    )


def valley(best_mib: float, depth: float, hierarchy: float = 1.0) -> Truth:
    """A step of 0.1 s by default, `depth` times faster at the best cap, times `hierarchy` with it."""

    def seconds(values: Values) -> float:
        def octaves(cap: float) -> float:
            return abs(math.log2(cap / best_mib))

        cap = float(values.get("bucket_cap_mb", 25.0))
        slope = math.log(depth) / max(octaves(25.0), 1.0)
        return 0.1 * math.exp(slope * (octaves(cap) - octaves(25.0))) * (hierarchy if len(values) > 1 else 1)

    return seconds


class Training:
    """Steps of a training whose truth is known."""

    def __init__(self, truth: Truth, seed: int = 0, noise: float = 0.03) -> None:
        self._truth, self._rng, self._noise = truth, np.random.default_rng(seed), noise
        self.asked: list[SampleRequest] = []
        self.samples: list[Sample] = []

    def block(self, asked: SampleRequest) -> Block:
        """Steps around the truth, the block as a whole wrong by the noise; cut as the ranks would."""
        level = self._truth(asked.values) * math.exp(self._rng.normal(0, self._noise))
        steps = tuple(float(each) for each in level * np.exp(self._rng.normal(0, self._noise, asked.steps)))
        if asked.limit_s and float(np.median(steps[:3])) > asked.limit_s:
            return Block(step_s=steps[:3], cut=True, discarded=2)
        return Block(step_s=steps, discarded=2)

    def tune(self, predicted: Sequence[float] | None, options: Options = ONLINE, most: int = 1000) -> Tuner:
        """Let a tuner decide, or stop it after so many samples."""
        tuner = Tuner(space(), predicted, options)
        return self.go_on(tuner, most)

    def go_on(self, tuner: Tuner, most: int = 1000) -> Tuner:
        """Go on with a tuner."""
        while len(self.samples) < most and (asked := tuner.next()):
            self.asked.append(asked)
            self.samples.append(tuner.tell(asked, self.block(asked)))
        return tuner


def predictions(truth: Truth, wrong: float = 0.0, seed: int = 0) -> list[float]:
    """The truth, each setting wrong by so much."""
    rng = np.random.default_rng(seed)
    return [truth(values) * math.exp(rng.normal(0, wrong)) for values in space().settings]
