"""Options that verbs share, and groups: a verb takes groups as parameters, the command line shows their fields.

A field is named as the keyword of the API that takes it, so that a verb hands its groups on as they are.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


class ScalingChoice(StrEnum):
    """What stays the same while processes are added."""

    strong = "strong"
    weak = "weak"
    both = "both"


statistics_option = partial(typer.Option, rich_help_panel="Statistics")
launch_option = partial(typer.Option, rich_help_panel="Launch")
_model = partial(typer.Option, rich_help_panel="Model")
_output = partial(typer.Option, rich_help_panel="Output")

Model = Annotated[
    str, typer.Argument(help="Built-in name, package.module:factory or file.py:factory; or -- COMMAND instead.")
]
Engine = Annotated[str, typer.Option(help="ddp or horovod (default: what the script imports; ddp for a MODEL).")]
ScalingOption = Annotated[
    ScalingChoice, typer.Option(help="weak: --batch is per process; strong: --batch is global; or both.")
]
Knobs = Annotated[list[str] | None, typer.Option("--knob", metavar="NAME=VALUE", help="Engine setting; repeatable.")]
Hosts = Annotated[
    str, launch_option(metavar="HOST:SLOTS,...", help="Hosts and slots: a:2,b:2 (default: this machine).")
]
Threads = Annotated[
    int | None, launch_option(min=1, metavar="N", help="Threads per rank (default: cores // ranks on a host).")
]
Env = Annotated[
    list[str] | None, launch_option(metavar="NAME=VALUE", help="Environment variable for every rank; repeatable.")
]
Ssh = Annotated[str, launch_option(metavar="PROGRAM", help="Program that starts a shell on another host.")]
Timeout = Annotated[
    str, launch_option("--timeout", metavar="TIME", help="Abort a launch after this long without progress.")
]
Device = Annotated[str, _model(metavar="cpu|cuda|auto", help="Device of a MODEL.")]
Steps = Annotated[
    int | None, launch_option(min=1, metavar="N", help="Stop after N steps (default: when the script ends).")
]
Pattern = Annotated[
    str,
    typer.Option(
        metavar="REGEX",
        help="Regular expression for the lines to read, with a named group: step_s, epoch_s, examples_per_s, "
        "examples_per_s_total or examples_per_s_per_worker. measure also takes one without groups: a line per step.",
    ),
]
Folder = Annotated[Path | None, _output("-o", metavar="DIR", help="Folder for the results.")]
DryRun = Annotated[bool, _output("--dry-run", help="Print what would be started, and start nothing.")]
ShowOutput = Annotated[bool, _output("--show-output", help="Show what the ranks print, tagged with their rank.")]
Json = Annotated[bool, _output("--json", help="Print one JSON document on stdout, everything else on stderr.")]


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """How a MODEL is built and trained."""

    model_args: Annotated[
        list[str] | None, _model("--model-arg", metavar="NAME=VALUE", help="Constructor argument; repeatable.")
    ] = None
    inputs: Annotated[
        list[str] | None,
        _model("--input", metavar="SHAPE", help="3x224x224 or int64:128:vocab=30000; once per input."),
    ] = None
    loss: Annotated[str, _model(help="Name or file.py:function (default: that of the model).")] = ""
    optimizer: Annotated[str, _model(help="Name or file.py:function.")] = "sgd"
    learning_rate: Annotated[float | None, _model(metavar="X", help="Learning rate of a named optimizer.")] = None
    dtype: Annotated[str, _model(metavar="fp32|bf16", help="bf16: mixed precision of a MODEL (autocast).")] = "fp32"
    accumulate: Annotated[
        int, _model(min=1, metavar="N", help="Gradient accumulation: passes that a step's batch is split into.")
    ] = 1
    device: Device = "auto"


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """How processes are started, and where."""

    launcher: Annotated[
        str, launch_option(help="torchrun, mpirun, horovodrun, srun or own (default: the usual one of the engine).")
    ] = ""
    hosts: Hosts = ""
    threads_per_rank: Threads = None
    env: Env = None
    launcher_args: Annotated[
        list[str] | None, launch_option("--launcher-arg", metavar="ARG", help="Passed on to the launcher; repeatable.")
    ] = None
    oversubscribe: Annotated[bool, launch_option("--oversubscribe", help="Allow more processes than slots.")] = False
    ssh: Ssh = "ssh"
    timeout_s: Timeout = "10m"
    steps: Steps = None


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """What is shown, and how."""

    json: Json = False
    details: Annotated[bool, _output("--details", help="Show all tables, not only the answer.")] = False
    quiet: Annotated[bool, _output("--quiet", "-q", help="Show only the answer.")] = False
    verbose: Annotated[bool, _output("--verbose", help="Show one line per launch or sample.")] = False
    formats: Annotated[str, _output(metavar="LIST", help="Formats of the pictures, out of html, png, svg and pdf.")] = (
        "html,png"
    )


def given(*groups: Any) -> dict[str, Any]:
    """The fields of groups as keywords of the API."""
    return {field.name: getattr(group, field.name) for group in groups for field in dataclasses.fields(group)}


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb as typer takes it: the fields of its groups are its parameters."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.name not in groups:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY))
            continue
        group = groups[parameter.name]
        fields = get_type_hints(group, include_extras=True)
        for field in dataclasses.fields(group):
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(field.name, kind, default=field.default, annotation=fields[field.name]))

    @functools.wraps(verb)
    def run(**told: Any) -> None:
        for name, group in groups.items():
            told[name] = group(**{field.name: told.pop(field.name) for field in dataclasses.fields(group)})
        verb(**told)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def typed_options(context: typer.Context) -> dict[str, str]:
    """The parameters that were typed, each with the name that it is typed by."""
    names = {
        str(parameter.name): parameter.opts[0] if parameter.param_type_name == "option" else "the MODEL"
        for parameter in context.command.params
    }
    sources = {name: str(context.get_parameter_source(name)) for name in names}
    return {name: option for name, option in names.items() if sources[name].endswith("COMMANDLINE")}
