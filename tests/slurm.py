"""A real Slurm of four nodes n1 to n4 on this machine, for the session, with its own MUNGE, network and folder.

Every node is a network namespace with an address of its own, so that what works over loopback only fails here as well.
"""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
import removal
from hosts import NETNS_CONFIG, NETNS_MOUNTS, Lab

NODES = ("n1", "n2", "n3", "n4")
CONTROLLER = "controller"
PATIENCE_S = 180  # Of busy cores: for the daemons to start, and for an allocation
# Not `ip netns exec`, which hides the control groups that slurmd wants. What dies with the tests is told by the kernel.
ENTER = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
WITHOUT_PRIVATE = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']
AS_NODE = ["unshare", "--uts", "--mount", "sh", "-c", ENTER]
PREFIX = "scalescope-slurm"
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={controller}({address})
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
KillWait=2
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={name} NodeAddr={address} CPUs=2 RealMemory=1000 State=UNKNOWN\n"


class Slurm:
    """The running cluster; its commands are run as on a login node, the controller's."""

    nodes = NODES
    interface = Lab.interface

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-"))
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._slurmds: dict[str, subprocess.Popen[bytes]] = {}
        self.conf = self._folder / "slurm.conf"
        self.env = {"SLURM_CONF": str(self.conf)}
        self.private = self._folder / "private"  # A folder of the login node, which nodes do not see
        removal.at_the_end(self.stop)
        self.lab = Lab((CONTROLLER, *NODES), self._folder)
        self._write()
        self._start()

    def run(self, argv: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """subprocess.run on the login node, outside any allocation."""
        environment = {**(options.pop("env", None) or os.environ), **self.env}
        return subprocess.run(self.command(CONTROLLER, argv), env=environment, **options)

    def allocate(self, nodes: int, argv: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a command with a fresh allocation (SLURM_JOB_ID and the rest), given back when the command ends."""
        return self.run(["salloc", "--quiet", f"--immediate={PATIENCE_S}", f"--nodes={nodes}", *argv], **options)

    def kill_node(self, name: str) -> None:
        """Kill a node's slurmd, which leaves the processes of jobs on it."""
        daemon = self._slurmds.pop(name)
        self._daemons.remove(daemon)
        daemon.kill()
        daemon.wait()

    def start_node(self, name: str) -> None:
        """Start a node's slurmd."""
        self._slurmds[name] = self._daemon(name, ["slurmd", "-D", "-N", name])

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
        _end_tasks(self._folder)
        if hasattr(self, "lab"):
            self.lab.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        for name in ("state", "log", "private", *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in NODES)):
            (self._folder / name).mkdir(parents=True)
        address = self.lab.address
        text = CONFIGURATION.format(controller=CONTROLLER, address=address(CONTROLLER), folder=self._folder)
        self.conf.write_text("".join(NODE.format(name=name, address=address(name)) for name in NODES) + text)
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
            self.start_node(name)
        self._wait_for(self._is_idle, "four idle nodes")

    def _daemon(self, node: str, argv: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / "log" / f"{argv[0]}.{node}.out").open("ab") as log:
            environment = {**os.environ, **self.env}
            command = self.command(node, argv)
            daemon = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._daemons.append(daemon)
        return daemon

    def command(self, node: str, argv: list[str]) -> list[str]:
        """The command line that runs argv on a node, or on the login node, until the tests end."""
        namespace = self.lab.namespace(node)
        argv = argv if node == CONTROLLER else [*WITHOUT_PRIVATE, str(self.private), *argv]
        enter = ["setpriv", "--pdeathsig", "TERM", "nsenter", f"--net={NETNS_MOUNTS / namespace}"]
        return [*enter, *AS_NODE, str(NETNS_CONFIG / namespace / "hosts"), node, *argv]

    def _is_idle(self) -> bool:
        shown = self.run(["sinfo", "--noheader", "--format=%T %D"], capture_output=True, text=True)
        return bool(shown.stdout.strip() == f"idle {len(NODES)}")

    def _wait_for(self, is_true: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                pytest.fail(f"Slurm did not start: waited for {what}; ended: {ended}\n{self.logs()}", pytrace=False)
            time.sleep(0.1)


def _end_tasks(folder: Path) -> None:
    """End a cluster's slurmstepds and tasks, which outlive slurmd and carry its SLURM_CONF."""
    mark = f"SLURM_CONF={folder / 'slurm.conf'}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue  # it ended by itself


@pytest.fixture(scope="session")
def slurm(lab_guard: None) -> Iterator[Slurm]:
    """A real four-node Slurm: `slurm.allocate(2, ["srun", "hostname"])`."""
    needs.slurm()
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"):
        if removal.is_gone(folder.name.split("-")[2]):
            _end_tasks(folder)
            shutil.rmtree(folder, ignore_errors=True)
    cluster = Slurm()
    yield cluster
    cluster.stop()
