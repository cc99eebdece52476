"""Plans and commands on disk and on screen, without the values of --env: these stand in a file for its owner alone."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from scalescope.errors import UsageError
from scalescope.launchers import Launcher
from scalescope.launchers.base import as_shell
from scalescope.records.files import PLAN
from scalescope.records.job import Job
from scalescope.records.store import AnyRecord, load, save, writing
from scalescope.text import MASK

VALUES = "env.json"
_OURS = ("SCALESCOPE_", "MALLOC_")  # Variables of ours in the same place; they need no mask


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The same variables without the user's values."""
    return {name: value if name.startswith(_OURS) else MASK for name, value in env.items()}


def shown_commands(launcher: Launcher, job: Job, env: Mapping[str, str]) -> list[str]:
    """Commands that a launcher starts for a job, as a person would type them, without the values of `env`."""
    hidden = {name: value for name, value in masked(env).items() if value == MASK and name in job.env}
    safe = msgspec.structs.replace(job, env={**job.env, **hidden})
    return [as_shell(command) for command in launcher.commands(safe)]


def save_commands(launcher: Launcher, job: Job, env: Mapping[str, str]) -> None:
    """Write the commands of a job into its folder, as they are shown."""
    path = Path(job.folder, "command.txt")
    with writing(path):
        path.write_text("\n".join([*shown_commands(launcher, job, env), ""]))


def save_plan(plan: Any, folder: Path) -> None:
    """Write a plan without the values of its request's variables, and the values next to it, for --resume."""
    env: dict[str, str] = plan.request.env
    if MASK in masked(env).values():  # whole or not at all, and never readable for others
        path = folder / VALUES
        partial = path.with_name(path.name + ".partial")
        with writing(path):
            partial.unlink(missing_ok=True)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(env))
            partial.replace(path)
    request = msgspec.structs.replace(plan.request, env=masked(env))
    save(msgspec.structs.replace(plan, request=request), folder / PLAN)


def load_plan(folder: Path, plan_type: type[AnyRecord]) -> AnyRecord:
    """A plan with the values of its request's variables."""
    plan: Any = load(folder / PLAN, plan_type)
    env: dict[str, str] = plan.request.env
    hidden = [name for name, value in env.items() if value == MASK]
    if not hidden:
        return plan  # type: ignore[no-any-return]
    try:
        values = msgspec.json.decode((folder / VALUES).read_bytes(), type=dict[str, str])
        env = {**env, **{name: values[name] for name in hidden}}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError):
        raise UsageError(
            f"{folder / VALUES} does not give the values of --env {', '.join(hidden)}: put it back, or start a new run"
        ) from None
    return msgspec.structs.replace(plan, request=msgspec.structs.replace(plan.request, env=env))  # type: ignore[no-any-return]
