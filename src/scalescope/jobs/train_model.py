"""The program that every rank of a MODEL job runs: real steps on made-up data."""

import atexit
import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from scalescope.engines import find_engine
from scalescope.errors import ScalescopeError, UsageError
from scalescope.jobs.interleaved import Interleaved, run_interleaved
from scalescope.jobs.load import Peers
from scalescope.records.profile import WorkloadSpec
from scalescope.stats import half_width

if TYPE_CHECKING:
    from scalescope.workloads import Workload

LAUNCH_S, _FEWEST_S = 10.0, 2.0  # What the steps of a launch take at most and at least
LAUNCH_STEPS = 20
_PRECISION = 0.01  # Half of the interval of a launch's mean step at which it may end
_BLOCKS = 10  # By whose means it is known
_LOOKS = 20
USAGE_MARK = "scalescope-usage:"  # Before the line of a rank that a user can act on


class TrainingTask(msgspec.Struct, frozen=True, kw_only=True):
    """The training of one rank."""

    workload: WorkloadSpec
    engine: str
    knobs: dict[str, Any]
    batch: int
    steps: int
    may_end_early: bool = False  # As soon as the mean step is known well, see is_enough()
    device: str
    interleaved: Interleaved | None = None  # Instead of a number of steps: one process alone and all, block by block


def main(arguments: list[str]) -> int:
    """`train_model FILE` trains; `train_model --check FILE` builds the model and makes two steps."""
    task = msgspec.json.decode(Path(arguments[-1]).read_bytes(), type=TrainingTask)
    try:
        if arguments[0] == "--check":
            print(f"\n{json.dumps(check(task))}")  # on a line of its own, whatever the model has printed
        else:
            train(task, Path(arguments[-1]).parent)
    except ScalescopeError as problem:
        print(f"\n{USAGE_MARK} {problem}", file=sys.stderr)
        return problem.exit_code
    return 0


def train(task: TrainingTask, folder: Path) -> None:
    """The training itself; what it notes in addition to the agent's records goes into the folder."""
    from scalescope.workloads import load

    live = importlib.import_module(find_engine(task.engine).live_module)
    device = device_named(task.device)
    rank, world = live.start(str(device), task.knobs)
    workload = load(task.workload)
    model = workload.model.to(device)
    model, optimizer = live.wrap(model, workload.optimizer, task.knobs, passes=task.workload.accumulate)
    step = _step(workload, model, optimizer, task.batch, device)
    if task.interleaved:
        apart = load(task.workload)
        model = apart.model.to(device)
        alone = _step(apart, model, apart.optimizer(model.parameters()), task.batch, device)
        run_interleaved(
            _waited(step, device),
            _waited(alone, device),
            live,
            Peers(live, device, rank, world),
            rank,
            task.interleaved,
            folder,
        )
    elif task.may_end_early and device.type == "cpu":  # a GPU's steps are not over when the host has launched them
        _train_until_known(step, task.steps, lambda enough: bool(live.agree(int(enough))), rank)
    else:
        for _ in range(task.steps):
            step()
    _wait_for(device)
    live.finish()


def _train_until_known(step: Callable[[], None], steps: int, agree: Callable[[bool], bool], rank: int) -> None:
    """Make steps until rank 0 knows its mean step; all ranks end after the same one, at the latest after `steps`.

    Ranks ask rank 0 after every twentieth of `steps`, about twice a second: asked after each step, they would wait for
    it in every one.
    """
    durations: list[float] = []
    ended = time.perf_counter()
    for made in range(1, steps + 1):
        step()
        began, ended = ended, time.perf_counter()
        durations.append(ended - began)
        if made * _LOOKS // steps > (made - 1) * _LOOKS // steps and agree(rank == 0 and is_enough(durations)):
            break


def is_enough(durations: Sequence[float]) -> bool:
    """True when a launch may end: its mean step is known within 1 %, after 20 steps and 2 s; in any case after 10 s.

    Known by the means of ten blocks, whose interval also holds where neighbouring steps resemble each other. The first
    fifth warms up.
    """
    seconds = sum(durations)
    if len(durations) < LAUNCH_STEPS or seconds < _FEWEST_S:
        return False
    if seconds >= LAUNCH_S:
        return True
    steady = durations[len(durations) // 5 :]
    edges = [len(steady) * at // _BLOCKS for at in range(_BLOCKS + 1)]
    means = [fmean(steady[begin:end]) for begin, end in pairwise(edges)]
    return half_width(means) <= _PRECISION * fmean(means)


def _step(workload: "Workload", model: Any, optimizer: Any, batch: int, device: Any) -> Callable[[], None]:
    """One step of a training, always on the same batch."""
    *first, last = [(moved(inputs, device), moved(target, device)) for inputs, target in workload.parts(batch)]

    def one_pass(inputs: tuple[Any, ...], target: object) -> None:
        with workload.precision(device.type):
            loss: Any = workload.loss(model(*inputs), target)
        (loss / (len(first) + 1) if first else loss).backward()

    def step() -> None:
        optimizer.zero_grad()
        for part in first:
            with getattr(model, "no_sync", contextlib.nullcontext)():  # Horovod has none: its optimizer counts passes
                one_pass(*part)
        one_pass(*last)
        optimizer.step()

    return step


def _waited(step: Callable[[], None], device: Any) -> Callable[[], None]:
    """The step until its last kernel has ended, so that it can be timed."""

    def whole() -> None:
        step()
        _wait_for(device)

    return whole


def _wait_for(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def check(task: TrainingTask) -> dict[str, Any]:
    """One process, two steps: what would go wrong goes wrong here, before ranks are started."""
    from scalescope.workloads import check as check_workload
    from scalescope.workloads import load

    workload = load(task.workload)
    check_workload(workload, task.batch)
    device = device_named(task.device)
    model = workload.model.to(device)
    step = _waited(_step(workload, model, workload.optimizer(model.parameters()), task.batch, device), device)
    step_s = 0.0
    for _ in range(2):  # the first step on a GPU takes many times longer
        started = time.perf_counter()
        step()
        step_s = time.perf_counter() - started
    return {"step_s": step_s}


def device_named(name: str) -> Any:
    """The torch device that cpu, cuda or auto means in this rank."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch sees no GPU here: use --device cpu")
    if name == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(name)


def moved(value: Any, device: Any) -> Any:
    """Tensors, also inside lists and tuples, on the device; everything else as it is."""
    if isinstance(value, list | tuple):
        return type(value)(moved(part, device) for part in value)
    return value.to(device) if hasattr(value, "to") else value


def end(code: int) -> NoReturn:
    """End a rank: what is registered to run at exit runs, what comes after it does not.

    There torch's gloo threads abort the process now and then, long after its work is done, and the launcher would call
    the whole job failed.
    """
    sys.stdout.flush()
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except SystemExit as enough:  # the agent ends a training that has made all steps that were wanted
        code = int(enough.code or 0)
    end(code)
