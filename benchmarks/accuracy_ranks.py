"""One rank of the accuracy benchmark: profile, probe and truth take turns, so that drift meets all of them alike."""

import atexit
import gc
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from scalescope.engines import find_engine
from scalescope.measurement.link_probe import LinkProbe
from scalescope.measurement.probe_ranks import Writer, around, one_round
from scalescope.measurement.probe_ranks import file_of as probe_file
from scalescope.measurement.profile_ranks import Profiler, ProfileTask, steps_of_block
from scalescope.measurement.profile_ranks import file_of as profile_file
from scalescope.measurement.train_model import device_named
from scalescope.records.workload import WorkloadSpec
from scalescope.workloads import load


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A model at some batch sizes."""

    workload: WorkloadSpec
    batches: tuple[int, ...]


class AccuracyTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare, on which engine, how often."""

    cases: tuple[Case, ...]
    engine: str
    knobs: dict[str, Any]
    rounds: int
    sizes: tuple[int, ...]
    parts: tuple[str, ...] = ("profile", "probe", "truth")
    """Beside an engine whose thread never rests the profile is taken in a launch of its own."""


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """Real steps of one rank."""

    batch: int
    seconds: list[float]


class RealSteps:
    """A model under its engine."""

    def __init__(self, case: Case, live: Any, knobs: dict[str, Any]) -> None:
        self._workload = load(case.workload)
        model = self._workload.model
        self._model, self._optimizer = live.wrap(model, self._workload.optimizer(model.parameters()), knobs)
        self._data = {size: (self._workload.batch(size), self._workload.target(size)) for size in case.batches}

    def block(self, batch: int, steps: int) -> Truth:
        """Some steps in a row; the first two do not count."""
        inputs, target = self._data[batch]
        seconds = []
        for _ in range(steps + 2):
            started = time.perf_counter()
            self._optimizer.zero_grad()
            loss: Any = self._workload.loss(self._model(*inputs), target)
            loss.backward()
            self._optimizer.step()
            seconds.append(time.perf_counter() - started)
        return Truth(batch=batch, seconds=seconds[2:])


def one_case(case: Case, folder: Path, live: Any, rank: int, world: int, task: AccuracyTask, probe: LinkProbe) -> None:
    """All rounds of one model."""
    folder.mkdir(exist_ok=True)
    asked = ProfileTask(
        workload=case.workload, batches=case.batches, device="cpu", seconds=0, repeats=0, crowds=(world,)
    )
    profiler = Profiler(asked, device_named("cpu"), folder / profile_file(rank)) if "profile" in task.parts else None
    real = RealSteps(case, live, task.knobs) if "truth" in task.parts else None
    truth, probed = Writer(folder / f"truth-rank{rank}.jsonl"), Writer(folder / probe_file(rank))
    if rank == 0 and profiler:
        profiler.write(profiler.describe())
    steps = {}
    for batch in case.batches:
        step_s = real.block(batch, 3).seconds[-1] if real else 0.0
        step_s = profiler.block(batch, 1).step_s if profiler and rank == 0 else step_s
        steps[batch] = live.agree(steps_of_block(step_s))
    for _ in range(task.rounds):
        for batch in case.batches:
            if profiler:
                live.agree(0)
                profiler.block(batch, world, steps[batch])
                live.agree(0)
                if rank == 0:
                    profiler.block(batch, 1, steps[batch])
            if real:
                live.agree(0)
                truth.write(real.block(batch, steps[batch]))
        if "probe" in task.parts:
            one_round(probe, probed)


def main(arguments: list[str]) -> int:
    """`accuracy_ranks FILE`."""
    path = Path(arguments[0])
    task = msgspec.json.decode(path.read_bytes(), type=AccuracyTask)
    live = importlib.import_module(find_engine(task.engine).live_module)
    rank, world = live.start("cpu", task.knobs)
    probe = LinkProbe(live, device_named("cpu"), task.sizes)
    for index, case in enumerate(task.cases):
        one_case(case, path.parent / f"case{index}", live, rank, world, task, probe)
        gc.collect()
        print(f"{case.workload.model} done", flush=True)
    if "probe" in task.parts:
        around(probe, live, Writer(path.parent / probe_file(rank)))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    atexit._run_exitfuncs()
    os._exit(code)
