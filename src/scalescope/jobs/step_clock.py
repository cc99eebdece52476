"""Times real steps from inside: forward, the moment every gradient is ready, backward, optimizer."""

import ctypes
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from scalescope.workloads import Workload


class StepTimes(NamedTuple):
    """One step, in seconds."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    ready_s: dict[int, float]  # By position among the model's parameters, after the start of backward
    cpu_s: float


class StepClock:
    """A model that makes steps of any batch size and tells how long their parts took."""

    def __init__(self, workload: "Workload", device: Any) -> None:
        self._workload, self._device = workload, device
        self.model = workload.model.to(device)
        self._optimizer = workload.optimizer(self.model.parameters())
        self._mark: Callable[[], Any] = _cuda_mark if device.type == "cuda" else time.perf_counter
        self._ready: dict[int, Any] = {}
        for position, parameter in enumerate(self.model.parameters()):
            if parameter.requires_grad:
                hooked: Any = parameter
                hooked.register_post_accumulate_grad_hook(self._note(position))
        self._inputs: tuple[Any, ...] = ()
        self._target: Any = None

    def use(self, batch: int) -> None:
        """Make the next steps with this many samples."""
        from scalescope.jobs.train_model import moved

        self._inputs = tuple(moved(value, self._device) for value in self._workload.batch(batch))
        self._target = moved(self._workload.target(batch), self._device)

    def step(self) -> StepTimes:
        """One step of training."""
        self._ready.clear()
        used = cpu_s()
        begin = self._mark()
        self._optimizer.zero_grad()
        with self._workload.precision(self._device.type):
            loss: Any = self._workload.loss(self.model(*self._inputs), self._target)
        forward = self._mark()
        loss.backward()
        backward = self._mark()
        self._optimizer.step()
        end = self._mark()
        if self._device.type == "cuda":
            end.synchronize()
        ready = {position: _between(forward, mark) for position, mark in self._ready.items()}
        return StepTimes(
            _between(begin, forward), _between(forward, backward), _between(backward, end), ready, cpu_s() - used
        )

    def held_bytes(self) -> int:
        """Bytes that stay between two steps: of shards those of this rank."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [each.grad for each in self.model.parameters() if each.grad is not None]
        tensors += [value for state in self._optimizer.state.values() for value in state.values()]
        local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
        return sum(each.numel() * each.element_size() for each in local if hasattr(each, "element_size"))

    def _note(self, position: int) -> Callable[[Any], None]:
        ready, mark = self._ready, self._mark

        def note(_parameter: Any) -> None:
            ready[position] = mark()

        return note


def _cuda_mark() -> Any:
    import torch

    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between(earlier: Any, later: Any) -> float:
    """Seconds between two marks: clock readings, or events of a GPU."""
    if isinstance(earlier, float):
        return float(later - earlier)
    return float(earlier.elapsed_time(later)) * 1e-3


def cpu_s() -> float:
    """CPU seconds of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def forget_peak(device: Any) -> None:
    """From now on `peak_bytes` counts anew."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()  # what an earlier, larger batch left behind would count again
        torch.cuda.reset_peak_memory_stats(device)
        return
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: Any) -> int:
    """The most memory in use since `forget_peak`: of this process, or of torch on its GPU."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_reserved(device))
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_limit(device: Any) -> int:
    """Bytes that the device offers to one process at most."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    import psutil

    from scalescope.host import memory_limit_bytes

    return int(min(psutil.virtual_memory().total, memory_limit_bytes()))
