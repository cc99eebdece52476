"""Maps of a study: of a script from what the agent surveyed of its steps, and of any training after it was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scalescope.engines import PLAIN
from scalescope.errors import WorkFailed
from scalescope.estimation.verification import check_of, corrected
from scalescope.records.cluster import Cluster
from scalescope.records.job import Knobs
from scalescope.records.prediction import Prediction
from scalescope.records.profile import Contention, ModelProfile, ProfilePoint, WorkloadSpec
from scalescope.records.run import Measurement
from scalescope.simulator.grid import Question, predict
from scalescope.tuner.prior import Survey, profile_of, read_survey

_ERROR = 0.05  # Relative standard error of a step that was surveyed over a few steps, once
Place = tuple[int, int | None]  # Processes, and the batch that the command was told


def profile_of_script(what: str, found: Mapping[Place, Mapping[str, Any]]) -> ModelProfile:
    """One process alone, as its survey saw it, and how much slower its compute was next to others.

    Args:
        what: The command.
        found: Surveys by processes and batch.

    Raises:
        WorkFailed: One process, or what it computes, was not seen.
    """
    surveys = {place: read_survey(survey) for place, survey in found.items()}
    alone = [
        (batch or int(found[np, batch].get("samples", 0)) or 1, each)
        for (np, batch), each in surveys.items()
        if np == 1
    ]
    if not alone or not alone[0][1].gradients:
        raise WorkFailed("no map: the agent saw no forward and backward of this script on one process")
    first = profile_of(alone[0][1])
    return msgspec.structs.replace(
        first,
        workload=WorkloadSpec(model=what),
        device=alone[0][1].device or first.device,
        points=tuple(_point(batch, survey) for batch, survey in sorted(alone, key=lambda each: each[0])),
        crowds=tuple(
            _contention(np, batch, surveys) for (np, batch), each in surveys.items() if each.ranks_per_host > 1
        ),
    )


def _point(batch: int, survey: Survey) -> ProfilePoint:
    """Input and everything else between two steps is part of the forward, as it delays it."""
    point = profile_of(survey).points[0]
    step_s = max(survey.step_s, point.step_s)
    forward_s = step_s - point.backward_s - point.optimizer_s
    return msgspec.structs.replace(point, batch=batch, step_s=step_s, forward_s=forward_s, error=_ERROR)


def _contention(np: int, batch: int | None, surveys: Mapping[Place, Survey]) -> Contention:
    """Forward passes wait for no message, so what they lose next to others is lost to shared cores and memory."""
    alone, together = surveys.get((1, batch)), surveys[np, batch]
    slowdown = together.forward_s / alone.forward_s if alone and alone.forward_s > 0 else 1.0
    samples = batch or 1
    return Contention(
        copies=together.ranks_per_host, batch=samples, slowdown=max(slowdown, 1.0), error=2 * _ERROR, noise=0.0
    )


def map_of_script(profile: ModelProfile, cluster: Cluster, knobs: Knobs, counts: Sequence[int]) -> Prediction:
    """Weak scaling of the surveyed batches on every number of processes."""
    batches = tuple(point.batch for point in profile.points)
    return predict(Question(profile=profile, cluster=cluster, knobs=knobs, np=tuple(counts), batches=batches))


def corrected_by(prediction: Prediction, measurement: Measurement) -> Prediction:
    """The map after the training was measured: cells that were launched show that, and move the others.

    Where one process was launched without an engine in the same rounds, a step is compared with its step, at the pace
    of the profile: the speed of a shared machine drifts by more than a map is wrong. Launches of another batch, which
    strong scaling adds, have no such process, and check nothing.
    """
    runs = measurement.as_seen().runs
    alone = {(run.round, run.point.batch): run for run in runs if run.point.np == 1 and run.point.engine == PLAIN.name}
    checks = []
    for cell in prediction.cells:
        own = [
            run
            for run in runs
            if cell.np > 1
            and (run.point.np, run.point.engine) == (cell.np, prediction.engine)
            and run.point.batch in (None, cell.batch)
        ]
        one = next((each for each in prediction.cells if (each.np, each.batch) == (1, cell.batch)), None)
        together = [
            msgspec.structs.replace(run, pairs=((one_process.mean_step_s, run.mean_step_s),))
            for run in own
            if one and (one_process := alone.get((run.round, run.point.batch)))
        ]
        if together or (own and not alone):
            checks.append(check_of(cell, together or own, one.step_s if one else 0.0))
    return corrected(prediction, checks) if checks else prediction
