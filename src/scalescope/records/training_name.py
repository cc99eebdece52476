"""The name of a training: the same whatever verb runs it, and however its command starts Python or its ranks."""

import re
from collections.abc import Sequence
from pathlib import Path

from scalescope.records.profile import WorkloadSpec

# What starts Python programs, and takes -m MODULE as Python does.
_PYTHON_LAUNCHERS = {"torchrun", "accelerate", "accelerate-launch", "deepspeed"}
LAUNCH_PROGRAMS = _PYTHON_LAUNCHERS | {"mpirun", "mpiexec", "srun", "horovodrun", "jsrun", "aprun", "prun"}
LAUNCH_MODULES = {
    *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
    "horovod.runner.launch",
    "lightning.fabric.cli",
    "lightning_fabric.cli",
}
_LIGHTNING = {"fabric", "lightning"}  # lightning run model train.py
_PYTHON = re.compile(r"(?:[^=]*/)?python[0-9.]*")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # Options of Python that may take the next word


def training_name(workload: WorkloadSpec | None, command: Sequence[str]) -> str:
    """The model; or the script or module with its options, without interpreter, launcher and folders of the machine."""
    if workload:
        return workload.model
    return " ".join(Path(word).name if word.startswith("/") else word for word in _script_and_options(list(command)))


def _script_and_options(words: list[str]) -> list[str]:
    """The part of a command that Python runs; the whole command where its words do not tell."""
    starts_ranks = takes_module = False
    at = 0
    while at < len(words):
        word, name = words[at], Path(words[at]).name
        at += 1
        if _PYTHON.fullmatch(word):
            while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
                at += 2 if words[at] in _WITH_VALUE else 1
            if words[at : at + 1] in ([], ["-c"]):
                return words
            if words[at] != "-m":
                return [str(Path(words[at])), *words[at + 1 :]]
            takes_module = True
        elif word.endswith(".py") and (starts_ranks or at == 1):
            return [str(Path(word)), *words[at:]]
        elif word in ("-m", "--module") and takes_module and words[at:]:
            if words[at] not in LAUNCH_MODULES:
                return words[at:]
            starts_ranks = True
        else:
            starts_ranks |= name in LAUNCH_PROGRAMS | _LIGHTNING
            takes_module |= name in _PYTHON_LAUNCHERS
    return words
