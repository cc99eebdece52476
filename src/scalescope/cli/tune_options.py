"""Options of `scalescope tune`, by our names and by horovodrun's, and where the user's command begins."""

import shutil
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from scalescope import host
from scalescope.cli.options import given

VERB = "tune"


class MethodChoice(StrEnum):
    """How settings are tried."""

    online = "online"
    offline = "offline"
    native = "native"


_search = partial(typer.Option, rich_help_panel="Search")
_knobs = partial(typer.Option, rich_help_panel="Fixed knobs")


def _also(horovodrun: str, text: str, name: str = "", metavar: str = "N", **limits: Any) -> Any:
    """An option that also goes by the name that horovodrun gave it."""
    return _search(f"--{name or horovodrun}", f"--autotune-{horovodrun}", metavar=metavar, help=text, **limits)


def _switch(name: str, text: str) -> Any:
    return _knobs(f"--{name}/--no-{name}", help=text)


def _amount(unit: str, text: str) -> Any:
    return _knobs(metavar=unit, help=text)


# Options of horovodrun that are typed differently here.
_HOROVODRUN = {
    "--num-proc": ("--np",),
    "-H": ("--hosts",),
    "--gloo": ("--hold", "controller=gloo"),
    "--mpi": ("--hold", "controller=mpi"),
}


def split_at_command(words: list[str], command: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Words of tune as typer takes them, and the user's command, which may follow without a `--`.

    `horovodrun -np 4 --autotune python train.py` may stand after tune as it is: the first word that is neither an
    option nor its value, and no MODEL, starts the command. As under horovodrun, more processes than this machine has
    slots are started without another word.
    """
    verb, *rest = words
    takes_value = _takes_value()
    options: list[str] = []
    as_horovodrun = False
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if Path(word).name == "horovodrun":
                options += ["--engine", "horovod"]
                as_horovodrun = True
                continue
            if not command and _starts_command(word):
                command = (word, *rest)
                break
            options.append(word)
            continue
        as_horovodrun = as_horovodrun or word == "--autotune"
        options += _HOROVODRUN.get(word, (word,))
        if rest and takes_value.get(options[-1], False):
            options.append(rest.pop(0))
    return [verb, *options, *(_more_than_slots(options) if as_horovodrun else ())], command


def _more_than_slots(options: list[str]) -> list[str]:
    """The option that allows it, where these ask for more processes than this machine has slots."""
    asked = [number for word, number in pairwise(options) if word in ("--np", "-np") and number.isdigit()]
    on_hosts = any(word.startswith("--hosts") for word in options)
    crowded = asked and not on_hosts and int(asked[-1]) > host.slots("auto")
    return ["--oversubscribe"] if crowded and "--oversubscribe" not in options else []


def _takes_value() -> dict[str, bool]:
    """Every way to type an option of tune, and whether the next word is its value."""
    from scalescope.cli import application

    command: Any = typer.main.get_command(application())
    options = [each for each in command.commands[VERB].params if each.param_type_name == "option"]
    return {name: not each.is_flag for each in options for name in (*each.opts, *each.secondary_opts)}


def _starts_command(word: str) -> bool:
    """Whether a word is a program, and not a MODEL."""
    from scalescope.workloads.builtin import BUILTINS

    if ":" in word or word in BUILTINS:
        return False
    return Path(word).name.startswith("python") or shutil.which(word) is not None


@dataclass(frozen=True)
class Search:
    """What tune searches, and for how long; several options also have the name that horovodrun gave them."""

    method: Annotated[
        MethodChoice | None,
        _search(
            help="online: while it trains (default); offline: one launch per setting; native: Horovod's own autotune."
        ),
    ] = None
    offline: Annotated[bool, _search("--offline", help="Short for --method offline.")] = False
    autotune: Annotated[
        bool, _search("--autotune", help="As under horovodrun: allows more processes than slots; tune always tunes.")
    ] = False
    warmup_samples: Annotated[int | None, _also("warmup-samples", "Warm-up length, in samples.", min=0)] = None
    steps_per_sample: Annotated[int | None, _also("steps-per-sample", "Measured steps per setting.", min=1)] = None
    max_samples: Annotated[
        int | None,
        _also(
            "bayes-opt-max-samples",
            "Maximum number of settings to try; the search stops earlier when no gain is left.",
            name="max-samples",
            min=1,
        ),
    ] = None
    gp_noise: Annotated[
        float | None,
        _search(metavar="X", help="Noise of a sample as a fraction of its step time, 0 to 1 (default: measured)."),
    ] = None
    autotune_noise: Annotated[
        float | None,
        _search(
            "--autotune-gaussian-process-noise",
            metavar="ALPHA",
            help="The same in Horovod's units: variance of the noise over that of the scores.",
        ),
    ] = None
    log_file: Annotated[
        Path | None,
        _also(
            "log-file",
            "CSV with one row per sample (default: tune.csv in the results); Horovod's own with --method native.",
            metavar="CSV",
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
    start_from: Annotated[
        Path | None,
        _search(
            metavar="PATH",
            help="Train with a setting found earlier, without a search: tuned.yaml, tuning.json or their folder.",
        ),
    ] = None
    budget_s: Annotated[
        str,
        _search("--budget", metavar="TIME", help="By relaunch: stop launching after this long (default: no limit)."),
    ] = ""
    resume: Annotated[
        Path | None, _search(metavar="DIR", help="Resume the search by relaunch, or the undecided one, in this folder.")
    ] = None
    join: Annotated[Path | None, typer.Option(hidden=True)] = None  # started by scalescope.tuning(), on rank 0


@dataclass(frozen=True)
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
    torus_allreduce: Annotated[
        bool | None, _switch("torus-allreduce", "Horovod: reduce in rows, then in columns of hosts (NCCL).")
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
