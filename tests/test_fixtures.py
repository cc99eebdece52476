"""The hosts and the Slurm that other tests stand on, tried by themselves; end_to_end has Horovod on them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import needs
from hosts import NETNS_CONFIG, NETNS_MOUNTS
from slurm import CONTROLLER, Slurm

pytestmark = pytest.mark.launches

SERVE = """
import socket
server = socket.create_server(("", 5001))
print(flush=True)
connection = server.accept()[0]
while connection.recv(1 << 16):
    pass
"""
SEND = """
import socket, sys, time
data = bytes(1 << 20)
s = socket.create_connection((sys.argv[1], 5001))
started = time.monotonic()
for _ in range(10):
    s.sendall(data)
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(10 * len(data) * 8 / (time.monotonic() - started) / 1e6)
"""
LAB_THAT_WAITS = """
import time
def test_lab(hosts):
    lab = hosts(2)
    lab.popen("h2", ["sleep", "1000"])
    print(lab.namespace("h2"), flush=True)
    time.sleep(60)
"""


def is_running(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def has_ended(pid: int) -> bool:
    """Whether a process that was killed is gone, for which it may take a moment."""
    deadline = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(pid)


def traces_of(namespace: str) -> list[Path]:
    return [path for path in (NETNS_MOUNTS / namespace, NETNS_CONFIG / namespace) if path.exists()]


def test_each_host_has_its_name_and_reaches_the_others_by_name(hosts):
    lab = hosts(4)
    resolve = "import socket; print(socket.gethostname(), *[socket.gethostbyname(f'h{n}') for n in (1, 2, 3, 4)])"
    for name in lab.names:
        shown = lab.run(name, [sys.executable, "-c", resolve], capture_output=True, text=True, check=True)
        assert shown.stdout.split() == [name, "10.78.0.1", "10.78.0.2", "10.78.0.3", "10.78.0.4"]
    assert lab.address("h3") == "10.78.0.3"
    for name in ("h1", "h2", "h4"):
        with lab.popen("h3", [sys.executable, "-c", SERVE], stdout=subprocess.PIPE) as server:
            server.stdout.readline()
            lab.run(name, [sys.executable, "-c", SEND, "h3"], capture_output=True, check=True, timeout=60)


@pytest.mark.alone
@pytest.mark.parametrize("rate", [100, 400])
def test_links_carry_what_they_were_given_and_no_more(hosts, rate):
    """Whatever else the machine does can only slow a transfer down: the fastest of some shows what the link carries."""
    lab = hosts(2, rate=f"{rate}mbit")
    fastest = 0.0
    for _ in range(8):
        with lab.popen("h2", [sys.executable, "-c", SERVE], stdout=subprocess.PIPE) as server:
            server.stdout.readline()
            command = [sys.executable, "-c", SEND, "h2"]
            sent = lab.run("h1", command, capture_output=True, text=True, check=True, timeout=60)
        fastest = max(fastest, float(sent.stdout))
        if fastest > 0.7 * rate:
            break
    assert 0.7 * rate < fastest < 1.15 * rate


def test_ssh_enters_the_host_like_ssh(hosts):
    lab = hosts(2)

    def ssh(*arguments):
        return lab.run("h1", ["ssh", *arguments], capture_output=True, text=True, env={**os.environ, "MINE": "yes"})

    assert lab.run("h1", ["sh", "-c", "command -v ssh"], capture_output=True, text=True).stdout.strip() == str(lab.ssh)
    shown = ssh("-x", "-o", "StrictHostKeyChecking=no", "root@h2", "-p", "22", "hostname; echo $HOME")
    assert shown.stdout.split() == ["h2", os.environ["HOME"]]
    assert ssh("h2", "true").returncode == 0
    assert ssh("10.78.0.2", "exit", "3").returncode == 3
    assert ssh("h2", "echo", "[$MINE]").stdout == "[]\n"
    unknown = ssh("h3", "true")
    assert unknown.returncode == 255
    assert "h3" in unknown.stderr


def test_removing_a_lab_removes_its_namespaces_and_processes(hosts):
    lab = hosts(2)
    namespace = lab.namespace("h2")
    ours = lab.popen("h2", ["sleep", "1000"])
    orphan = lab.run("h2", ["sh", "-c", "nohup sleep 1000 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True)
    assert is_running(int(orphan.stdout))
    assert len(traces_of(namespace)) == 2
    lab.remove()
    assert ours.wait(30) == -signal.SIGKILL
    assert has_ended(int(orphan.stdout))
    assert traces_of(namespace) == []
    lab.remove()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_lab_is_removed_when_its_test_process_is_killed(hosts, tmp_path, number):
    """Told to end, the process removes its lab; killed, it leaves that to the next one."""
    (tmp_path / "test_lab.py").write_text(LAB_THAT_WAITS)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "hosts", "-p", "no:cacheprovider", "test_lab.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as session:
        namespace = session.stdout.readline().split()[-1]
        assert len(traces_of(namespace)) == 2
        session.send_signal(number)
        assert session.wait(60) == -number
    if number == signal.SIGKILL:
        (tmp_path / "test_lab.py").write_text("def test_lab(hosts): hosts(2)")
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert traces_of(namespace) == []


def test_slurm_gives_a_fresh_allocation(slurm):
    show = 'echo "$SLURM_JOB_ID"; srun --nodes=2 hostname'
    seen = [slurm.allocate(2, ["sh", "-c", show], capture_output=True, text=True).stdout.split() for _ in range(2)]
    assert [len({*nodes} & {"n1", "n2", "n3", "n4"}) for _, *nodes in seen] == [2, 2], "nodes may still be completing"
    assert seen[0][0] != seen[1][0]
    assert slurm.allocate(4, ["srun", "sh", "-c", "exit 7"], capture_output=True).returncode == 7
    assert slurm.run(["getent", "hosts", "n4"], capture_output=True, text=True).stdout.split()[0] == "10.78.0.5"


def test_loopback_does_not_connect_slurms_nodes(slurm):
    """What listens on a node's loopback is not there for the others."""
    ask = "import socket; print(socket.socket().connect_ex(('%s', 5001)) == 0)"
    serve = slurm.command("n1", [sys.executable, "-c", SERVE])
    with subprocess.Popen(serve, stdout=subprocess.PIPE) as server:
        server.stdout.readline()
        for name, address, reached in (("n1", "127.0.0.1", True), ("n2", "127.0.0.1", False)):
            shown = subprocess.run(
                slurm.command(name, [sys.executable, "-c", ask % address]), capture_output=True, text=True, check=True
            )
            assert shown.stdout.split() == [str(reached)]


def test_removing_slurm_ends_its_daemons_and_jobs(tmp_path):
    needs.slurm()
    cluster = Slurm()
    task_file = tmp_path / "task"
    environment = {**os.environ, **cluster.env}
    step = ["srun", "sh", "-c", f"trap '' TERM; echo $$ > {task_file}; sleep 1000"]
    command = cluster.command(CONTROLLER, step)
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        deadline = time.monotonic() + 60
        while not (task_file.exists() and task_file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        task = int(task_file.read_text())
        assert is_running(task)
        cluster.stop()
    assert has_ended(task)
    assert not cluster.conf.parent.exists()
    named = [process for process in Path("/proc").glob("[0-9]*/environ") if carries(process, cluster.conf)]
    assert all(has_ended(int(process.parent.name)) for process in named)


def carries(environ: Path, conf: Path) -> bool:
    try:
        return str(conf).encode() in environ.read_bytes()
    except OSError:
        return False
