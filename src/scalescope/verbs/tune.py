"""tune: what should I change?"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.records.files import TUNING
from scalescope.records.tuning import TuneRequest
from scalescope.show import document_of
from scalescope.verbs.verb import (
    SHOWN,
    Ending,
    Screen,
    Verb,
    folder_command,
    folder_of,
    from_here,
    kept,
    launch_costs,
    retyped,
    room,
    training_length,
)

if TYPE_CHECKING:
    from scalescope.records.tuning import Tuning


def _plan_tune(request: TuneRequest) -> Iterable[str]:
    from scalescope.tuner.run import dry_run
    from scalescope.tuner.search import OFFLINE, options_of

    yield from dry_run(request)
    if request.method == "offline":
        tried = options_of(request, OFFLINE)
        length = training_length(request.steps) if request.command else ""
        yield launch_costs([request.np] * tried.max_samples, length=length, most=True)
        yield f"# and up to {tried.most_pairs} pairs of launches to confirm what was found"
    else:
        length = training_length(request.steps) if request.command else "until the search has decided"
        yield launch_costs([request.np], length=length)


def _kept_of_tune(request: TuneRequest | None, folder: str) -> str:
    """Say what an interrupted search leaves; `folder` may be unknown."""
    from scalescope.tuner.run import resumed_as

    if request and request.start_from is not None:
        return "; type the same command to train again"
    folder = folder or (request.folder if request else "")
    where = f" in {from_here(Path(folder))}" if folder else ""
    resumable = bool(folder) and (request is None or resumed_as(request, Path(folder)) is not None)
    again = f"resume with: {folder_command('tune --resume', Path(folder))}"
    return f" and every finished sample is kept{where}; {again if resumable else 'type the same command to start over'}"


def of_tuning(tuning: "Tuning", request: TuneRequest, screen: Screen) -> Ending:
    """End with what was tried and decided."""
    from scalescope.tuner.settings import YAML, how_to_use, write_settings

    folder, document = folder_of(tuning), document_of(tuning)

    def write() -> list[str]:
        here, said, drawn = from_here(folder), [], []
        if tuning.decision == "use":
            setting = {**tuning.held, **tuning.values}
            about = f"{tuning.engine}, {tuning.np} processes, found by scalescope tune: {tuning.what}"
            written = write_settings(folder, tuning.engine, setting, about)
            said.append(f"Settings: {', '.join(str(from_here(path)) for path in written)}")
            said += how_to_use(tuning.engine, setting, str(here / YAML))
        if tuning.samples:
            said.append(f"Log: {from_here(Path(request.log_file or folder / 'tune.csv'))}")
            drawn = screen.figures(document, folder)
        return [*drawn, *said, f"Records: {here}"]

    return Ending(document, after_tune(tuning, request, folder), write)


def after_tune(tuning: "Tuning", request: TuneRequest, folder: Path) -> str:
    """Confirm what was found; finish what was not; or see where the time goes instead."""
    from scalescope.tuner.settings import THREADS, knob_texts

    compared = any(sample.phase == "confirm" for sample in tuning.samples)
    if tuning.decision == "undecided" and (tuning.method == "offline" or (tuning.method == "online" and compared)):
        return folder_command("tune --resume", folder)
    values = {**tuning.held, **tuning.values} if tuning.complete and tuning.decision == "use" else dict(tuning.held)
    changes = {
        "threads_per_rank": values.pop(THREADS.name, request.threads_per_rank),
        "knobs": knob_texts(values),
        "engine": tuning.engine,
        "np": tuning.np,
    }
    if not tuning.complete:
        return retyped("tune", request, method="offline", **changes)
    return retyped("measure" if tuning.decision == "use" else "explain", request, **changes)


VERB = Verb(
    "tune",
    TuneRequest,
    """What should I change? Finds faster knobs of DDP or Horovod for a MODEL, or for your own training after --.

    Both are tuned while they train, your script unchanged: scalescope tune --np 4 -- python train.py
    The default is kept unless another setting is clearly faster. A horovodrun line works as it is:
    scalescope tune horovodrun -np 4 --autotune python train.py
    """,
    room("scalescope.tuner.request", "tune_request"),
    room("scalescope.tuner.run", "tune"),
    ("join", "resume", "dry_run", "show_output", *SHOWN),
    _plan_tune,
    lambda folder, limits, progress: room("scalescope.tuner.run", "resume")(folder, progress, **limits),
    _kept_of_tune,
    end=of_tuning,
    plan=lambda: import_module("scalescope.tuner.journal").TunePlan,
    record=kept(TUNING, "scalescope.records.tuning.Tuning"),
)
