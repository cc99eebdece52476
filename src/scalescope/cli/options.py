"""Options that several verbs share, as types."""

from typing import Annotated

import typer

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
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer.")]
