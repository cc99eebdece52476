"""Reading result folders and files into one Results per training; partial folders as far as they go."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from scalescope.diagnosis.sources import explain, explain_traces
from scalescope.engines import exchanging, find_engine
from scalescope.errors import ScalescopeError, UsageError
from scalescope.jobs.folders import mark_of
from scalescope.logs.files import record_kind
from scalescope.measurement.joining import Part, add_up, difference, join
from scalescope.measurement.scaling import scaling_of
from scalescope.records.autotune import Autotune
from scalescope.records.cluster_file import load_cluster
from scalescope.records.explanation import TRACE_RECORD, Explanation, TraceFolder
from scalescope.records.files import (
    AUTOTUNE,
    CLUSTER,
    EXPLANATION,
    MEASUREMENT,
    PLAN,
    PREDICTION,
    PROFILE,
    SCALING,
    STEP,
    TUNING,
)
from scalescope.records.job import Knobs
from scalescope.records.prediction import Prediction
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EstimatePlan, Plan
from scalescope.records.results import Results, RunInfo
from scalescope.records.run import Measurement
from scalescope.records.scaling import Scaling
from scalescope.records.store import load, load_lines
from scalescope.records.study import STUDY, Study, StudyPlan
from scalescope.records.timeline import Timeline
from scalescope.records.tuning import Sample, Tuning
from scalescope.simulator.step import predicted_step
from scalescope.studies.compare import compare
from scalescope.text import plain, plural
from scalescope.tuner.journal import SAMPLES, TunePlan
from scalescope.tuner.settings import how_to_use

_VERBS = ("estimate", "measure", "explain", "tune", "probe")  # Whose folders are read, and looked for one level down
_NAMES = "a folder of scalescope estimate, measure, explain, tune or study, or files that scalescope explain reads"
RECORDS: dict[str, type[Any]] = {
    "prediction": Prediction,
    "measurement": Measurement,
    "scaling": Scaling,
    "explanation": Explanation,
    "tuning": Tuning,
    "autotune": Autotune,
}  # Records that may be named themselves, by kind


def read_results(paths: Sequence[str | Path]) -> list[Results]:
    """One Results per training, in the order of the paths.

    Folders of one training (the same model or command, each another verb's) are joined, and so are measurements of
    other points of its curve on like machines; what repeats a kind that is there already is a training of its own, to
    be compared.

    Raises:
        UsageError: A path does not exist, or holds nothing that can be shown.
    """
    found: list[Results] = []
    for path in map(Path, paths):
        new = _read(path)
        reasons = {at: difference(_part(old), _part(new)) for at, old in enumerate(found) if _make_one_curve(old, new)}
        if "" in reasons.values():
            curve = next(at for at, why in reasons.items() if not why)
            measurement = join(_part(found[curve]), _part(new))
            both = _joined(found[curve], new)
            found[curve] = msgspec.structs.replace(both, measurement=measurement, scaling=scaling_of(measurement))
            continue
        apart = [
            f"{new.name} is not joined with {found[at].name}: it was measured with {why}" for at, why in reasons.items()
        ]
        new = msgspec.structs.replace(new, apart=tuple(apart))
        at = next((at for at, old in enumerate(found) if _belong_together(old, new, alone=len(found) == 1)), None)
        if at is None:
            found.append(new)
        else:
            found[at] = _joined(found[at], new)
    if not found:
        raise UsageError(f"name results: {_NAMES}")
    return [_with_predicted_steps(each) for each in found]


def _belong_together(old: Results, new: Results, *, alone: bool) -> bool:
    """Traces and logs are named after files, so that they join the only training there is, whatever it is called."""
    if old.kinds & new.kinds:
        return False
    named_by_file = new.kinds <= {"explanation", "autotune"} or old.kinds <= {"explanation", "autotune"}
    return old.what == new.what or (alone and named_by_file) or not new.kinds or not old.kinds


def _make_one_curve(old: Results, new: Results) -> bool:
    """True where both measured one training, each in its own part."""
    one, other, shared = old.measurement, new.measurement, old.kinds & new.kinds
    if not one or not other or old.study or new.study or not shared <= {"scaling", "explanation"}:
        return False
    return one.what == other.what and add_up(one, other)


def _part(results: Results) -> Part:
    """The measurement of results, with the plan of its folder."""
    assert results.measurement
    folder = next((each.folder for each in results.done if each.verb == "measure"), "")
    return Part(results.name, results.measurement, _plan(Path(folder), Plan) if folder else None)


def _joined(old: Results, new: Results) -> Results:
    changes: dict[str, Any] = {}
    for field in msgspec.structs.fields(Results):
        first, second = getattr(old, field.name), getattr(new, field.name)
        changes[field.name] = first + second if isinstance(first, tuple) else first or second
    return Results(**changes)


def _read(path: Path) -> Results:
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise UsageError(f"'{plain(str(path))}' does not exist: name {_NAMES}")
    kind = record_kind(path) if path.suffix == ".json" else ""
    record: Any = load(path, RECORDS[kind]) if kind in RECORDS else explain([path])
    return of_record(record, path.name)


def of_record(record: Any, name: str) -> Results:
    """One record as all that is known of a training."""
    if isinstance(record, Measurement):
        return Results(name=name, measurement=record, scaling=scaling_of(record))
    if isinstance(record, Tuning):
        return Results(name=name, tuning=record, settings=_settings(record))
    if isinstance(record, Explanation):
        return Results(name=name, explanations=(record,), traced_batches=(None,))
    return Results(name=name, **{type(record).__name__.lower(): record})


def _folder(folder: Path) -> Results:
    """Results in the folder itself, or else those of the folders of verbs in it together."""
    own = _own(folder)
    inside = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and mark_of(entry) in _VERBS]
    if not own.kinds:
        for entry in inside:
            new = _own(entry)
            if both := own.kinds & new.kinds:
                kind = min(both)
                raise UsageError(f"{folder} holds more than one {kind}, the last in {entry.name}: name those to show")
            own = _joined(own, new)
        own = _with_study(own, folder)
    if own.kinds or own.cluster:
        return msgspec.structs.replace(own, name=folder.name or str(folder))
    if own.missing:
        raise UsageError(f"{folder} holds no results yet: {own.missing[0]}")
    try:
        return of_record(explain([folder]), folder.name)
    except UsageError as problem:
        raise UsageError(f"{folder} holds no results: name {_NAMES} ({problem})") from None


def _with_study(own: Results, folder: Path) -> Results:
    """The parts of a study with what became of each, and with its launches of the tuned setting and the default."""
    if mark_of(folder) != "study":
        return own
    again = f"scalescope study --resume -o {shlex.quote(str(folder))}"
    if not (folder / STUDY).is_file() or not own.kinds:
        return msgspec.structs.replace(own, missing=(again,))
    plan = _plan(folder, StudyPlan)
    done = (RunInfo(verb="study", folder=str(folder), fingerprint=plan.fingerprint),) if plan else ()
    check, places = None, [folder / "check" / name for name in ("default", "tuned")]
    if all((place / MEASUREMENT).is_file() for place in places):
        with suppress(ScalescopeError):
            check = compare(_own(places[0]), _own(places[1])).decisive[0]
    study = load(folder / STUDY, Study)
    open_ = [part.name for part in study.parts if part.state in ("planned", "running")]
    missing = (f"not finished: {', '.join(open_)}: {again}",) if open_ else ()
    return msgspec.structs.replace(own, study=study, check=check, missing=missing, done=(*own.done, *done))


def _own(folder: Path) -> Results:
    results = Results(name=folder.name)
    for part in (_estimated, _measured, _explained, _tuned):
        results = _joined(results, part(folder))
    return results


def _estimated(folder: Path) -> Results:
    found: dict[str, Any] = {}
    plan = _plan(folder, EstimatePlan)
    if plan:
        found["done"] = (RunInfo(verb="estimate", folder=str(folder), fingerprint=plan.fingerprint),)
    if (folder / PREDICTION).is_file():
        found["prediction"] = load(folder / PREDICTION, Prediction)
        if (folder / STEP).is_file():
            found["predicted_step"] = load(folder / STEP, Timeline)
    elif plan:
        found["missing"] = (f"the estimate in {folder} is not finished: type the same command to continue",)
    with suppress(ScalescopeError):  # of an earlier version: the map is there without them
        if (folder / PROFILE).is_file():
            found["profile"] = load(folder / PROFILE, ModelProfile)
        if (folder / CLUSTER).is_file():
            found["cluster"] = load_cluster(folder / CLUSTER)
    return Results(name=folder.name, **found)


def _measured(folder: Path) -> Results:
    found: dict[str, Any] = {}
    plan = _plan(folder, Plan)
    if plan:
        verb = mark_of(folder) or "measure"
        seed, fingerprint = plan.request.seed, plan.fingerprint
        found["done"] = (RunInfo(verb=verb, folder=str(folder), seed=seed, fingerprint=fingerprint),)
    if (folder / MEASUREMENT).is_file():
        measurement = load(folder / MEASUREMENT, Measurement)
        if not measurement.quick:  # as launches that check an estimate are
            found |= {"measurement": measurement, "scaling": scaling_of(measurement)}
    elif (folder / SCALING).is_file():
        found["scaling"] = load(folder / SCALING, Scaling)
    elif plan and mark_of(folder) == "measure":
        again = f"scalescope measure --resume {shlex.quote(str(folder))}"
        found["missing"] = (f"no launch of {folder} has finished yet: {again}",)
    return Results(name=folder.name, **found)


def _explained(folder: Path) -> Results:
    """Explanations in explain's folder, or of traced launches of a measurement, which are explained now if need be."""
    places = [folder, *sorted(entry for entry in folder.glob("traces/*") if entry.is_dir())]
    found, batches = [], []
    for place in places:
        traced = (place / TRACE_RECORD).is_file()
        if (place / EXPLANATION).is_file():
            found.append(load(place / EXPLANATION, Explanation))
        elif traced:
            found.append(explain_traces([place]))
        else:
            continue
        batches.append(load(place / TRACE_RECORD, TraceFolder).point.batch if traced else None)
    logs: dict[str, Any] = {"autotune": load(folder / AUTOTUNE, Autotune)} if (folder / AUTOTUNE).is_file() else {}
    return Results(name=folder.name, explanations=tuple(found), traced_batches=tuple(batches), **logs)


def _tuned(folder: Path) -> Results:
    plan = _plan(folder, TunePlan)
    done = (RunInfo(verb="tune", folder=str(folder), fingerprint=plan.fingerprint),) if plan else ()
    if (folder / TUNING).is_file():
        tuning = load(folder / TUNING, Tuning)
        return Results(name=folder.name, tuning=tuning, settings=_settings(tuning), done=done)
    if not plan:
        return Results(name=folder.name)
    from scalescope.tuner.run import how_to_finish  # what launches is imported where a search was killed

    samples = len(load_lines(folder / SAMPLES, Sample))
    told = f"the search in {folder} ended after {plural(samples, 'sample')}: {how_to_finish(plan, folder)}"
    return Results(name=folder.name, done=done, missing=(told,))


def _settings(tuning: Tuning) -> tuple[str, ...]:
    return tuple(how_to_use(tuning.engine, {**tuning.held, **tuning.values})) if tuning.decision == "use" else ()


def _plan(folder: Path, plan_type: type[Any]) -> Any:
    """The plan of this verb; None where it is another one's, or cannot be read."""
    with suppress(ScalescopeError):
        return load(folder / PLAN, plan_type)
    return None


def _with_predicted_steps(results: Results) -> Results:
    """Every traced step gets the predicted one next to it, where there is a profile to predict it from."""
    profile, cluster, explanations = results.profile, results.cluster, []
    for each, batch in zip(results.explanations, results.traced_batches, strict=True):
        can_predict = each.engine in exchanging() and not each.predicted_step
        if profile and cluster and batch is not None and can_predict:
            knobs = Knobs(engine=each.engine, values=find_engine(each.engine).values_for(each.backend))
            step = predicted_step(profile, cluster, knobs, each.world_size or len(each.ranks), batch)
            each = msgspec.structs.replace(each, predicted_step=step)
        explanations.append(each)
    return msgspec.structs.replace(results, explanations=tuple(explanations))
