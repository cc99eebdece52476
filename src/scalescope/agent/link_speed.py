"""One TCP connection over each IP network between two hosts, timed: a program of the standard library, run as text.

Arguments: `receive` or `send`, a token, and a JSON list of [address here, address there, port]. The receiver prints the
bits per second of every network as JSON; 0 where no connection came.
"""

from __future__ import annotations

import json
import socket
import sys
import time

SECONDS = 0.6  # Of sending, per network
_WARM_S = 0.15  # A shaper lets a burst through, and TCP begins slowly: not counted
_PATIENCE_S = 6.0
_BLOCK = 1 << 18


def receive(address: str, port: int, token: bytes) -> float:
    """Bits per second of the one connection that knows the token."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1)
        listener.settimeout(_PATIENCE_S)
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(_PATIENCE_S)
        if connection.recv(len(token), socket.MSG_WAITALL) != token:
            return 0.0
        began = time.monotonic()
        counted, since, last = 0, 0.0, began
        while data := connection.recv(_BLOCK):
            last = time.monotonic()
            if not since and last - began > _WARM_S:
                since = last
            elif since:
                counted += len(data)
        return 8 * counted / (last - since) if since and last > since else 0.0


def send(here: str, there: str, port: int, token: bytes) -> float:
    """Send for a while, once the receiver listens; the receiver alone knows how fast it was."""
    deadline, block = time.monotonic() + _PATIENCE_S, bytes(_BLOCK)
    while True:
        try:
            connection = socket.create_connection((there, port), timeout=_PATIENCE_S, source_address=(here, 0))
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    with connection:
        connection.sendall(token)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            connection.sendall(block)
    return 0.0


def main() -> None:
    """Run one side, network after network."""
    role, token, links = sys.argv[1], sys.argv[2].encode(), json.loads(sys.argv[3])
    found = []
    for here, there, port in links:
        try:
            found.append(receive(here, port, token) if role == "receive" else send(here, there, port, token))
        except OSError:
            found.append(0.0)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
