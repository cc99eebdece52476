"""Whether a resumed measurement or search is still on the machine and the software that it was begun with."""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from scalescope import host
from scalescope.errors import UsageError
from scalescope.measurement.own_ranks import places_ranks_elsewhere
from scalescope.measurement.request import interpreter_of
from scalescope.measurement.surroundings import torch_version
from scalescope.records.fingerprint import Fingerprint
from scalescope.records.job import Host

_WORDS = {"cpu": "CPU", "cores": "cores", "gpus": "GPUs", "python": "Python", "torch": "torch"}
_OF_THE_RANKS = ("cpu", "cores", "gpus")
"""Not compared when the ranks run on other machines than the one that launches them."""
_ASK = (
    "import importlib.metadata as m, json, platform\n"
    "found = [d.version for d in m.distributions(name='torch')]\n"
    "print(json.dumps([platform.python_version(), found[0] if found else '']))"
)


def fingerprint_here(command: Sequence[str], device: str) -> Fingerprint:
    """This machine and the Python that a command, or without one a MODEL, runs in; torch is not imported."""
    python, torch = platform.python_version(), torch_version()
    interpreter = interpreter_of(tuple(command), sys.executable) if command else sys.executable
    if interpreter != sys.executable:
        asked = subprocess.run([interpreter, "-c", _ASK], capture_output=True, text=True, check=False)
        python, torch = json.loads(asked.stdout.splitlines()[-1]) if asked.returncode == 0 else ("", "")
    return Fingerprint(
        host=platform.node(),
        cpu=_cpu_model(),
        cores=host.cores().logical,
        gpus=_gpu_names() if device != "cpu" else (),
        python=python,
        torch=torch,
    )


def check_resume(then: Fingerprint | None, asked: "Asked", folder: Path) -> tuple[Fingerprint, tuple[str, ...]]:
    """The fingerprint to keep, and notes; UsageError when what is asked would be mixed with runs of another machine."""
    now = fingerprint_here(asked.command, asked.device)
    then = then or now  # an older scalescope kept none
    elsewhere = runs_elsewhere(asked.hosts, asked.launcher, asked.command)
    return then, check_same_machine(then, now, folder, elsewhere=elsewhere)


class Asked(Protocol):
    """What a request of measure or tune says about where it runs."""

    @property
    def command(self) -> tuple[str, ...]:
        """Empty: a MODEL."""

    @property
    def device(self) -> str:
        """Or auto."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Empty: this machine."""

    @property
    def launcher(self) -> str:
        """Empty: the engine's own."""


def runs_elsewhere(hosts: Sequence[Host], launcher: str, command: Sequence[str]) -> bool:
    """Whether the ranks run on machines that are named, that Slurm gives, or that a launch line reaches."""
    return bool(hosts) or launcher == "srun" or places_ranks_elsewhere(tuple(command), launcher)


def check_same_machine(then: Fingerprint, now: Fingerprint, folder: Path, *, elsewhere: bool) -> tuple[str, ...]:
    """What is worth a note: another host name on equal hardware, as of a container. UsageError: runs would be mixed."""
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


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _gpu_names() -> tuple[str, ...]:
    """Of the GPUs that may be used, as the driver lists them."""
    if not shutil.which("nvidia-smi"):
        return ()
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listing = subprocess.run(query, capture_output=True, text=True, check=False)
    return tuple(line.strip() for line in listing.stdout.splitlines() if line.strip())[: host.gpus()]
