"""The options of `scalescope tune`, as types; several also go by the name that horovodrun gave them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class TuneMethod(StrEnum):
    """How settings are tried."""

    online = "online"
    offline = "offline"
    native = "native"


_SEARCH, _KNOBS, _JOB, _RUN = "The search", "Knobs that are held, not searched", "Where and how it runs", "The run"
_OLD = "The search, in horovodrun's words"

Model = Annotated[
    str, typer.Argument(help="A built-in model, package.module:factory or file.py:factory. Or: -- COMMAND...")
]
Np = Annotated[str, typer.Option(help="Number of processes (2, or all slots of --hosts).")]
Batch = Annotated[int | None, typer.Option(min=1, help="Batch size per process (32 for a MODEL).")]
EngineName = Annotated[str, typer.Option(help="ddp or horovod (what the script imports; ddp for a MODEL).")]
Offline = Annotated[bool, typer.Option("--offline", help="Try every setting in a launch of its own.")]
StartFrom = Annotated[
    Path | None, typer.Option(help="Train with a setting found earlier: tuned.yaml, tuning.json or their folder.")
]

Method = Annotated[
    TuneMethod | None,
    typer.Option(
        help="online: while it trains (DDP); offline: by relaunch (Horovod); native: by Horovod's own autotune.",
        rich_help_panel=_SEARCH,
    ),
]
WarmupSamples = Annotated[
    int | None,
    typer.Option(min=0, help="Leave out so many samples' worth of steps first.", rich_help_panel=_SEARCH),
]
StepsPerSample = Annotated[
    int | None, typer.Option(min=1, help="Steps that are measured of every setting.", rich_help_panel=_SEARCH)
]
MaxSamples = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Try at most so many settings; it stops earlier when no more is to be gained.",
        rich_help_panel=_SEARCH,
    ),
]
GpNoise = Annotated[
    float | None,
    typer.Option(help="Noise of a sample, 0 to 1 of its step time (as measured).", rich_help_panel=_SEARCH),
]
Search = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KNOB",
        help="Search gradient_as_bucket_view too; scripts that hold on to gradients may not stand it.",
        rich_help_panel=_SEARCH,
    ),
]
LogFile = Annotated[
    Path | None, typer.Option(help="CSV with a row per sample (tune.csv among the results).", rich_help_panel=_SEARCH)
]
Resume = Annotated[
    Path | None,
    typer.Option(help="Go on with the search by relaunch in this folder.", rich_help_panel=_SEARCH),
]

AutotuneWarmupSamples = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="--warmup-samples", rich_help_panel=_OLD)
]
AutotuneStepsPerSample = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="--steps-per-sample", rich_help_panel=_OLD)
]
AutotuneMaxSamples = Annotated[int | None, typer.Option(min=1, metavar="N", help="--max-samples", rich_help_panel=_OLD)]
AutotuneNoise = Annotated[float | None, typer.Option(metavar="N", help="--gp-noise", rich_help_panel=_OLD)]
AutotuneLogFile = Annotated[Path | None, typer.Option(metavar="CSV", help="--log-file", rich_help_panel=_OLD)]

Hold = Annotated[
    list[str] | None, typer.Option(help="Keep a knob as told: NAME=VALUE; once per knob.", rich_help_panel=_KNOBS)
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(help="Knobs and options from YAML as horovodrun takes it, or a tuned.yaml.", rich_help_panel=_KNOBS),
]
BucketCap = Annotated[
    str | None, typer.Option(metavar="MIB", help="DDP: size at which a bucket is sent.", rich_help_panel=_KNOBS)
]
FirstBucket = Annotated[
    str | None, typer.Option(metavar="MIB", help="DDP: size of the first bucket.", rich_help_panel=_KNOBS)
]
BucketView = Annotated[
    bool | None,
    typer.Option(
        "--gradient-as-bucket-view/--no-gradient-as-bucket-view",
        help="DDP: gradients live inside the buckets.",
        rich_help_panel=_KNOBS,
    ),
]
StaticGraph = Annotated[
    bool | None,
    typer.Option(
        "--static-graph/--no-static-graph",
        help="DDP: every step uses the same parameters.",
        rich_help_panel=_KNOBS,
    ),
]
HierarchicalAllreduce = Annotated[
    bool | None,
    typer.Option(
        "--hierarchical-allreduce/--no-hierarchical-allreduce",
        help="Reduce inside each host first.",
        rich_help_panel=_KNOBS,
    ),
]
HierarchicalAllgather = Annotated[
    bool | None,
    typer.Option(
        "--hierarchical-allgather/--no-hierarchical-allgather",
        help="Horovod: gather inside each host first.",
        rich_help_panel=_KNOBS,
    ),
]
FusionThreshold = Annotated[
    str | None,
    typer.Option(metavar="MIB", help="Horovod: tensors are sent together up to this size.", rich_help_panel=_KNOBS),
]
CycleTime = Annotated[
    str | None, typer.Option(metavar="MS", help="Horovod: how often the ranks agree.", rich_help_panel=_KNOBS)
]
CacheCapacity = Annotated[
    str | None,
    typer.Option(metavar="COUNT", help="Horovod: agreements that are remembered.", rich_help_panel=_KNOBS),
]

Launcher = Annotated[str, typer.Option(help="torchrun, mpirun, horovodrun, srun or own.", rich_help_panel=_JOB)]
Hosts = Annotated[str, typer.Option(help="Named hosts with slots: a:2,b:2.", rich_help_panel=_JOB)]
ThreadsPerRank = Annotated[
    int | None, typer.Option(min=1, help="Threads of every rank (cores // ranks of a host).", rich_help_panel=_JOB)
]
Env = Annotated[list[str] | None, typer.Option(help="A variable for every rank: NAME=VALUE.", rich_help_panel=_JOB)]
LauncherArg = Annotated[list[str] | None, typer.Option(help="Passed to the launcher as it is.", rich_help_panel=_JOB)]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Allow more processes than slots.", rich_help_panel=_JOB)
]
Ssh = Annotated[str, typer.Option(help="The program that reaches named hosts.", rich_help_panel=_JOB)]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto, for a MODEL.", rich_help_panel=_JOB)]

Steps = Annotated[int | None, typer.Option(min=1, help="End the training after so many steps.", rich_help_panel=_RUN)]
Timeout = Annotated[
    str, typer.Option(help="Give a launch up after so long without a sign of life.", rich_help_panel=_RUN)
]
Output = Annotated[Path | None, typer.Option("-o", help="Folder for the results.", rich_help_panel=_RUN)]
ShowOutput = Annotated[
    bool, typer.Option("--show-output", help="Show what the ranks print, tagged.", rich_help_panel=_RUN)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the commands and start nothing.")]
