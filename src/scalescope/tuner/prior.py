"""What the simulator expects of every setting, from a survey of the training."""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from scalescope.engines import find_engine
from scalescope.engines.base import Engine
from scalescope.records.profile import ModelProfile
from scalescope.records.tuning import Values
from scalescope.simulator.step import Steps, steps
from scalescope.tuner.space import HIERARCHICAL, THREADS, Space
from scalescope.tuner.survey import Survey, cluster_of, profile_of, read_survey

_ROUNDS = 6
_LEAST = 0.2  # Of what backward was seen to take; no friction takes more
_BY_THREADS = 0.5  # Twice the threads are expected to make compute faster by 2 to the power of this


def predict(space: Space, survey: Mapping[str, Any]) -> list[float] | None:
    """Seconds of a step for every setting of the space; None where the survey does not tell what messages cost."""
    told = read_survey(survey)
    simulation = _Simulation(told, find_engine(space.engine))
    if not told.gradients or (told.ranks > 1 and not told.costs.get("flat")):
        return None
    simulation.take_out_friction(space.complete({}))
    seconds = [simulation.step_s(space.complete(values)) for values in space.settings]
    scale = told.step_s / seconds[0] if told.step_s > 0 and seconds[0] > 0 else 1.0
    return [each * scale for each in seconds]


class _Simulation:
    """Steps of one surveyed training under any setting."""

    def __init__(self, survey: Survey, engine: Engine) -> None:
        self._survey, self._engine = survey, engine
        self._profile = profile_of(survey)
        self._simulated: dict[Hashable, float] = {}

    def take_out_friction(self, default: Values) -> None:
        """Backward alone: such that, with the default's messages beside it, it takes as long as it was seen to."""
        alone = seen = self._profile.points[0].backward_s
        for _ in range(_ROUNDS if self._survey.ranks > 1 and seen > 0 else 0):
            together = float(self._steps(profile_of(self._survey, alone), default).outcome.backward_s[0])
            alone = min(max(alone * seen / together, _LEAST * seen), seen)
        self._profile = profile_of(self._survey, alone)

    def step_s(self, values: Values) -> float:
        """One step, messages and compute; settings that exchange the same are simulated once."""
        exchange = self._engine.exchange(self._profile, values)
        key = exchange, self._kind(values), values.get(THREADS)
        if key not in self._simulated:
            made = self._steps(self._profile, values)
            compute_s = float((made.forward_s + made.outcome.backward_s + made.optimizer_s)[0])
            threads = float(values.get(THREADS, self._survey.threads))
            faster = math.pow(threads / self._survey.threads, _BY_THREADS)
            self._simulated[key] = float(made.step_s[0]) - compute_s + compute_s / faster
        return self._simulated[key]

    def _steps(self, profile: ModelProfile, values: Values) -> Steps:
        exchange = self._engine.exchange(profile, values)
        threads = int(values.get(THREADS, self._survey.threads))
        cluster = cluster_of(self._survey, exchange.backend, self._kind(values), threads)
        return steps(profile, cluster, exchange, np.array([self._survey.ranks]), np.array([1]))

    def _kind(self, values: Values) -> str:
        return "hierarchical" if values.get(HIERARCHICAL) and "hierarchical" in self._survey.costs else "flat"
