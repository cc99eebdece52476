"""Reads what a user asks of measure: hosts, variables, the command and its placeholders."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from scalescope.errors import UsageError
from scalescope.measurement.environment import MASK
from scalescope.records.job import Host

PLACEHOLDERS = ("np", "batch", "global_batch", "run_dir", "launch")
_LAUNCH_PROGRAMS = ("torchrun", "mpirun", "mpiexec", "srun", "horovodrun", "jsrun", "aprun", "prun", "accelerate")


def parse_hosts(text: str) -> tuple[Host, ...]:
    """`a:2,b:2` as hosts with slots."""
    hosts = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"([A-Za-z0-9_.-]+|\[[0-9a-fA-F:]+\]):(\d+)", part.strip())
        if not match or match[1].startswith("-") or int(match[2]) < 1:
            raise UsageError(f"--hosts takes name:slots pairs such as a:2,b:2, not '{part}'")
        hosts.append(Host(match[1], int(match[2])))
    if len({host.name for host in hosts}) < len(hosts):
        raise UsageError("--hosts names a host twice: add up its slots")
    return tuple(hosts)


def parse_environment(assignments: list[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as variables."""
    variables = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            said = f"not '{name}=...'" if equals else "and there is no ="
            raise UsageError(f"--env takes NAME=VALUE, {said}: write it like NCCL_DEBUG=INFO")
        if value == MASK:
            raise UsageError(f"--env {name}={MASK} is how a value is shown: type the value itself")
        variables[name] = value
    return variables


def starts_ranks_itself(command: tuple[str, ...]) -> bool:
    """Whether the command is a launch line of its own."""
    program = Path(command[0]).name
    by_module = program.startswith("python") and command[1:3] == ("-m", "torch.distributed.run")
    return program in _LAUNCH_PROGRAMS or by_module


def fill_placeholders(command: tuple[str, ...], values: Mapping[str, object]) -> tuple[str, ...]:
    """The command with {np}, {batch}, {global_batch}, {run_dir} and {launch} replaced; other braces stay."""

    def replace(match: re.Match[str]) -> str:
        value = values[match[1]]
        if value is None:
            raise UsageError(f"the command uses {{{match[1]}}} and there is no batch size: add --batch")
        return str(value)

    pattern = re.compile("{(" + "|".join(PLACEHOLDERS) + ")}")
    return tuple(pattern.sub(replace, word) for word in command)


def uses_placeholder(command: tuple[str, ...], *names: str) -> bool:
    """Whether any word of the command holds one of these placeholders."""
    return any(f"{{{name}}}" in word for word in command for name in names)


def engine_of_script(command: tuple[str, ...]) -> str:
    """horovod when a Python file in the command imports it, ddp otherwise."""
    for word in command:
        path = Path(word)
        if path.suffix == ".py" and path.is_file() and path.stat().st_size < 10_000_000:
            text = path.read_text(errors="replace")
            if re.search(r"^\s*(import|from)\b.*\bhorovod\b", text, re.MULTILINE):
                return "horovod"
    return "ddp"


def interpreter_of(command: tuple[str, ...], own: str) -> str:
    """The Python of the user's command when it names one, otherwise our own."""
    program = Path(command[0]).name
    if re.fullmatch(r"python[0-9.]*", program):
        found = shutil.which(command[0])
        if not found:
            raise UsageError(f"there is no program '{command[0]}': check the command's first word")
        return found
    return own
