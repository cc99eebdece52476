"""A host behind an ssh: what runs there has another parent, and is not to be seen from a process namespace here."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs

CLIENT = """#!{python} -IS
# Stands in for ssh: skips its options, hands the line over, and ends as the line or the connection does.
import json, socket, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    words = words[2:]
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({path!r})
    connection.sendall(json.dumps(" ".join(words[1:])).encode() + b"\\n")
    sys.exit(json.loads(connection.makefile().readline() or "255"))
"""


class FarHost:
    """Runs lines that come over a socket, as sshd does: they go on when the connection is lost."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="far"))  # a socket's path must be short
        self.ssh = self._folder / "ssh"
        self.ssh.write_text(CLIENT.format(python=sys.executable, path=str(self._folder / "sshd")))
        self.ssh.chmod(0o755)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / "sshd"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def running(self) -> list[int]:
        """Ids of lines that have not ended."""
        return [process.pid for process in self._processes if process.poll() is None]

    def lose_connections(self) -> None:
        """Every client is gone; what it started is not."""
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)

    def remove(self) -> None:
        """End what still runs."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        line = json.loads(connection.makefile().readline())
        process = subprocess.Popen(
            ["sh", "-c", line], stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]}, start_new_session=True
        )
        self._processes.append(process)
        code = process.wait()
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(code & 255).encode() + b"\n")


@pytest.fixture
def far_host() -> Iterator[FarHost]:
    """A host whose processes only the test process sees."""
    needs.root()
    needs.programs("unshare", "sleep", "sh")
    host = FarHost()
    yield host
    host.remove()
