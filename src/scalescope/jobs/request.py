"""Requests of measure: options are read, and what does not go together is refused."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from scalescope.engines import PLAIN, exchanging
from scalescope.errors import UsageError
from scalescope.jobs.command import uses_placeholder
from scalescope.jobs.own_ranks import is_launch_line
from scalescope.options import flags, options_of, read
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import ExplainRequest, MeasureRequest, TrainingRequest
from scalescope.records.site import Site, load_site
from scalescope.stats import FEWEST_STEPS
from scalescope.workloads import spec_from_options

_OF_JOBS = ("patience_s", "no_wait", "per_point")  # Options of jobs that are submitted


def fields_of(request: type[msgspec.Struct], given: Mapping[str, Any], verb: str) -> dict[str, Any]:
    """Fields of a request that trains something: options are read, and those of a MODEL become its workload.

    Raises:
        UsageError: Something cannot be read, or not exactly one thing is to be trained.
    """
    model = given.get("model", "")
    described = isinstance(model, WorkloadSpec)
    fields = in_nodes(request, read(request, {**given, "model": ""} if described else given))
    own = {option.field: option for option in options_of(request) if option.inside == "workload"}
    of_model = {name: fields.pop(name) for name in own if name in fields}
    if bool(model) == bool(fields.get("command")):
        instead = ", or -- and your command" if "command" in request.__struct_fields__ else ""
        raise UsageError(f"name one thing to {verb}: a MODEL such as cnn{instead}")
    if described:
        return {**fields, "workload": model}
    if model:
        return {**fields, "workload": spec_from_options(**of_model)}
    for name in (name for name, value in of_model.items() if value != own[name].default):
        if name not in ("optimizer", "learning_rate"):
            raise UsageError(f"{own[name].flag} goes with a MODEL: let your command do it")
    return fields


def in_nodes(request: type[msgspec.Struct], fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with numbers of processes for numbers of nodes; checked for a job that is to be submitted."""
    site = load_site(fields["site"]) if fields.get("site") else Site()
    if site.gpus_per_node and "per_node" not in fields:
        fields["per_node"] = site.gpus_per_node
    if not fields.get("submit"):
        only = [
            flag for flag, option in flags(request).values() if option.field in _OF_JOBS and fields.get(option.field)
        ]
        if only:
            raise UsageError(f"{only[0]} goes with a job: add --submit slurm, or leave it out")
    elif fields.get("hosts"):
        raise UsageError("the job gets its hosts from the scheduler: leave --hosts out, and say --nodes and --per-node")
    elif not fields.get("per_node"):
        raise UsageError("say how many processes a node of the job takes: --per-node 8, or gpus in the --site file")
    nodes = fields.get("nodes", ())
    if nodes and not fields.get("per_node"):
        raise UsageError("--nodes needs the number of processes on each: add --per-node, for example --per-node 8")
    if nodes and "np" in request.__struct_fields__:
        if fields.get("np"):
            raise UsageError("--nodes and --per-node say how many processes there are: leave --np out")
        counts = [count * fields["per_node"] for count in fields.pop("nodes")]
        np = next(option for option in options_of(request) if option.field == "np")
        fields["np"] = np.read(counts)
        if len(counts) > 1 and 1 not in counts and "smallest" in request.__struct_fields__:
            fields["smallest"] = True
    if fields.get("command") and re.match(r"[A-Za-z_]\w*=", fields["command"][0]):  # as a shell takes it
        fields["command"] = ("env", *fields["command"])
    return fields


def measure_request(**given: Any) -> MeasureRequest:
    """The request of measure, from texts of the command line or from Python values.

    Raises:
        UsageError: Something cannot be read, or contradicts something else.
    """
    fields = fields_of(MeasureRequest, given, "measure")
    usual = {"np": (1,)} if fields.get("engines") == (PLAIN.name,) else {}
    return MeasureRequest(**{**usual, **fields})


def traced_request(asked: ExplainRequest) -> MeasureRequest:
    """The one launch of a model or a command that explain captures."""
    if len(asked.np) > 1:
        shown = ",".join(map(str, asked.np))
        raise UsageError(f"--np takes one number of processes with a MODEL or a command, not '{shown}'")
    shared = {field.name: getattr(asked, field.name) for field in msgspec.structs.fields(TrainingRequest)}
    return MeasureRequest(
        **shared,
        np=asked.np or (2,),
        batch=(asked.batch,) if asked.batch else (),
        engines=(asked.engine,) if asked.engine else (),
        knobs=asked.knobs,
        pattern=asked.pattern,
        from_start=asked.from_start,
        cpu_detail=asked.cpu_detail,
        trace=True,
    )


def check_batches(command: tuple[str, ...], batches: tuple[int, ...]) -> None:
    """Batch sizes reach a command by its placeholders; one size may also state what the script takes by itself."""
    takes = uses_placeholder(command, "batch", "global_batch")
    if takes and not batches:
        raise UsageError("the command uses {batch} or {global_batch}: add --batch, for example --batch 32")
    if command and len(batches) > 1 and not takes:
        raise UsageError(
            "--batch names several sizes and the command takes none of them: write {batch} where it takes its own, "
            "such as --batch-size {batch}, or leave --batch out"
        )


def check_modes(request: MeasureRequest) -> None:
    """Refuse what does not go together, before anything else is looked at."""
    if PLAIN.name in request.engines:
        if not request.command or len(request.engines) > 1:
            raise UsageError(
                f"--engine takes {', '.join(exchanging())} or several; the run without an engine is the baseline anyway"
            )
        if request.np and max(request.np) > 1:
            raise UsageError(
                "--engine none starts the command as it is, in one process: use --np 1, "
                "or --launcher own when the command starts its ranks itself"
            )
        if request.launcher not in ("", "own"):
            raise UsageError(f"--engine none starts the command as it is: leave --launcher {request.launcher} out")
    if len(request.engines) > 1 and request.command:
        raise UsageError("a script has one engine: measure each engine's script on its own")
    if request.launcher == "own" and not request.command:
        raise UsageError("--launcher own needs your launch line after --")
    if request.command and is_launch_line(request.command) and request.launcher not in ("", "own"):
        raise UsageError(f"the command starts its ranks itself: leave --launcher {request.launcher} out")
    if request.trace and request.pattern:
        raise UsageError("--trace needs ranks that train with torch: leave --pattern or --trace out")
    if request.command and len(request.scaling) > 1 and not request.batch:
        raise UsageError("--scaling both needs --batch and {batch} in the command: a script is one kind or the other")
    if not request.np or any(count < 1 for count in (*request.np, *request.batch)):
        raise UsageError("numbers of processes and batch sizes are 1 or more: name at least one number of processes")
    if request.steps is not None and request.steps < FEWEST_STEPS:
        raise UsageError(
            f"--steps {request.steps} is fewer than warm-up needs: "
            f"give at least {FEWEST_STEPS}, better 30, so that a steady state can be told from it"
        )


def check_baseline(request: MeasureRequest) -> None:
    """Refuse numbers of processes that have no baseline."""
    counts = ",".join(map(str, request.np))
    if len(request.np) > 1 and 1 not in request.np and not request.smallest:
        raise UsageError(
            f"--np {counts} has no baseline: add 1 (--np 1,{counts}), "
            f"or compare with the smallest, {min(request.np)}, by --relative-to smallest"
        )
