"""A real Slurm of four nodes n1 to n4 on this machine, for the session, with its own MUNGE, ports and folder."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
import removal

NODES = ("n1", "n2", "n3", "n4")
CONTROLLER = "controller"
START_SECONDS = 60
# A node has its own name, and knows the others by name. What dies with the tests is told to by the kernel.
ENTER = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
AS_NODE = ["setpriv", "--pdeathsig", "TERM", "unshare", "--uts", "--mount", "sh", "-c", ENTER]
PREFIX = "scalescope-slurm"
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={controller}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/linear
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 State=UNKNOWN\n"


class Slurm:
    """The running cluster; its commands are run as on a login node, which resolves the nodes' names."""

    nodes = NODES
    interface = "lo"

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-"))
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.conf = self._folder / "slurm.conf"
        self.env = {"SLURM_CONF": str(self.conf)}
        removal.at_the_end(self.stop)
        self._write()
        self._start()

    def run(self, argv: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """subprocess.run on the login node, outside any allocation."""
        environment = {**(options.pop("env", None) or os.environ), **self.env}
        return subprocess.run(self._on(socket.gethostname(), argv), env=environment, **options)

    def allocate(self, nodes: int, argv: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a command with a fresh allocation (SLURM_JOB_ID and the rest), given back when the command ends."""
        return self.run(["salloc", "--quiet", "--immediate=60", f"--nodes={nodes}", *argv], **options)

    def logs(self) -> str:
        """Last lines of every daemon's log."""
        texts = {path.name: path.read_text(errors="replace") for path in sorted((self._folder / "log").iterdir())}
        return "\n".join(f"== {name}\n{text[-1500:]}" for name, text in texts.items())

    def stop(self) -> None:
        """End the jobs, the daemons and whatever still runs with this configuration; remove the folder."""
        if self._daemons:
            self.run(["scancel", "--state=RUNNING"], capture_output=True, timeout=30)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(3)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        _remove_folder(self._folder)

    def _write(self) -> None:
        for name in ("state", "log", *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in NODES)):
            (self._folder / name).mkdir(parents=True)
        ports = _free_ports(len(NODES) + 1)
        text = CONFIGURATION.format(controller=CONTROLLER, port=ports.pop(), folder=self._folder)
        nodes = "".join(NODE.format(name=name, port=port) for name, port in zip(NODES, ports, strict=True))
        self.conf.write_text(nodes + text)
        names = "".join(f"127.0.0.1 {name}\n" for name in (CONTROLLER, *NODES))
        (self._folder / "hosts").write_text(Path("/etc/hosts").read_text() + "\n" + names)
        key = self._folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))

    def _start(self) -> None:
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        options = [f"--{option}={self._folder / file}" for option, file in files.items()]
        self._daemon(CONTROLLER, ["munged", "--foreground", "--force", *options])
        self._wait_for(lambda: (self._folder / "munge.socket").exists(), "munged")
        self._daemon(CONTROLLER, ["slurmctld", "-D", "-c"])
        for name in NODES:
            self._daemon(name, ["slurmd", "-D", "-N", name])
        self._wait_for(self._is_idle, "four idle nodes")

    def _daemon(self, node: str, argv: list[str]) -> None:
        with (self._folder / "log" / f"{argv[0]}.{node}.out").open("wb") as log:
            environment = {**os.environ, **self.env}
            command = self._on(node, argv)
            self._daemons.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )

    def _on(self, node: str, argv: list[str]) -> list[str]:
        return [*AS_NODE, str(self._folder / "hosts"), node, *argv]

    def _is_idle(self) -> bool:
        shown = self.run(["sinfo", "--noheader", "--format=%T %D"], capture_output=True, text=True)
        return bool(shown.stdout.strip() == f"idle {len(NODES)}")

    def _wait_for(self, is_true: Any, what: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_true():
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                pytest.fail(f"Slurm did not start: waited for {what}; ended: {ended}\n{self.logs()}", pytrace=False)
            time.sleep(0.1)


def _remove_folder(folder: Path) -> None:
    """Remove a cluster's folder after its slurmstepds and tasks, which outlive slurmd and carry its SLURM_CONF."""
    mark = f"SLURM_CONF={folder / 'slurm.conf'}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue  # it ended by itself
    shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A real four-node Slurm: `slurm.allocate(2, ["srun", "hostname"])`."""
    needs.slurm()
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"):
        if removal.is_gone(folder.name.split("-")[2]):
            _remove_folder(folder)
    cluster = Slurm()
    yield cluster
    cluster.stop()
