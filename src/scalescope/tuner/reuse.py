"""A setting that was found earlier, used at once."""

from datetime import UTC, datetime
from pathlib import Path

from scalescope import __version__
from scalescope.errors import WorkFailed
from scalescope.measurement.plan import Settings
from scalescope.records.run import Failure, Point
from scalescope.records.store import save
from scalescope.records.tuning import Method, TuneRequest, Tuning, TuningCost
from scalescope.tuner.journal import RECORD, Audience
from scalescope.tuner.offline import Launches, held_by_user


def use_setting(
    request: TuneRequest,
    settings: Settings,
    point: Point,
    folder: Path,
    method: Method,
    steps: int | None,
    audience: Audience,
) -> Tuning:
    """Train with the setting, without a search; `steps`: of a MODEL."""
    values = request.start_from or {}
    audience.planned("Training with the setting that was found earlier; nothing is searched.")
    outcome = Launches(request, settings, point, audience).launch(0, values, steps)
    if isinstance(outcome, Failure):
        details = f"\n{outcome.details}" if outcome.details else ""
        raise WorkFailed(f"the training failed with the setting found earlier: {outcome.problem}{details}")
    record = Tuning(
        what=request.what,
        command=request.command,
        engine=point.engine,
        np=request.np,
        nodes=outcome.nodes,
        method=method,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        scalescope=__version__,
        knobs=(),
        held=held_by_user(request, settings, point),
        winner_step_s=outcome.step_s,
        decision="use",
        values=values,
        reason="found earlier and used without a search",
        cost=TuningCost(search_steps=0, confirm_steps=0, seconds=0.0, lost_s=0.0),
        notes=outcome.warnings,
    )
    save(record, folder / RECORD)
    return record
