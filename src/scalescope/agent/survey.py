"""A survey of the training for the simulator: the parts of a step, and the cost of messages.

`SCALESCOPE_SURVEY=N` asks for it after N steps of any launch; rank 0 then writes survey.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Generator
from statistics import median
from typing import Any

from .between import BetweenSteps, Work, optimizers
from .halves import engine_file, group_live
from .interruptions import ModelHook, samples_in
from .recorder import now, say

STEPS = 3
_SMALLEST_PROBE = 4096
_MOST_SIZES = 8
_LONGEST_PROBE_S = 1.0  # A message that takes longer is the largest one that is tried
_MIB = 1 << 20


def survey(
    between: BetweenSteps, root: Any, group: Any, steps: int, hierarchical: Any
) -> Generator[int, None, dict[str, Any]]:
    """Watch `steps` steps, then probe; `hierarchical` is what has an `allreduce`, or None.

    Empty where the steps cannot be watched; without costs where a rank has no room for the messages.
    """
    import torch

    parts = _Parts(root, is_nested=group.wraps_optimizers)
    trouble = ""

    def begin_step() -> None:
        between.take()

    def end_step() -> None:
        parts.step_is_over(between.take()[-1].nanoseconds)

    try:
        for _ in range(steps):  # as many on every rank, whatever fails on one of them
            trouble = trouble or group_live.objection(begin_step)
            yield 1
            trouble = trouble or group_live.objection(end_step)
    finally:
        parts.remove()
    found: dict[str, Any] = {}
    if group.agree(trouble or group_live.objection(lambda: found.update(parts.summary()))):
        return {}
    total = group.share({"total": sum(size for _, size, _ in found["gradients"])})["total"]
    messages = _Messages(group, parts.parameters)
    costs: dict[str, list[list[float]]] = {}
    if not group.agree(group_live.objection(lambda: messages.make_room(total))):
        costs["flat"] = messages.costs(total, "flat", group.allreduce)
        if hierarchical is not None:
            costs["hierarchical"] = messages.costs(total, "hierarchical", lambda t, name: hierarchical.allreduce(t))
        group_live.objection(lambda: found.update(copy_s_per_byte=messages.copy_s_per_byte()))
    return {
        "copy_s_per_byte": 0.0,
        **found,
        "engine": group.engine,
        "backend": group.backend,
        "hosts": len(set(group.hosts)),
        "ranks_per_host": group.hosts.count(group.hosts[0]),
        "cores": group.cores,
        "threads": torch.get_num_threads(),
        "costs": costs,
    }


def survey_once(
    between: BetweenSteps,
    root: Any,
    control_group: Callable[[], Any],
    path: str,
) -> Work:
    """For a launch that is made for a survey: the survey, and its file; the training goes on without one, too."""
    try:
        group = control_group()
        found = yield from survey(between, root, group, STEPS, group.hierarchical)
        if group.rank == 0 and found:
            with open(path + ".partial", "w") as file:
                json.dump(found, file)
            os.replace(path + ".partial", path)  # noqa: PTH105 - pathlib is slow to import
    except Exception as problem:
        say(f"no survey: {group_live.one_line(problem)}")


class _Parts:
    """Times at which the parts of a watched step begin."""

    def __init__(self, root: Any, *, is_nested: bool) -> None:
        import torch

        self._root, self._is_nested = root, is_nested
        named = [(name, each) for name, each in root.named_parameters() if each.requires_grad]
        self.parameters = [each for _, each in named]
        self._cuda = bool(self.parameters) and self.parameters[0].is_cuda
        self._sizes = [(name, each.numel() * each.element_size(), each.element_size()) for name, each in named]
        self._rows: list[dict[str, Any]] = []
        autograd: Any = torch.autograd
        self._hooks = [
            root.register_forward_pre_hook(ModelHook(self._on_forward), with_kwargs=True),
            optimizers().register_optimizer_step_pre_hook(self._on_optimizer),
            *(
                each.register_post_accumulate_grad_hook(self._on_gradient(at))
                for at, each in enumerate(self.parameters)
            ),
        ]
        original = autograd.backward

        def backward(*arguments: Any, **options: Any) -> Any:
            self._on_backward()
            return original(*arguments, **options)

        def restore() -> None:
            if autograd.backward is backward:
                autograd.backward = original

        autograd.backward = backward
        self._restore_backward = restore
        self._begin_step()

    def remove(self) -> None:
        """Take every hook back."""
        self._restore_backward()
        for hook in self._hooks:
            hook.remove()

    def _moment(self) -> Any:
        """Now; on a GPU an event that is read when the step is over."""
        if not self._cuda:
            return now()
        import torch

        cuda: Any = torch.cuda
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _begin_step(self) -> None:
        self._began = self._moment()
        self._forward: Any = None
        self._backward: Any = None
        self._samples = 0
        self._ready: list[Any] = [None] * len(self.parameters)
        self._optimizer: Any = None

    def _on_forward(self, module: Any, arguments: Any, options: Any) -> None:
        if module.training:
            self._forward = self._forward or self._moment()
            with contextlib.suppress(Exception):  # inputs may be anything
                self._samples += samples_in(arguments) or samples_in(options)

    def _on_backward(self) -> None:
        self._backward = self._moment()
        self._optimizer = None

    def _on_gradient(self, index: int) -> Callable[[Any], None]:
        def note(parameter: Any) -> None:
            self._ready[index] = self._moment()

        return note

    def _on_optimizer(self, optimizer: Any, arguments: Any, options: Any) -> None:
        """Note the optimizer: the first of several in turn, the inner one where one wraps another and waits."""
        if self._optimizer is None or self._is_nested:
            self._optimizer = self._moment()

    def step_is_over(self, nanoseconds: int) -> None:
        """Keep the parts of the step that just ended; a step without a backward pass has none."""
        last = self._moment()
        if self._cuda:
            last.synchronize()
        if self._backward is not None and self._forward is not None:
            ready = [None if each is None else self._between(self._backward, each) for each in self._ready]
            self._rows.append(
                {
                    "forward_s": self._between(self._forward, self._backward),
                    "backward_s": max((each for each in ready if each is not None), default=0.0),
                    "optimizer_s": self._between(self._optimizer, last) if self._optimizer else 0.0,
                    "step_s": self._between(self._began, last) if self._cuda else nanoseconds * 1e-9,
                    "samples": self._samples,
                    "ready": ready,
                }
            )
        self._begin_step()

    def _between(self, first: Any, then: Any) -> float:
        return float(first.elapsed_time(then) * 1e-3 if self._cuda else (then - first) * 1e-9)

    def summary(self) -> dict[str, Any]:
        """Medians over the steps; gradients in the order in which they got ready."""
        if not self._rows:
            raise RuntimeError("no step of the survey went through the model and backward")
        gradients = []
        for at, size in enumerate(self._sizes):
            times = [row["ready"][at] for row in self._rows if row["ready"][at] is not None]
            if times:
                gradients.append((max(median(times), 0.0), size))
        gradients.sort(key=lambda each: each[0])
        names = ("forward_s", "backward_s", "optimizer_s", "step_s", "samples")
        sent = getattr(self._root, "broadcast_buffers", False) or getattr(self._root, "forward_sync_buffers", False)
        buffers = [each.numel() * each.element_size() for each in self._root.buffers()] if sent else []
        return {
            "gradients": [list(size) for _, size in gradients],
            "ready_s": [ready for ready, _ in gradients],
            **{name: median(row[name] for row in self._rows) for name in names},
            "buffers_bytes": buffers,
            "device": "gpu" if self._cuda else "cpu",
        }


class _Messages:
    """The cost of summing and copying gradients; every rank takes part alike."""

    def __init__(self, group: Any, parameters: list[Any]) -> None:
        self._group = group
        self._parameters = parameters
        self._device = parameters[0].device
        self._buffer: Any = None

    def make_room(self, total: int) -> str:
        """A buffer for the largest message, or why there is none."""
        import torch

        no_room: str = engine_file("room_live").no_room_for(total, self._device, self._group.ranks_here)
        if not no_room:
            self._buffer = torch.zeros(max(total // 4, 1), dtype=torch.float32, device=self._device)
        return no_room

    def costs(self, total: int, kind: str, allreduce: Callable[[Any, str], None]) -> list[list[float]]:
        """Size, seconds of rank 0 and its processor's seconds, for sizes up to that of all gradients."""
        if self._group.size == 1:
            return []
        buffer = self._buffer
        self._timed(allreduce, buffer[:1], f"{kind}.first")
        found: list[list[float]] = []
        for size in probe_sizes(total):
            message = buffer[: size // 4]
            times = [self._timed(allreduce, message, f"{kind}.{size}") for _ in range(3 if size < _MIB else 2)]
            seconds, processor = (median(each) for each in zip(*times))  # noqa: B905
            found.append([size, seconds, processor])
            if size >= _MIB and self._group.share({"enough": seconds > _LONGEST_PROBE_S})["enough"]:
                break
        return found

    def _timed(self, allreduce: Callable[[Any, str], None], message: Any, name: str) -> tuple[float, float]:
        import torch

        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        began, processor = time.perf_counter(), time.process_time()
        allreduce(message, name)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - began, time.process_time() - processor

    def copy_s_per_byte(self) -> float:
        """To copy gradients into one buffer; the second time, when its memory is there."""
        import torch

        self._buffer = None  # there is room for one of them
        values = [each.detach().reshape(-1) for each in self._parameters]
        flat = torch.zeros(sum(each.numel() for each in values), dtype=values[0].dtype, device=self._device)

        def copy(target: Any, name: str) -> None:
            at = 0
            for each in values:
                target[at : at + each.numel()].copy_(each)
                at += each.numel()

        times = [self._timed(copy, flat, "copy")[0] for _ in range(2)]
        return times[-1] / (flat.numel() * flat.element_size())


def probe_sizes(total: int) -> list[int]:
    """From 4 KiB on in steps of four, and all gradients together."""
    sizes = [_SMALLEST_PROBE * 4**power for power in range(_MOST_SIZES - 1)]
    return [*(size for size in sizes if size < 0.8 * total), max(total // 4 * 4, 4)]
