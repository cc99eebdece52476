"""The machine and the software that a measurement was begun with, and must be resumed on."""

import contextlib
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scalescope import host
from scalescope.agent.recorder import cpu_model
from scalescope.errors import UsageError
from scalescope.jobs.command import interpreter_of
from scalescope.jobs.interpreter import torch_version
from scalescope.jobs.own_ranks import places_ranks_elsewhere
from scalescope.launchers import find_launcher
from scalescope.records.job import Host
from scalescope.records.request import Fingerprint, LaunchRequest

_WORDS = {"cpu": "CPU", "cores": "cores", "gpus": "GPUs", "python": "Python", "torch": "torch"}
# Not compared when the ranks run on other machines than the one that launches them.
_OF_THE_RANKS = ("cpu", "cores", "gpus")
_ASK = (
    "import importlib.metadata as m, json, platform\n"
    "found = [d.version for d in m.distributions(name='torch')]\n"
    "print(json.dumps([platform.python_version(), found[0] if found else '']))"
)


def fingerprint_here(command: Sequence[str], device: str) -> Fingerprint:
    """This machine and the Python that a command, or without one a MODEL, runs in; torch is not imported."""
    python, torch = platform.python_version(), torch_version()
    is_here = bool(command) and shutil.which(command[0]) is not None  # and not in a container
    interpreter = interpreter_of(tuple(command), sys.executable) if is_here else sys.executable
    if interpreter != sys.executable:
        asked = subprocess.run([interpreter, "-c", _ASK], capture_output=True, text=True, errors="replace", check=False)
        python = torch = ""
        with contextlib.suppress(ValueError, IndexError):  # it failed, or prints something when it ends
            python, torch = json.loads(asked.stdout.splitlines()[-1])
    return Fingerprint(
        host=platform.node(),
        cpu=cpu_model(),
        cores=host.cores().logical,
        gpus=tuple(card.name for card in host.cards())[: host.gpus()] if device != "cpu" else (),
        python=python,
        torch=torch,
    )


def check_resume(then: Fingerprint | None, asked: LaunchRequest, folder: Path) -> tuple[Fingerprint, tuple[str, ...]]:
    """The fingerprint to keep, and notes; UsageError when what is asked would be mixed with runs of another machine."""
    now = fingerprint_here(asked.command, asked.device)
    then = then or now  # an older scalescope kept none
    elsewhere = runs_elsewhere(asked.hosts, asked.launcher, asked.command)
    return then, check_same_machine(then, now, folder, elsewhere=elsewhere)


def runs_elsewhere(hosts: Sequence[Host], launcher: str, command: Sequence[str]) -> bool:
    """True when the ranks run on machines that are named, that Slurm gives, or that a launch line reaches."""
    in_allocation = bool(launcher) and bool(find_launcher(launcher).scheduler)
    return bool(hosts) or in_allocation or places_ranks_elsewhere(tuple(command), launcher)


def check_same_machine(then: Fingerprint, now: Fingerprint, folder: Path, *, elsewhere: bool) -> tuple[str, ...]:
    """Notes, such as of another host name on equal hardware; UsageError when runs of two machines would be mixed."""
    names = [name for name in _WORDS if not (elsewhere and name in _OF_THE_RANKS)]
    changed = [
        f"{_WORDS[name]} {_shown(getattr(now, name))} instead of {_shown(getattr(then, name))}"
        for name in names
        if getattr(now, name) != getattr(then, name)
    ]
    if changed:
        raise UsageError(
            f"{folder} was started with a different setup ({'; '.join(changed)}): "
            f"resume it with the original setup on {then.host}, or start a new run without --resume"
        )
    if now.host == then.host:
        return ()
    equal = "from which it is launched" if elsewhere else "with the same CPU, cores, GPUs, Python and torch"
    return (f"started on host {then.host} and resumed on {now.host}, {equal}",)


def _shown(value: object) -> str:
    return (", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or "none"
