"""Types a request back as a command: of the same verb, or of another one that trains the same in the same way."""

import shlex
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from scalescope.cli.output import from_here
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import SCALINGS, EstimateRequest, MeasureRequest
from scalescope.records.study import StudyRequest
from scalescope.records.tuning import TuneRequest
from scalescope.text import MASK

Request = MeasureRequest | EstimateRequest | TuneRequest | StudyRequest

_USUAL_BATCHES = EstimateRequest(workload=WorkloadSpec(model="")).batch
# What belongs to one run and not to the training: typed again only when it is said anew.
_OF_ONE_RUN = {
    *(
        "launches",
        "precision",
        "budget_s",
        "quick",
        "trace",
        "seed",
        "folder",
        "log_file",
        "method",
        "start_from",
        "confirm",
    ),
    *(
        "warmup_samples",
        "steps_per_sample",
        "max_samples",
        "gp_noise",
        "autotune_noise",
        "verify",
        "repeats",
        "seconds",
        "profile",
    ),
}


def retyped(verb: str, request: Request, **changes: Any) -> str:
    """The command that asks a verb for the same training.

    Args:
        verb: Of the new command.
        request: What is trained, on what, and how it is launched. What the verb has no option for is left out.
        **changes: Fields of the request that differ, or options of the new verb.
    """
    fields = {name: value for name, value in msgspec.structs.asdict(request).items() if name not in _OF_ONE_RUN}
    told = _as_options({**fields, **changes}, verb)
    words, command = ["scalescope", verb], told.pop("command", ())
    if workload := told.pop("workload", None):
        words.append(workload.model)
        told |= _of_model(workload)
    for name, flag, usual in _options_of(verb):
        value = told.get(name)
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [word for text in value for word in _said(flag, text)]
        elif value not in (None, False, "", usual):
            words += [flag, str(value)]
    return shlex.join([*words, "--", *command] if command else words)


def of_one_run(request: Request) -> dict[str, Any]:
    """What was said for this run only, to be typed again by whoever repeats it as it was."""
    places = {"folder", "log_file", "profile", "start_from"}  # of files that were there then
    fields = {field.name: field for field in msgspec.structs.fields(request)}
    told = {name: getattr(request, name) for name in sorted(_OF_ONE_RUN - places) if name in fields}
    return {name: value for name, value in told.items() if value not in (None, fields[name].default)}


def folder_command(verb: str, folder: Path, *words: str) -> str:
    """`scalescope VERB FOLDER ...`, or with an option before the folder."""
    return shlex.join(["scalescope", *verb.split(), str(from_here(folder)), *words])


def _said(flag: str, text: str) -> list[str]:
    """What begins like an option itself has to be tied to its flag."""
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _options_of(verb: str) -> list[tuple[str, str, Any]]:
    """Field, flag and default of every option of a verb."""
    import typer

    from scalescope.cli import application

    command = typer.main.get_command(application()).commands[verb]  # type: ignore[attr-defined]
    return [(each.name, each.opts[0], each.default) for each in command.params if each.param_type_name == "option"]


def _as_options(asked: dict[str, Any], verb: str) -> dict[str, Any]:
    """Fields of a request as the texts of options."""
    knobs = asked.pop("hold", None) or asked.pop("knobs", None) or ()
    asked["hold" if verb == "tune" else "knobs"] = list(knobs)
    if engines := asked.pop("engines", ()):
        asked["engine"] = ",".join(engines)
    if asked.pop("smallest", False):
        asked["relative_to"] = "smallest"
    if verb == "estimate" and asked.get("batch") == _USUAL_BATCHES:
        del asked["batch"]
    texts: dict[str, Callable[[Any], Any]] = {
        "np": _list,
        "batch": _list,
        "scaling": lambda value: next(name for name, kinds in SCALINGS.items() if kinds == value),
        "hosts": lambda value: ",".join(f"{host.name}:{host.slots}" for host in value),
        "env": lambda value: [f"{name}={MASK}" for name in value],  # to be typed again: logs keep what is printed
        "launcher_args": lambda value: [shlex.quote(word) for word in value],
        "search": list,
        "budget_s": _seconds,
        "seconds": _seconds,
        "timeout_s": lambda value: _seconds(value) if value != MeasureRequest().timeout_s else "",
        "step_time": lambda value: ",".join(f"{batch}={seconds * 1e3:g}ms" for batch, seconds in value.items()),
        "efficiency": lambda value: f"{value:.4g}" if value != 0.8 else "",
    }
    return {name: texts[name](value) if name in texts else value for name, value in asked.items() if value}


def _seconds(value: float) -> str:
    return f"{round(value, 1) or value:g}s"


def _list(value: int | tuple[int, ...]) -> str:
    """`8,16,...,512` where it is one: commands are read."""
    counts = (value,) if isinstance(value, int) else value
    if len(counts) > 2 and counts == tuple(range(counts[0], counts[-1] + 1)):
        return f"{counts[0]}..{counts[-1]}"
    if len(counts) > 3 and all(later == 2 * former for former, later in pairwise(counts)):
        return f"{counts[0]},{counts[1]},...,{counts[-1]}"
    return ",".join(map(str, counts))


def _of_model(workload: WorkloadSpec) -> Mapping[str, Any]:
    options = msgspec.structs.asdict(workload)
    options["model_args"] = [f"{name}={value}" for name, value in workload.model_args.items()]
    options["inputs"] = list(workload.inputs)
    options["learning_rate"] = None if workload.learning_rate is None else f"{workload.learning_rate:g}"
    return options
