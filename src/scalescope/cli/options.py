"""The options of all verbs, in groups: a verb takes groups as parameters, the command line shows their fields.

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


class MethodChoice(StrEnum):
    """How settings are tried."""

    online = "online"
    offline = "offline"
    native = "native"


_main = partial(typer.Option)
_statistics = partial(typer.Option, rich_help_panel="Statistics")
_search = partial(typer.Option, rich_help_panel="Search")
_knobs = partial(typer.Option, rich_help_panel="Fixed knobs")
_launch = partial(typer.Option, rich_help_panel="Launch")
_model = partial(typer.Option, rich_help_panel="Model")
_output = partial(typer.Option, rich_help_panel="Output")

Model = Annotated[
    str, typer.Argument(help="Built-in name, package.module:factory or file.py:factory; or -- COMMAND instead.")
]
Engine = Annotated[str, _main(help="ddp or horovod (default: what the script imports; ddp for a MODEL).")]
ScalingOption = Annotated[
    ScalingChoice, _main(help="weak: --batch is per process; strong: --batch is global; or both.")
]
Knobs = Annotated[list[str] | None, _main("--knob", metavar="NAME=VALUE", help="Engine setting; repeatable.")]
Hosts = Annotated[str, _launch(metavar="HOST:SLOTS,...", help="Hosts and slots: a:2,b:2 (default: this machine).")]
Threads = Annotated[
    int | None, _launch(min=1, metavar="N", help="Threads per rank (default: cores // ranks on a host).")
]
Env = Annotated[
    list[str] | None, _launch(metavar="NAME=VALUE", help="Environment variable for every rank; repeatable.")
]
Ssh = Annotated[str, _launch(metavar="PROGRAM", help="Program that starts a shell on another host.")]
Timeout = Annotated[str, _launch("--timeout", metavar="TIME", help="Abort a launch after this long without progress.")]
Device = Annotated[str, _model(metavar="cpu|cuda|auto", help="Device of a MODEL.")]
Steps = Annotated[int | None, _launch(min=1, metavar="N", help="Stop after N steps (default: when the script ends).")]
Pattern = Annotated[
    str,
    _main(
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
    device: Device = "auto"


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """How processes are started, and where."""

    launcher: Annotated[
        str, _launch(help="torchrun, mpirun, horovodrun, srun or own (default: the usual one of the engine).")
    ] = ""
    hosts: Hosts = ""
    threads_per_rank: Threads = None
    env: Env = None
    launcher_args: Annotated[
        list[str] | None, _launch("--launcher-arg", metavar="ARG", help="Passed on to the launcher; repeatable.")
    ] = None
    oversubscribe: Annotated[bool, _launch("--oversubscribe", help="Allow more processes than slots.")] = False
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


@dataclasses.dataclass(frozen=True)
class Points:
    """What measure launches."""

    np: Annotated[str, _main(metavar="LIST", help="Numbers of processes: 1,2,4 or 1..8 (default: 1,2).")] = ""
    batch: Annotated[
        str, _main(metavar="LIST", help="Batch sizes: 32,64 or 8,16,...,512 (default: 32 for a MODEL).")
    ] = ""
    scaling: ScalingOption = ScalingChoice.weak
    engine: Annotated[
        str,
        _main(
            help="ddp, horovod, ddp,horovod, or none for a command without a launcher (default: what the script "
            "imports; ddp for a MODEL)."
        ),
    ] = ""
    knobs: Knobs = None
    pattern: Pattern = ""
    port: Annotated[
        int | None, _launch(min=1, max=65535, metavar="PORT", help="Port of rank 0 (default: a free one).")
    ] = None
    trace: Annotated[
        bool, _launch("--trace", help="Add one launch per point that captures steps for scalescope explain.")
    ] = False


@dataclasses.dataclass(frozen=True)
class Statistics:
    """When measure has launched enough."""

    launches: Annotated[
        int | None,
        _statistics(min=1, metavar="N", help="Maximum launches per configuration (default: 5; 30 with --precision)."),
    ] = None
    precision: Annotated[
        str, _statistics(metavar="FRACTION", help="Launch until steady speedups are known within this: 5%.")
    ] = ""
    budget_s: Annotated[
        str, _statistics("--budget", metavar="TIME", help="Stop launching after this long: 90s, 10m, 2h.")
    ] = ""
    quick: Annotated[
        bool,
        _statistics(
            "--quick", help="One launch per point, in which one process and all processes alternate in blocks."
        ),
    ] = False
    aa: Annotated[bool, _statistics("--aa", help="Compare each configuration with itself (an A/A test).")] = False
    relative_to: Annotated[
        str, _statistics(help="'smallest': baseline is the smallest number of processes (default: 1 process).")
    ] = ""
    seed: Annotated[int | None, _statistics(metavar="N", help="Random seed for the launch order.")] = None
    resume: Annotated[Path | None, _statistics(metavar="DIR", help="Resume the measurement in this folder.")] = None


@dataclasses.dataclass(frozen=True)
class Capture:
    """What explain runs and captures."""

    engine: Engine = ""
    batch: Annotated[
        int | None, _main(min=1, metavar="N", help="Batch size per process (default: 32 for a MODEL).")
    ] = None
    knobs: Knobs = None


@dataclasses.dataclass(frozen=True)
class Map:
    """What estimate predicts."""

    np: Annotated[str, _main(metavar="LIST", help="Numbers of processes: 1..32 or 1,2,4 (default: all slots).")] = ""
    max_np: Annotated[int | None, _main(min=1, metavar="N", help="Short for --np 1..N.")] = None
    batch: Annotated[str, _main(metavar="LIST", help="Batch sizes: 32,64 or 8,16,...,512 (default: 8,16,...,512).")] = (
        ""
    )
    max_batch: Annotated[int | None, _main(min=1, metavar="N", help="Batch sizes 1, 2, 4, ... up to N.")] = None
    scaling: ScalingOption = ScalingChoice.weak
    engine: Annotated[str, _main(help="ddp or horovod.")] = "ddp"
    knobs: Knobs = None
    cluster: Annotated[
        Path | None,
        _main(metavar="FILE", help="cluster.toml that describes the cluster (default: this machine, probed)."),
    ] = None
    threads_per_rank: Threads = None
    timeout_s: Timeout = "10m"


@dataclasses.dataclass(frozen=True)
class Trust:
    """How well estimate knows its numbers."""

    profile: Annotated[
        Path | None, _statistics(metavar="FILE", help="profile.json taken earlier or elsewhere (default: taken now).")
    ] = None
    repeats: Annotated[
        int, _statistics("--repeats", "-it", min=1, metavar="N", help="Blocks of steps per batch size.")
    ] = 8
    seconds: Annotated[str, _statistics(metavar="TIME", help="Maximum time for the profile.")] = "35s"
    efficiency: Annotated[
        str, _statistics(metavar="FRACTION", help="Minimum efficiency of the recommended setting.")
    ] = "80%"
    verify: Annotated[
        int, _statistics(min=0, metavar="N", help="Measure N cells of the map and correct the prediction by them.")
    ] = 0
    launches: Annotated[int, _statistics(min=1, metavar="N", help="Launches per verified cell.")] = 3


@dataclasses.dataclass(frozen=True)
class Search:
    """What tune searches, and for how long; several options also have the name that horovodrun gave them."""

    method: Annotated[
        MethodChoice | None,
        _search(
            help="online: while it trains (DDP's default); offline: one launch per setting (Horovod's default); "
            "native: Horovod's own autotune."
        ),
    ] = None
    offline: Annotated[bool, _search("--offline", help="Short for --method offline.")] = False
    warmup_samples: Annotated[
        int | None,
        _search(
            "--warmup-samples", "--autotune-warmup-samples", min=0, metavar="N", help="Warm-up length, in samples."
        ),
    ] = None
    steps_per_sample: Annotated[
        int | None,
        _search(
            "--steps-per-sample", "--autotune-steps-per-sample", min=1, metavar="N", help="Measured steps per setting."
        ),
    ] = None
    max_samples: Annotated[
        int | None,
        _search(
            "--max-samples",
            "--autotune-bayes-opt-max-samples",
            min=1,
            metavar="N",
            help="Maximum number of settings to try; the search stops earlier when no gain is left.",
        ),
    ] = None
    gp_noise: Annotated[
        float | None,
        _search(
            "--gp-noise",
            "--autotune-gaussian-process-noise",
            metavar="X",
            help="Noise of a sample as a fraction of its step time, 0 to 1 (default: measured).",
        ),
    ] = None
    search: Annotated[
        list[str] | None,
        _search(
            metavar="KNOB",
            help="Also search gradient_as_bucket_view (off by default: scripts that keep references to gradients "
            "may break).",
        ),
    ] = None
    log_file: Annotated[
        Path | None,
        _search(
            "--log-file",
            "--autotune-log-file",
            metavar="CSV",
            help="CSV with one row per sample (default: tune.csv in the results).",
        ),
    ] = None
    start_from: Annotated[
        Path | None,
        _search(metavar="PATH", help="Train with a setting found earlier: tuned.yaml, tuning.json or their folder."),
    ] = None
    resume: Annotated[Path | None, _search(metavar="DIR", help="Resume the --offline search in this folder.")] = None
    join: Annotated[Path | None, typer.Option(hidden=True)] = None  # started by scalescope.tuning(), on rank 0


def _switch(name: str, text: str) -> Any:
    return _knobs(f"--{name}/--no-{name}", help=text)


def _amount(unit: str, text: str) -> Any:
    return _knobs(metavar=unit, help=text)


@dataclasses.dataclass(frozen=True)
class FixedKnobs:
    """Knobs that tune leaves as told; all but the first two are short for --hold NAME=VALUE."""

    hold: Annotated[list[str] | None, _knobs(metavar="NAME=VALUE", help="Keep this knob fixed; repeatable.")] = None
    config_file: Annotated[
        Path | None,
        _knobs(metavar="YAML", help="Knobs and search options from a config file of horovodrun, or a tuned.yaml."),
    ] = None
    bucket_cap_mb: Annotated[str | None, _amount("MIB", "DDP: bucket size.")] = None
    first_bucket_mb: Annotated[str | None, _amount("MIB", "DDP: size of the first bucket.")] = None
    gradient_as_bucket_view: Annotated[
        bool | None, _switch("gradient-as-bucket-view", "DDP: gradients are views of the buckets.")
    ] = None
    static_graph: Annotated[bool | None, _switch("static-graph", "DDP: every step uses the same parameters.")] = None
    hierarchical_allreduce: Annotated[
        bool | None, _switch("hierarchical-allreduce", "Reduce inside each host first.")
    ] = None
    hierarchical_allgather: Annotated[
        bool | None, _switch("hierarchical-allgather", "Horovod: gather inside each host first.")
    ] = None
    fusion_threshold_mb: Annotated[str | None, _amount("MIB", "Horovod: size of the fusion buffer.")] = None
    cycle_time_ms: Annotated[str | None, _amount("MS", "Horovod: cycle time of the background thread.")] = None
    cache_capacity: Annotated[str | None, _amount("COUNT", "Horovod: capacity of the response cache, in tensors.")] = (
        None
    )

    def assignments(self) -> list[str]:
        """All of them as NAME=VALUE."""
        short = {name: value for name, value in given(self).items() if name not in ("hold", "config_file")}
        return [
            *(f"{name}={str(value).lower()}" for name, value in short.items() if value is not None),
            *(self.hold or ()),
        ]


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
