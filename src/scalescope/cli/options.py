"""Options that several verbs share, as types."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scalescope.records.profile import WorkloadSpec

MODEL_PANEL = "The model"

ModelArg = Annotated[
    list[str] | None, typer.Option(help="A constructor argument: NAME=VALUE.", rich_help_panel=MODEL_PANEL)
]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", help="3x224x224, or int64:128:vocab=30000; once per input.", rich_help_panel=MODEL_PANEL),
]
Loss = Annotated[str, typer.Option(help="A name or file.py:function.", rich_help_panel=MODEL_PANEL)]
Optimizer = Annotated[str, typer.Option(help="A name or file.py:function.", rich_help_panel=MODEL_PANEL)]
LearningRate = Annotated[float | None, typer.Option(help="Of a named optimizer.", rich_help_panel=MODEL_PANEL)]
Timeout = Annotated[str, typer.Option(help="Abort a launch after this long without progress.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer.")]


def as_typed(workload: "WorkloadSpec") -> str:
    """The model with the options that make it what it is."""
    words = [workload.model]
    words += [word for name, value in workload.model_args.items() for word in ("--model-arg", f"{name}={value}")]
    words += [word for text in workload.inputs for word in ("--input", text)]
    words += ["--loss", workload.loss] if workload.loss else []
    words += ["--optimizer", workload.optimizer] if workload.optimizer != "sgd" else []
    words += ["--learning-rate", f"{workload.learning_rate:g}"] if workload.learning_rate is not None else []
    return shlex.join(words)
