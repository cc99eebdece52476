"""Lines of horovodrun after `scalescope tune`: its flags by our names, and where the user's command begins."""

import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from scalescope import host
from scalescope.options import options_of
from scalescope.records.request import RunOptions
from scalescope.records.tuning import TuneRequest

_CONTROLLERS = {"--gloo": "gloo", "--mpi": "mpi"}


def as_typed_here(words: Sequence[str], command: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Words of tune in our options, and the user's command, which may follow without a `--`.

    `horovodrun -np 4 --autotune python train.py` may stand after tune as it is: the first word that is neither an
    option nor its value, and no MODEL, starts the command. As under horovodrun, more processes than this machine has
    slots are started without another word. Flags that are named as a knob fix it: --cycle-time-ms 5 is --knob
    cycle_time_ms=5.
    """
    from scalescope.engines import ENGINES

    takes_value: dict[str, bool] = {}
    ours: dict[str, str] = {}
    for option in (*options_of(TuneRequest), *options_of(RunOptions)):
        takes_value |= {name: not option.opt.kind.is_flag for name in (option.flag, option.opt.short) if name}
        takes_value |= dict.fromkeys((also.flag for also in option.opt.also), False)
        ours |= dict.fromkeys(option.opt.horovodrun, option.flag)
    knobs = {f"--{knob.name.replace('_', '-')}": knob for engine in ENGINES.values() for knob in engine.knobs}
    switches = {
        flag.replace("--", prefix): f"{knob.name}={value}"
        for flag, knob in knobs.items()
        for prefix, value in (("--", "true"), ("--no-", "false"))
        if knob.type == "bool"
    } | {flag: f"controller={name}" for flag, name in _CONTROLLERS.items()}

    options, rest, as_horovodrun = [], list(words), False
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if Path(word).name == "horovodrun":
                options += ["--engine", "horovod"]
                as_horovodrun = True
            elif not command and _starts_command(word):
                command = (word, *rest)
                break
            else:
                options.append(word)
            continue
        flag, *value = word.split("=", 1)
        flag = ours.get(flag, flag)
        if flag == "--autotune":
            as_horovodrun = True
        elif flag in switches and not value:
            options += ["--knob", switches[flag]]
        elif flag in knobs and flag not in takes_value:
            value = value or [rest.pop(0) if rest else ""]
            options += ["--knob", f"{knobs[flag].name}={value[0]}"]
        else:
            options.append("=".join([flag, *value]))
            if rest and not value and takes_value.get(flag, False):
                options.append(rest.pop(0))
    return [*options, *(_more_than_slots(options) if as_horovodrun else ())], command


def _more_than_slots(options: Sequence[str]) -> list[str]:
    """The option that allows it, where these ask for more processes than this machine has slots."""
    asked = [number for word, number in pairwise(options) if word == "--np" and number.isdigit()]
    on_hosts = any(word.startswith("--hosts") for word in options)
    crowded = asked and not on_hosts and int(asked[-1]) > host.slots("auto")
    return ["--oversubscribe"] if crowded and "--oversubscribe" not in options else []


def _starts_command(word: str) -> bool:
    """True if a word is a program, and not a MODEL."""
    from scalescope.workloads.builtin import BUILTINS

    if ":" in word or word in BUILTINS:
        return False
    return Path(word).name.startswith("python") or shutil.which(word) is not None
