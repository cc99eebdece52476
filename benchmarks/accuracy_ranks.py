"""One rank of the accuracy benchmark: profile, probe and truth take turns, so that drift meets all of them alike."""

import gc
import importlib
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from scalescope.engines import find_engine
from scalescope.estimation.link_probe import LinkProbe
from scalescope.estimation.probe_ranks import around, helper_of, idle, one_round
from scalescope.estimation.probe_ranks import file_of as probe_file
from scalescope.estimation.profile_blocks import ProfileTask
from scalescope.estimation.profile_blocks import file_of as profile_file
from scalescope.estimation.profile_plan import steps_of_block
from scalescope.estimation.profile_ranks import Profiler
from scalescope.jobs.load import Peers
from scalescope.jobs.train_model import device_named, end
from scalescope.records.profile import WorkloadSpec
from scalescope.records.store import LineWriter
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
    # Beside an engine whose thread never rests the profile is taken in a launch of its own.
    parts: tuple[str, ...] = ("profile", "probe", "truth")
    # Numbers of ranks that take turns, each into a folder of its own; empty: all ranks, into the task's folder.
    groups: tuple[int, ...] = ()


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """Real steps of one rank."""

    batch: int
    seconds: list[float]


class Group:
    """The first ranks of a job as if they were all of it: what DDP's live module offers, among them."""

    def __init__(self, live: Any, ranks: int) -> None:
        import torch.distributed as dist

        self._live, self._dist, self._group = live, dist, dist.new_group(list(range(ranks)))
        self.wait, self.is_done = live.wait, live.is_done

    def agree(self, value: int) -> int:
        import torch

        said = torch.tensor([value])
        self.broadcast(said, "")
        return int(said)

    def wrap(self, model: Any, optimizer: Any, knobs: dict[str, Any]) -> tuple[Any, Any]:
        import torch

        wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=self._group, **knobs)
        return wrapped, optimizer(wrapped.parameters())

    def begin_allreduce(self, tensor: Any, name: str) -> Any:
        return self._dist.all_reduce(tensor, group=self._group, async_op=True)

    def broadcast(self, tensor: Any, name: str) -> None:
        self._dist.broadcast(tensor, src=0, group=self._group)


class RealSteps:
    """A model under its engine."""

    def __init__(self, case: Case, live: Any, knobs: dict[str, Any]) -> None:
        self._workload = load(case.workload)
        model = self._workload.model
        self._model, self._optimizer = live.wrap(model, self._workload.optimizer, knobs)
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


class Comparison:
    """Profile, probe and truth of one model among some ranks, round by round."""

    def __init__(
        self, case: Case, folder: Path, live: Any, rank: int, world: int, task: AccuracyTask, probe: LinkProbe
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._case, self._live, self._rank, self._world, self._probe = case, live, rank, world, probe
        asked = ProfileTask(
            workload=case.workload, batches=case.batches, device="cpu", seconds=0, repeats=0, together=(world,)
        )
        self._profiler = None
        if "profile" in task.parts:
            self._profiler = Profiler(asked, device_named("cpu"), folder / profile_file(rank))
        self._real = RealSteps(case, live, task.knobs) if "truth" in task.parts else None
        self._truth, self._probed = (
            LineWriter(folder / f"truth-rank{rank}.jsonl"),
            LineWriter(folder / probe_file(rank)),
        )
        self._probes = "probe" in task.parts
        self._peers = Peers(live, device_named("cpu"), rank, world)
        if rank == 0 and self._profiler:
            self._profiler.write(self._profiler.describe())
        self._steps = {batch: live.agree(steps_of_block(self._first(batch))) for batch in case.batches}

    def _first(self, batch: int) -> float:
        """Seconds of a first step, also for what is not counted."""
        step_s = self._real.block(batch, 3).seconds[-1] if self._real else 0.0
        return self._profiler.block(batch, 1).step_s if self._profiler and self._rank == 0 else step_s

    def round(self) -> None:
        """Every batch size once."""
        for batch in self._case.batches:
            if self._profiler:
                self._live.agree(0)
                self._profiler.block(batch, self._world, self._steps[batch])
                self._live.agree(0)
                if self._rank == 0:
                    self._profiler.block(batch, 1, self._steps[batch])
            if self._real:
                self._live.agree(0)
                self._truth.write(self._real.block(batch, self._steps[batch]))
        if self._probes:
            one_round(self._probe, self._probed, self._peers)


def main(arguments: list[str]) -> int:
    """`accuracy_ranks FILE`."""
    path = Path(arguments[0])
    task = msgspec.json.decode(path.read_bytes(), type=AccuracyTask)
    live = importlib.import_module(find_engine(task.engine).live_module)
    helper = helper_of(task.engine, "cpu") if "probe" in task.parts else None
    rank, world = live.start("cpu", task.knobs)
    groups: dict[int, tuple[Path, Any]] = {
        count: (path.parent / f"np{count}", Group(live, count)) for count in task.groups
    }
    places = {count: place for count, place in (groups or {world: (path.parent, live)}).items() if rank < count}
    probes = {count: LinkProbe(lives, device_named("cpu"), task.sizes) for count, (_, lives) in places.items()}
    for index, case in enumerate(task.cases):
        comparisons = []
        for count, (folder, lives) in places.items():
            comparisons.append(Comparison(case, folder / f"case{index}", lives, rank, count, task, probes[count]))
        for _ in range(task.rounds):
            for comparison in comparisons:
                comparison.round()
        live.agree(0)
        gc.collect()
        print(f"{case.workload.model} done", flush=True)
    if "probe" in task.parts:
        writer = LineWriter(path.parent / probe_file(rank))
        around(probes[max(probes)], live, writer)
        for each in [helper] * task.rounds if helper else ():
            idle(each, live, writer)
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
