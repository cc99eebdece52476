"""What an engine's own threads cost compute while there is nothing to send.

A helper process next to each rank computes in pairs of blocks: one while the rank waits with its engine alive, one
while the rank is stopped (SIGSTOP), so that its threads cannot poll. Both blocks are of one process on one host, a
moment apart, so what differs between launches, cores or minutes cancels.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any

_BLOCK_S = 0.25
# Between the ranks' agreement and the first block: by then every rank has what it needs from the others.
_SETTLE_S = 0.02


class IdleHelper:
    """A process that computes next to this rank; make it before the engine starts."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "scalescope.estimation.idle_cost"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_until_ready(self) -> None:
        """Returns once it has imported torch."""
        self._ask("ready")

    def pair(self, number: int) -> tuple[float, float]:
        """Seconds of a layer's backward with the engine alive and with the rank stopped; the order alternates."""
        kinds = ("alive", "stopped") if number % 2 else ("stopped", "alive")
        found = {kind: float(self._ask(kind)) for kind in kinds}
        return found["alive"], found["stopped"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, what: str) -> str:
        pipes: Any = self._process
        pipes.stdin.write(what + "\n")
        pipes.stdin.flush()
        return str(pipes.stdout.readline()).strip()


def _block_s(layers: Any, *, stop: int | None) -> float:
    """Seconds of a layer in one block, while the process `stop` is stopped if one is given."""
    time.sleep(_SETTLE_S)
    if stop is None:
        made = layers(_BLOCK_S)
    else:
        os.kill(stop, signal.SIGSTOP)
        try:
            made = layers(_BLOCK_S)
        finally:
            os.kill(stop, signal.SIGCONT)
    return float(made.seconds / made.made)


def main() -> int:
    """Answer the rank's questions, a line each, until it closes the pipe."""
    import torch

    from scalescope.estimation.link_probe import LinkProbe

    rank = os.getppid()
    probe = LinkProbe(None, torch.device("cpu"), ())
    for line in sys.stdin:
        if os.getppid() != rank:  # the rank has ended, and its id may be another process's by now
            return 1
        asked = line.strip()
        answer = 0.0 if asked == "ready" else _block_s(probe.layers, stop=rank if asked == "stopped" else None)
        print(answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
