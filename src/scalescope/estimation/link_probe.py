"""Times collectives from inside the ranks: alone, next to compute, and what an engine's threads cost while idle.

For the latter a helper process next to each rank computes in pairs of blocks: one while the rank waits with its engine
alive, one while the rank is stopped (SIGSTOP), so that its threads cannot poll. Both blocks are of one process on one
host, a moment apart, so what differs between launches, cores or minutes cancels.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from scalescope.jobs.step_clock import cpu_s

SIZES = (4, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20)
USUAL_OPERATIONS = ("allreduce", "broadcast")
_LEAST, _MOST = 4, 30
_SECONDS = 0.15  # A size is repeated until about this much time has passed
# Of the linear layer whose backward stands for compute: it reads and writes more than the nearest cache holds.
_SAMPLES, _WIDTH = 16, 1024
_LAYERS_S = 0.3
_MESSAGE_BYTES = 16 << 20
_MESSAGES = 6
_WARMING_S = 3e-3
_COPIED = 16  # Tensors of a mebibyte that are copied at a time
_IDLE_BLOCK_S = 0.25
# Between the ranks' agreement and the first block: by then every rank has what it needs from the others.
_SETTLE_S = 0.02


class Layers(NamedTuple):
    """Backwards of a layer, made in a row."""

    made: int
    seconds: float


class LinkProbe:
    """Collectives of one engine among its ranks; `live` is the engine's live module."""

    def __init__(
        self, live: Any, device: Any, sizes: Sequence[int] = SIZES, operations: Sequence[str] = USUAL_OPERATIONS
    ) -> None:
        import torch

        self._live, self._device, self._torch, self._operations = live, device, torch, operations
        self._buffers = {size: torch.ones(max(size // 4, 1), device=device) for size in sizes}
        self._repeats: dict[tuple[str, int], int] = {}
        shape = _SAMPLES, _WIDTH
        self._output, self._input, self._into = (torch.randn(shape, device=device) for _ in range(3))
        self._weights, self._gradient = (torch.randn(_WIDTH, _WIDTH, device=device) for _ in range(2))
        self._warming = 0  # Layers before a message, the same number in every rank
        self._message = torch.ones(_MESSAGE_BYTES // 4, device=device)

    def collectives(self) -> Iterator[dict[str, Any]]:
        """One pass over operations and sizes: seconds and CPU seconds of every repetition."""
        for operation in self._operations:
            for size, buffer in self._buffers.items():
                yield self._timed(operation, size, buffer)

    def _timed(self, operation: str, size: int, buffer: Any) -> dict[str, Any]:
        name = f"scalescope.{operation}.{size}"
        key = operation, size
        if key not in self._repeats:
            first = min(self._once(operation, buffer, name) for _ in range(2))
            self._repeats[key] = self._live.agree(min(max(int(_SECONDS / first), _LEAST), _MOST))
        seconds, cpu = [], []
        for _ in range(self._repeats[key]):
            self._compute()
            used = cpu_s()
            seconds.append(self._once(operation, buffer, name))
            cpu.append(cpu_s() - used)
        return {"operation": operation, "bytes": size, "seconds": seconds, "cpu_seconds": cpu}

    def _compute(self) -> None:
        """The same work in every rank, as before a message of a training: caches are cold and cores are taken."""
        if not self._warming:
            made = self.layers(_WARMING_S).made
            self._warming = self._live.agree(max(made, 1))
        for _ in range(self._warming):
            self._layer()

    def _once(self, operation: str, buffer: Any, name: str) -> float:
        started = time.perf_counter()
        if operation == "allreduce":
            self._live.wait(self._live.begin_allreduce(buffer, name))
        elif operation == "broadcast":
            self._live.broadcast(buffer, name)
        else:
            self._share(operation, buffer)
        self._settle()
        return time.perf_counter() - started

    def _share(self, operation: str, buffer: Any) -> None:
        """All-gather or reduce-scatter of all ranks' bytes, by torch's process group, at least a number of each."""
        import torch.distributed as dist

        ranks = dist.get_world_size()
        own = buffer[: max(len(buffer) // ranks, 1)]
        whole = self._torch.empty(ranks * len(own), device=self._device) if len(buffer) < ranks else buffer
        whole = whole[: ranks * len(own)]
        if operation == "allgather":
            dist.all_gather_into_tensor(whole, own.clone())
        else:
            dist.reduce_scatter_tensor(self._torch.empty_like(own), whole)

    def overlap(self) -> dict[str, float]:
        """Seconds of a layer's backward and of a message: each alone, and both at the same time."""
        self._live.agree(0)
        alone = self.layers(_LAYERS_S)
        message_s = median(self._once("allreduce", self._message, "scalescope.overlapped") for _ in range(_MESSAGES))
        self._live.agree(0)
        overlapped_s, made, began = [], 0, time.perf_counter()
        for _ in range(_MESSAGES):
            started = time.perf_counter()
            handle = self._live.begin_allreduce(self._message, "scalescope.overlapped")
            made += self._layers_until(lambda handle=handle: self._live.is_done(handle))  # type: ignore[misc]
            self._live.wait(handle)
            overlapped_s.append(time.perf_counter() - started)
        return {
            "layer_s": alone.seconds / alone.made,
            "layer_overlapped_s": (time.perf_counter() - began) / max(made, 1),
            "message_s": message_s,
            "message_overlapped_s": median(overlapped_s),
        }

    def layers(self, seconds: float) -> Layers:
        """Layers for about this long."""
        began = time.perf_counter()
        count = self._layers_until(lambda: time.perf_counter() - began >= seconds)
        return Layers(count, time.perf_counter() - began)

    def _layers_until(self, is_over: Callable[[], bool]) -> int:
        count = 0
        while not is_over():
            self._layer()
            count += 1
        return count

    def _layer(self) -> None:
        """Backward of a linear layer: the gradients of its input and of its weights."""
        self._torch.mm(self._output, self._weights, out=self._into)
        self._torch.mm(self._output.t(), self._input, out=self._gradient)
        self._settle()

    def copy_s_per_byte(self) -> float:
        """Seconds to copy a byte of gradient into a bucket, as DDP does: scaled on the way, tensor by tensor."""
        torch = self._torch
        bucket = torch.empty(_COPIED << 18, device=self._device)
        gradients = [torch.ones(1 << 18, device=self._device) for _ in range(_COPIED)]
        views = list(bucket.split(1 << 18))
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            for view, gradient in zip(views, gradients, strict=True):
                torch.mul(gradient, 0.5, out=view)
            self._settle()
            seconds.append(time.perf_counter() - started)
        return median(seconds) / (_COPIED << 20)

    def _settle(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


class IdleHelper:
    """A process that computes next to this rank; make it before the engine starts."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "scalescope.estimation.link_probe"]
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
        made = layers(_IDLE_BLOCK_S)
    else:
        os.kill(stop, signal.SIGSTOP)
        try:
            made = layers(_IDLE_BLOCK_S)
        finally:
            os.kill(stop, signal.SIGCONT)
    return float(made.seconds / made.made)


def main() -> int:
    """Answer the rank's questions, a line each, until it closes the pipe."""
    import torch

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
