"""From what a verb is told to its request: Python values and words of the command line are read alike, here only."""

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from scalescope.errors import UsageError
from scalescope.jobs.request import parse_environment, parse_hosts
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import SCALINGS, EstimateRequest, MeasureRequest, ProbeRequest
from scalescope.text import plain
from scalescope.units import (
    LARGEST_COUNT,
    MOST_PER_HOST,
    check_count,
    check_counts,
    check_fraction,
    check_seconds,
    parse_counts,
    parse_fraction,
    parse_seconds,
)
from scalescope.workloads import spec_from_options

DEVICES = ("cpu", "cuda", "auto")
DTYPES = ("fp32", "bf16")

Counts = str | int | Sequence[int]  # `1,2,4`, `1..8`, `8,16,...,512`, or the numbers
Seconds = str | float  # `90s`, `10m`, `2h`, or seconds
Fraction = str | float  # `5%` or 0.05
Assignments = Mapping[str, Any] | Sequence[str]  # By name, or NAME=VALUE texts
Place = str | Path | None


class ModelOptions(TypedDict, total=False):
    """How a model is built and trained."""

    model_args: Assignments | None  #: Of its constructor
    inputs: Sequence[str] | None  #: `3x224x224`, `int64:128:vocab=30000`: one per input
    loss: str
    optimizer: str
    learning_rate: float | None
    dtype: str  #: fp32, or bf16 for mixed precision
    accumulate: int  #: Passes that a step's batch is split into
    device: str  #: cpu, cuda or auto


class LaunchOptions(TypedDict, total=False):
    """How processes are started, and where."""

    command: Sequence[str]  #: The user's own training, instead of a model
    engine: str | Sequence[str]
    launcher: str
    hosts: str  #: `a:2,b:2`
    threads_per_rank: int | None
    env: Assignments | None  #: For every rank
    launcher_args: Sequence[str] | None
    oversubscribe: bool  #: More processes than slots
    ssh: str
    timeout_s: Seconds  #: Without progress
    steps: int | None  #: The training ends after them
    folder: Place  #: For the results


class MeasureOptions(ModelOptions, LaunchOptions, total=False):
    """What measure takes."""

    np: Counts
    batch: Counts
    scaling: str  #: strong, weak or both
    knobs: Assignments | None
    pattern: str  #: For scripts without torch: see scalescope.line_pattern
    port: int | None
    trace: bool
    launches: int | None
    precision: Fraction | None
    budget_s: Seconds | None
    quick: bool
    smallest: bool  #: Speedups are relative to the smallest number of processes
    seed: int | None


class CaptureOptions(MeasureOptions, total=False):
    """What explain takes to capture a run."""

    from_start: bool  #: The first steps, not steady ones
    cpu_detail: bool  #: Operators of the CPU, too, where GPUs do the work


class EstimateOptions(ModelOptions, total=False):
    """What estimate takes."""

    np: Counts
    batch: Counts
    scaling: str
    engine: str
    knobs: Assignments | None
    cluster: Place  #: A cluster.toml
    profile: Place  #: A profile.json
    step_time: str | float | Mapping[int, float]  #: `97ms` of one batch, `32=97ms,64=180ms`, or seconds by batch
    threads_per_rank: int | None
    seconds: Seconds  #: For the profile
    repeats: int
    efficiency: Fraction
    verify: int
    launches: int
    timeout_s: Seconds
    folder: Place


class ProbeOptions(TypedDict, total=False):
    """What probe takes."""

    hosts: str
    backends: str | Sequence[str]
    slots: int | None
    threads_per_rank: int
    seconds: Seconds
    device: str
    env: Assignments | None
    ssh: str
    timeout_s: Seconds
    folder: Place


def measure_request(model: str | WorkloadSpec = "", **options: Unpack[MeasureOptions]) -> MeasureRequest:
    """What measure is asked for.

    Raises:
        UsageError: Something cannot be read, or contradicts something else.
    """
    asked = checked_options(options)
    engines = names_of(asked.pop("engine", ()), "--engine")
    fewest = (1,) if engines == ("none",) else (1, 2)
    workload = workload_of(model, asked, "measure")
    return MeasureRequest(**{"np": fewest, "workload": workload, "engines": engines, **asked})


def traced_request(model: str | WorkloadSpec = "", **options: Unpack[CaptureOptions]) -> MeasureRequest:
    """What explain captures: one launch of a model or a command."""
    options["np"] = options.get("np") or 2
    request = measure_request(model, **options)  # type: ignore[misc]
    if len(request.np) > 1:
        shown = ",".join(map(str, request.np))
        raise UsageError(f"--np takes one number of processes with a MODEL or a command, not '{shown}'")
    return msgspec.structs.replace(request, trace=True)


def estimate_request(model: str | WorkloadSpec, **options: Unpack[EstimateOptions]) -> EstimateRequest:
    """What estimate is asked for.

    Raises:
        UsageError: Something cannot be read, or contradicts something else.
    """
    asked = checked_options(options)
    workload = workload_of(model, asked, "estimate")
    assert workload
    if times := asked.get("step_time"):
        from scalescope.estimation.step_time import known_times  # imports numpy

        asked |= known_times(times, asked.get("batch", ()))
        if asked.get("verify"):
            raise UsageError("--verify measures on this machine, --step-time is of another one: leave one of them out")
    request = EstimateRequest(workload=workload, **asked)
    cells = len(request.np) * len(request.batch) * len(request.scaling)
    if cells > _MOST_CELLS:
        raise UsageError(f"the map would have {cells:,} cells: ask for at most {_MOST_CELLS:,}, by --np and --batch")
    return request


def probe_request(**options: Unpack[ProbeOptions]) -> ProbeRequest:
    """What probe is asked for; without a backend the one that DDP uses here.

    Raises:
        UsageError: Something cannot be read, or is more than this machine can run.
    """
    from scalescope import host

    asked = checked_options(options)
    cores, slots = host.cores().logical, asked.get("slots", 0)
    if not asked.get("hosts") and slots > _MOST_PER_CORE * cores:
        raise UsageError(
            f"--slots {slots} is too many for the {cores} cores of this machine, with {_MOST_PER_CORE} ranks for each: "
            f"take at most {_MOST_PER_CORE * cores}, or name --hosts"
        )
    usual = "gloo" if asked.get("device") == "cpu" or not host.gpus() else "nccl"
    return ProbeRequest(**{**asked, "backends": names_of(asked.get("backends", usual), "--backend")})


def log_counts(value: Counts) -> tuple[int, ...]:
    """Numbers of processes, one per log, in the order of the logs."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) and value else []
    if not all(re.fullmatch("0*[1-9][0-9]{0,8}", part) for part in parts):
        raise UsageError(f"--np takes whole numbers such as 1,2,4, one per log, not '{plain(str(value), 60)}'")
    if isinstance(value, str):
        return tuple(int(part) for part in parts)
    return (value,) if isinstance(value, int) else tuple(value)


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, read and checked; what was left empty is not in it, so that the request's default holds."""
    given = {name: value for name, value in options.items() if value not in (None, "", (), [], {})}
    for name, value in given.items():
        if isinstance(value, int) and name not in _READ:
            check_count(value, f"--{name.replace('_', '-')}", _MOST.get(name, LARGEST_COUNT))
    return {name: _READ[name](value) if name in _READ else value for name, value in given.items()}


def workload_of(model: str | WorkloadSpec, asked: dict[str, Any], verb: str) -> WorkloadSpec | None:
    """The model with its options, which are taken out of what was asked; None for a command."""
    if bool(model) == bool(asked.get("command")):
        raise UsageError(f"name one thing to {verb}: a MODEL such as cnn, or -- and your command")
    own = {
        name: asked.pop(name)
        for name in ("model_args", "inputs", "loss", "optimizer", "learning_rate", "dtype", "accumulate")
        if name in asked
    }
    if isinstance(model, WorkloadSpec):
        return model
    if not model:
        if own.keys() & {"model_args", "inputs", "loss"}:
            raise UsageError("--model-arg, --input and --loss go with a MODEL: pass them in your command instead")
        if own.get("dtype", DTYPES[0]) != DTYPES[0] or own.get("accumulate", 1) != 1:
            raise UsageError("--dtype and --accumulate go with a MODEL: let your script do it")
        return None
    arguments = own.pop("model_args", ())
    if isinstance(arguments, Mapping):
        return msgspec.structs.replace(spec_from_options(model, **own), model_args=dict(arguments))
    return spec_from_options(model, model_args=arguments, **own)


def names_of(value: str | Sequence[str], option: str) -> tuple[str, ...]:
    """`a,b` or a list, each name once."""
    names = value.split(",") if isinstance(value, str) else value
    found = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if names and not found:
        raise UsageError(f"{option} names nothing: name one, or leave it out")
    return found


def texts_of(value: Assignments) -> tuple[str, ...]:
    """NAME=VALUE texts of either form."""
    if not isinstance(value, Mapping):
        return tuple(value)
    return tuple(f"{name}={str(each).lower() if isinstance(each, bool) else each}" for name, each in value.items())


def _counts(option: str) -> Callable[[Counts], tuple[int, ...]]:
    def read(value: Counts) -> tuple[int, ...]:
        if isinstance(value, str):
            return parse_counts(value, option)
        return check_counts((value,) if isinstance(value, int) else value, option)

    return read


def _seconds(option: str) -> Callable[[Seconds], float]:
    return lambda value: parse_seconds(value, option) if isinstance(value, str) else check_seconds(value, option)


def _fraction(option: str) -> Callable[[Fraction], float]:
    return lambda value: parse_fraction(value, option) if isinstance(value, str) else check_fraction(value, option)


def _learning_rate(value: float) -> float:
    if not 0 <= value < math.inf:
        raise UsageError(f"--learning-rate takes a number from 0 on, such as 0.1, not {value:g}")
    return value


def _choice(option: str, choices: Sequence[str]) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in choices:
            raise UsageError(f"{option} takes {', '.join(choices[:-1])} or {choices[-1]}, not '{value}'")
        return str(value)

    return read


def _environment(value: Assignments) -> dict[str, str]:
    return dict(value) if isinstance(value, Mapping) else parse_environment(list(value))


def _launcher_words(value: Sequence[str]) -> tuple[str, ...]:
    """Arguments of the launcher, as a shell would split them."""
    try:
        return tuple(word for text in value for word in shlex.split(text))
    except ValueError as problem:
        raise UsageError(f"--launcher-arg cannot be split into words ({problem}): close its quotes") from None


_MOST_CELLS = 1_000_000
_MOST_PER_CORE = 8  # Ranks that a probe starts: more of them only wait for each other
_MOST = {"slots": MOST_PER_HOST, "threads_per_rank": MOST_PER_HOST, "seed": 2**63 - 1}  # What a record can hold
_READ: dict[str, Callable[[Any], Any]] = {
    "np": _counts("--np"),
    "batch": _counts("--batch"),
    "scaling": lambda value: SCALINGS[_choice("--scaling", tuple(SCALINGS))(value)],
    "device": _choice("--device", DEVICES),
    "dtype": _choice("--dtype", DTYPES),
    "command": tuple,
    "inputs": tuple,
    "hosts": parse_hosts,
    "env": _environment,
    "knobs": texts_of,
    "launcher_args": _launcher_words,
    "precision": _fraction("--precision"),
    "efficiency": _fraction("--efficiency"),
    "budget_s": _seconds("--budget"),
    "seconds": _seconds("--seconds"),
    "timeout_s": _seconds("--timeout"),
    "learning_rate": _learning_rate,
    "cluster": str,
    "profile": str,
    "log_file": str,
    "folder": str,
}
