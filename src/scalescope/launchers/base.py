"""The contract of launchers, and the words they share."""

import re
import shlex
from abc import ABC, abstractmethod

from scalescope.records.job import Command, Job


class Launcher(ABC):
    """A way to start ranks: a Job in, commands out, nothing started."""

    name: str
    program: str = ""  # What must be on the PATH
    module: str = ""  # The Python module that the job's interpreter must have instead
    remedy: str = ""  # How to get it
    reaches_hosts: bool = True  # It starts ranks on named hosts
    only_ssh: bool = False  # It reaches them with ssh, and takes no other program for it
    # Of Horovod: through which ranks that it starts can agree, the usual one first; None: its command says.
    controllers: tuple[str, ...] | None = ()
    instead: str = ""  # Launchers that start Horovod's ranks where this one cannot
    scheduler: str = ""  # Whose allocation it starts ranks in; empty: it needs none
    # Find in the launcher's own output a `rank` that died, with its exit code or signal, or a `node` on which it could
    # start none, with the reason.
    blame: tuple[re.Pattern[str], ...] = ()

    @abstractmethod
    def commands(self, job: Job) -> tuple[Command, ...]:
        """The processes to start for this job."""


def rank_environment(job: Job) -> dict[str, str]:
    """Environment of every rank of a job, whoever starts it."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS") if job.threads_per_rank else ()
    return {
        **dict.fromkeys(threads, str(job.threads_per_rank)),
        "PYTHONUNBUFFERED": "1",
        "SCALESCOPE_FOLDER": job.folder,
        "SCALESCOPE_LAUNCH": job.launch,
        **job.env,
    }


def rendezvous(job: Job) -> dict[str, str]:
    """Address at which DDP's ranks find each other when their launcher gives none."""
    return {"MASTER_ADDR": job.hosts[0].name if job.hosts else "127.0.0.1", "MASTER_PORT": str(job.port)}


def rank_words(job: Job, **names: str) -> tuple[str, ...]:
    """The rank's command with its output kept in a file of its own; `names` gives torch's names to the launcher's.

    The command stands inside the shell's script, in one word: as words of their own, a script's options would pass
    through the launcher's parser. argparse calls --log ambiguous next to torchrun's --log-dir, and mpirun and srun take
    a ":" as the start of another program.
    """
    exports = " ".join(f"{name}=${variable}" for name, variable in names.items())
    before = f"export {exports}; " if exports else ""
    return (
        "sh",
        "-c",
        f'{before}exec {shlex.join([*job.container, *job.command])} >"$SCALESCOPE_FOLDER/rank$RANK.out" 2>&1',
    )


def named_after(prefix: str) -> dict[str, str]:
    """For `rank_words`: the variables of MPI and of Horovod's Gloo, which differ in their prefix."""
    parts = {"RANK": "RANK", "WORLD_SIZE": "SIZE", "LOCAL_RANK": "LOCAL_RANK", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}
    return {name: f"{prefix}_{part}" for name, part in parts.items()}


def host_list(job: Job) -> str:
    """The hosts and their ranks, as mpirun and horovodrun take them."""
    return ",".join(f"{name}:{count}" for name, count in job.ranks_per_host) or f"localhost:{job.np}"


def on_host(job: Job, host: str, argv: tuple[str, ...], env: dict[str, str]) -> Command:
    """The same command on another host, with its environment in its words because ssh carries none."""
    settings = [f"{name}={value}" for name, value in env.items()]
    line = f"cd {shlex.quote(job.cwd)} && exec {shlex.join(['env', *settings, *argv])}"
    return Command(argv=(job.ssh, "-o", "BatchMode=yes", host, line), env={}, host=host)


def as_shell(command: Command) -> str:
    """The command as a person would type it."""
    settings = [f"{name}={value}" for name, value in command.env.items()]
    return shlex.join([*(["env", *settings] if settings else []), *command.argv])
