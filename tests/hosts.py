"""Hosts out of network namespaces: shaped links, host names and an ssh of their own, gone when the test ends."""

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
import removal

NETNS_CONFIG = Path("/etc/netns")
NETNS_MOUNTS = Path("/run/netns")
PREFIX = "scalescope-lab"
ENTER = 'hostname "$0"; exec "$@"'
SSH = """#!/bin/sh
# Stands in for ssh: skips its options, enters the host, and like sshd gives the command a clean environment; but how
# threads wait is sent along, as all hosts share the cores.
host=
while :; do
    case "$1" in
        -[BbcDEeFIiJLlmOopQRSWw]) shift 2 ;;
        -*) shift ;;
        *)
            [ -n "$host" ] && break
            host=${1#*@}
            shift
            ;;
    esac
done
case "$host" in
%(cases)s
    *) echo "ssh: Could not resolve hostname $host" >&2; exit 255 ;;
esac
cd "$HOME" || exit 255
exec ip netns exec "$namespace" unshare --uts sh -c '%(enter)s' "$name" \\
    env -i HOME="$HOME" LANG="${LANG:-C.UTF-8}" SHELL=/bin/sh PATH='%(path)s' SSH_CONNECTION=stand-in \\
    ${OMP_WAIT_POLICY:+OMP_WAIT_POLICY=$OMP_WAIT_POLICY} sh -c "$*"
"""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_labs: list["Lab"] = []
_serial = itertools.count(1)


class Lab:
    """Hosts on one switch, which loopback does not connect; `rate` limits each host's eth0 in both directions.

    With `second`, that is the rate of an eth1 on a switch of its own.
    """

    network = "10.78.0.0/24"
    interface = "eth0"

    def __init__(self, names: tuple[str, ...], folder: Path, rate: str = "", second: str = "") -> None:
        self._id = f"{PREFIX}-{os.getpid()}-{next(_serial)}"
        self._switch = f"{self._id}-switch"
        self.names = names
        self.ssh = folder / f"ssh-{self._id}" / "ssh"
        _labs.append(self)
        try:
            self._make({"eth0": ("10.78.0", rate), **({"eth1": ("10.79.0", second)} if second else {})})
            self._write_ssh()
        except BaseException:
            self.remove()
            raise

    def address(self, name: str) -> str:
        """Address of a host's eth0."""
        return f"10.78.0.{self.names.index(name) + 1}"

    def command(self, name: str, argv: list[str]) -> list[str]:
        """The command line that runs argv on a host, under the host's name."""
        return ["ip", "netns", "exec", self.namespace(name), "unshare", "--uts", "sh", "-c", ENTER, name, *argv]

    def run(self, name: str, argv: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """subprocess.run on a host, where the stand-in is the ssh on PATH."""
        return subprocess.run(self.command(name, argv), **self._with_ssh(options))

    def popen(self, name: str, argv: list[str], **options: Any) -> subprocess.Popen[Any]:
        """subprocess.Popen on a host, where the stand-in is the ssh on PATH."""
        return subprocess.Popen(self.command(name, argv), **self._with_ssh(options))

    def plug(self, name: str, into: bool) -> None:
        """Plug a host's eth0 into the switch, or pull it out."""
        port = f"port{self.names.index(name) + 1}-0"
        _ip("-n", self._switch, "link", "set", port, "up" if into else "down")

    def namespace(self, name: str) -> str:
        """Network namespace that is this host."""
        assert name in self.names, name
        return f"{self._id}-{name}"

    def remove(self) -> None:
        """End what still runs on the hosts, by process id, and delete the namespaces and their files."""
        for namespace in [*map(self.namespace, self.names), self._switch]:
            _remove_namespace(namespace)
        shutil.rmtree(self.ssh.parent, ignore_errors=True)
        if self in _labs:
            _labs.remove(self)

    def _make(self, links: dict[str, tuple[str, str]]) -> None:
        """By interface: the first three numbers of its addresses, and its rate."""
        _ip("netns", "add", self._switch)
        for index in range(len(links)):
            _ip("-n", self._switch, "link", "add", f"bridge{index}", "type", "bridge")
            _ip("-n", self._switch, "link", "set", f"bridge{index}", "addrgenmode", "none", "up")
        known = "".join(f"{self.address(name)} {name}\n" for name in self.names)
        for number, name in enumerate(self.names, 1):
            host = self.namespace(name)
            _ip("netns", "add", host)
            config = NETNS_CONFIG / host
            config.mkdir(parents=True)
            (config / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
            _ip("-n", host, "link", "set", "lo", "up")
            for index, (device, (network, rate)) in enumerate(links.items()):
                port = f"port{number}-{index}"
                _ip("link", "add", device, "netns", host, "type", "veth", "peer", "name", port, "netns", self._switch)
                _ip("-n", self._switch, "link", "set", port, "addrgenmode", "none", "master", f"bridge{index}", "up")
                _ip("-n", host, "link", "set", device, "addrgenmode", "none", "up")
                _ip("-n", host, "addr", "add", f"{network}.{number}/24", "dev", device)
                for namespace, end in ((host, device), (self._switch, port)) if rate else ():
                    shape = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
                    _call(["tc", "-n", namespace, "qdisc", "add", "dev", end, "root", *shape])

    def _write_ssh(self) -> None:
        cases = "\n".join(
            f"    {name}|{self.address(name)}) name={name} namespace={self.namespace(name)} ;;" for name in self.names
        )
        self.ssh.parent.mkdir(parents=True)
        path = f"{self.ssh.parent}:{SYSTEM_PATH}"
        self.ssh.write_text(SSH % {"cases": cases, "enter": ENTER, "path": path})
        self.ssh.chmod(0o755)

    def _with_ssh(self, options: dict[str, Any]) -> dict[str, Any]:
        environment = options.get("env") or os.environ
        return {**options, "env": {**environment, "PATH": f"{self.ssh.parent}:{environment['PATH']}"}}


def _call(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"
    return done.stdout


def _ip(*arguments: str) -> str:
    return _call(["ip", *arguments])


def _processes(namespace: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def _remove_namespace(namespace: str) -> None:
    """Idempotent, and goes on whatever is missing already."""
    deadline = time.monotonic() + 10
    while (running := _processes(namespace)) and time.monotonic() < deadline:
        for pid in running:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    if (NETNS_MOUNTS / namespace).exists():
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
    shutil.rmtree(NETNS_CONFIG / namespace, ignore_errors=True)


def _remove_all() -> None:
    for lab in list(_labs):
        lab.remove()


def _remove_leftovers() -> None:
    """Remove labs of test processes that were killed before they could."""
    known = {path.name for folder in (NETNS_MOUNTS, NETNS_CONFIG) if folder.exists() for path in folder.iterdir()}
    for name in known:
        if name.startswith(f"{PREFIX}-") and removal.is_gone(name.split("-")[2]):
            _remove_namespace(name)


@pytest.fixture(scope="session")
def lab_guard() -> None:
    """Remove labs also when the test process is told to end."""
    _remove_leftovers()
    removal.at_the_end(_remove_all)


@pytest.fixture
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Lab]]:
    """Make hosts: `lab = hosts(2, rate="200mbit")`; see Lab."""
    needs.namespaces()
    request.getfixturevalue("lab_guard")
    made: list[Lab] = []

    def make(count: int = 2, rate: str = "1gbit", second: str = "") -> Lab:
        made.append(Lab(tuple(f"h{number}" for number in range(1, count + 1)), tmp_path, rate, second))
        return made[-1]

    yield make
    for lab in made:
        lab.remove()
