"""The program that every rank of a MODEL job runs: real steps on made-up data."""

import atexit
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from scalescope.engines import find_engine
from scalescope.errors import ScalescopeError, UsageError
from scalescope.records.workload import WorkloadSpec


class TrainingTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is to train and how."""

    workload: WorkloadSpec
    engine: str
    knobs: dict[str, Any]
    batch: int
    steps: int
    device: str


def main(arguments: list[str]) -> int:
    """`train_model FILE` trains; `train_model --check FILE` builds the model and makes two steps."""
    task = msgspec.json.decode(Path(arguments[-1]).read_bytes(), type=TrainingTask)
    try:
        if arguments[0] == "--check":
            print(json.dumps(check(task)))
        else:
            train(task)
    except ScalescopeError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    return 0


def train(task: TrainingTask) -> None:
    """The training itself."""
    import torch

    from scalescope.workloads import load

    live = importlib.import_module(find_engine(task.engine).live_module)
    device = _device(task.device)
    live.start(str(device), task.knobs)
    workload = load(task.workload)
    model = workload.model.to(device)
    model, optimizer = live.wrap(model, workload.optimizer(model.parameters()), task.knobs)
    inputs = [_moved(value, device) for value in workload.batch(task.batch)]
    target = _moved(workload.target(task.batch), device)
    for _ in range(task.steps):
        optimizer.zero_grad()
        loss: Any = workload.loss(model(*inputs), target)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    live.finish()


def check(task: TrainingTask) -> dict[str, Any]:
    """One process, two steps: what would go wrong goes wrong here, before ranks are started."""
    import torch

    from scalescope.workloads import check as check_workload
    from scalescope.workloads import load

    workload = load(task.workload)
    check_workload(workload, task.batch)
    device = _device(task.device)
    model = workload.model.to(device)
    optimizer = workload.optimizer(model.parameters())
    inputs = [_moved(value, device) for value in workload.batch(task.batch)]
    target = _moved(workload.target(task.batch), device)
    step_s = 0.0
    for _ in range(2):  # the first step on a GPU takes many times longer
        started = time.perf_counter()
        loss: Any = workload.loss(model(*inputs), target)
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        step_s = time.perf_counter() - started
    return {"step_s": step_s}


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch sees no GPU here: use --device cpu")
    if name == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(name)


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_moved(part, device) for part in value)
    return value.to(device) if hasattr(value, "to") else value


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # What is registered to run at exit runs; what comes after it does not: there torch's gloo threads abort the
    # process now and then, long after the training is over, and the launcher would call the whole job failed.
    atexit._run_exitfuncs()
    os._exit(code)
