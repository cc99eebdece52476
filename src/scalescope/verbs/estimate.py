"""estimate: how fast would it be?"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.records.files import PREDICTION, PROFILE, STEP
from scalescope.records.request import EstimatePlan, EstimateRequest
from scalescope.show import document_of
from scalescope.units import format_seconds
from scalescope.verbs.verb import (
    SHOWN,
    Ending,
    Screen,
    Verb,
    folder_of,
    from_here,
    kept,
    launch_costs,
    retyped,
    room,
    training_length,
)

if TYPE_CHECKING:
    from scalescope.records.prediction import Prediction


def _plan_estimate(request: EstimateRequest) -> Iterable[str]:
    from scalescope.estimation.estimate import dry_run

    lines = dry_run(request)
    checks = [max(request.np, default=1)] * request.verify * request.launches
    launches = (
        [launch_costs(checks, length=training_length(None) if request.command else "", most=True)] if checks else []
    )
    if request.command:
        return [*lines, *launches]
    taken = 0.0 if request.profile or request.step_time else request.seconds
    probed = "" if request.cluster else ", and the probe of the links"
    said = f"# about {format_seconds(taken)} for the profile{probed}" if taken else f"# no profile{probed}"
    return [*lines, said, *launches]


def of_prediction(prediction: "Prediction", request: EstimateRequest, screen: Screen) -> Ending:
    """The map."""
    from scalescope.records.store import load
    from scalescope.records.timeline import Timeline

    folder = folder_of(prediction)
    step = load(folder / STEP, Timeline) if (folder / STEP).exists() else None
    document = document_of(prediction, step=step)
    return Ending(document, after_estimate(request, prediction, folder), lambda: screen.files(document, folder))


def after_estimate(request: EstimateRequest, prediction: "Prediction", folder: Path) -> str:
    """Estimate again what cannot be trusted; verify here; measure elsewhere, and what was verified or stated."""
    if not prediction.trusted:
        return retyped("estimate", request, profile=request.profile, verify=request.verify or None)
    advice = prediction.recommended
    if request.command:
        most = advice.np if advice and advice.np > 1 else max(request.np or (2,))
        return retyped("measure", request, np=(1, most), batch=(), engine=())  # both are the script's own
    engine = {"engine": advice.engine} if advice and advice.engine else {}  # the better one of several
    if advice and (request.cluster or prediction.checks or request.step_time):
        batch = advice.global_batch if advice.scaling == "strong" else advice.batch
        counts = (1, advice.np) if advice.np > 1 else (1,)
        return retyped("measure", request, np=counts, batch=batch, scaling=(advice.scaling,), **engine)
    return retyped("estimate", request, profile=str(from_here(folder / PROFILE)), verify=2, **engine)


VERB = Verb(
    "estimate",
    EstimateRequest,
    """How fast would it be? A map of speedup over processes and batch sizes, of a MODEL or a script.

    A MODEL is profiled on one process; a script runs on one device as rank 0 of N.

    scalescope estimate resnet50 --np 1..32 --batch 8,16,...,512 --cluster cluster.toml

    scalescope estimate --np 1..64 --cluster cluster.toml -- python train.py
    """,
    room("scalescope.estimation.estimate", "estimate_request"),
    room("scalescope.estimation.estimate", "estimate"),
    ("resume", "dry_run", *SHOWN),
    _plan_estimate,
    kept=lambda request, said: ", and what was finished is kept: type the same command to continue",
    end=of_prediction,
    plan=lambda: EstimatePlan,
    record=kept(PREDICTION, "scalescope.records.prediction.Prediction"),
)
