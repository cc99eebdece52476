"""The program that makes a profile: rank 0 steps alone, and at times all ranks of the host step next to each other."""

import contextlib
import importlib
import itertools
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from scalescope.engines import PLAIN, USUAL
from scalescope.errors import ScalescopeError, UsageError
from scalescope.estimation.profile_blocks import Block, Model, ProfileTask, file_of
from scalescope.estimation.profile_engines import EngineCosts
from scalescope.estimation.profile_plan import expected_bytes, next_batch, steps_of_block
from scalescope.jobs.load import LoadMeter
from scalescope.jobs.step_clock import StepClock, forget_peak, memory_limit, peak_bytes
from scalescope.jobs.train_model import USAGE_MARK, device_named, end
from scalescope.records.run import QUIET
from scalescope.records.store import LineWriter
from scalescope.workloads.references import one_line

Clock = Callable[[], float]  # Seconds

_PATIENCE = 1.6  # Times its own length that a disturbed profile may take
_LARGEST_STEP = 15  # A batch whose single step takes more than this part of the time is not tried
# Of the device's memory, beyond which a batch is not tried on a CPU: the system would end the process.
_MEMORY_SHARE = 0.85
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "defaultcpuallocator")  # In torch's RuntimeErrors


class Profiler:
    """Makes blocks of steps in one rank and writes them down."""

    def __init__(self, task: ProfileTask, device: Any, path: Path) -> None:
        from scalescope.workloads import check, load

        workload = load(task.workload)
        check(workload, min(task.batches))
        if device.type == "cpu" and _synchronized_norms(workload.model):
            raise UsageError(
                f"{task.workload.model} has SyncBatchNorm layers, which torch runs on GPUs only: estimate it there "
                "(or with --profile), or build it with BatchNorm"
            )
        self._task, self._device, self.clock = task, device, StepClock(workload, device)
        self.write = LineWriter(path).write
        self._batch = 0

    def describe(self) -> Model:
        """Parameters, buffers and where this is."""
        import torch

        named = list(self.clock.model.named_parameters())
        kinds: dict[str, int] = {}
        for buffer in self.clock.model.buffers():
            kinds[str(buffer.dtype)] = kinds.get(str(buffer.dtype), 0) + buffer.numel() * buffer.element_size()
        cuda = self._device.type == "cuda"
        return Model(
            names=[name for name, _ in named],
            bytes=[parameter.numel() * parameter.element_size() for _, parameter in named],
            element_bytes=[parameter.element_size() for _, parameter in named],
            buffers_bytes=list(kinds.values()),
            buffers=sum(1 for _ in self.clock.model.buffers()),
            norm_channels=_synchronized_norms(self.clock.model),
            torch=str(torch.__version__),
            device=torch.cuda.get_device_name(self._device) if cuda else "cpu",
            hostname=platform.node(),
            memory_limit_bytes=memory_limit(self._device),
        )

    def block(self, batch: int, copies: int, steps: int = 0) -> Block:
        """Steps with this batch size; as many as fit into a block unless their number is given."""
        try:
            block = self._steps(batch, copies, steps)
        except (RuntimeError, MemoryError) as problem:
            words = str(problem).lower()
            if isinstance(problem, RuntimeError) and not any(each in words for each in _OUT_OF_MEMORY):
                raise
            self._batch = 0
            block = Block(batch=batch, copies=copies, failed=one_line(problem))
        self.write(block)
        return block

    def _steps(self, batch: int, copies: int, steps: int) -> Block:
        if batch != self._batch:
            self.clock.use(batch)
            self.clock.step()  # takes memory that no later step takes
            forget_peak(self._device)
            self._batch, self._step_s = batch, sum(self.clock.step()[:3])
        meter = LoadMeter()
        began = time.perf_counter()
        times = [self.clock.step() for _ in range(steps or steps_of_block(self._step_s))]
        own_cores = sum(each.cpu_s for each in times) / (time.perf_counter() - began)
        ready = {
            str(position): median(each.ready_s[position] for each in times if position in each.ready_s)
            for position in times[0].ready_s
        }
        return Block(
            batch=batch,
            copies=copies,
            forward_s=[each.forward_s for each in times],
            backward_s=[each.backward_s for each in times],
            optimizer_s=[each.optimizer_s for each in times],
            cpu_s=[each.cpu_s for each in times],
            ready_s=ready,
            memory_bytes=peak_bytes(self._device),
            # The other copies do not count as foreign: each uses as much as this one.
            foreign_cores=max(meter.read().foreign_cores - (copies - 1) * own_cores, 0.0),
        )


def _synchronized_norms(model: Any) -> list[int]:
    """Channels of every SyncBatchNorm, in the order of the model."""
    import torch

    return [each.num_features for each in model.modules() if isinstance(each, torch.nn.SyncBatchNorm)]


class Director:
    """Rank 0: decides what is measured next, and tells the others when they are needed."""

    def __init__(
        self, task: ProfileTask, profiler: Profiler, live: Any, limit_bytes: int, now: Clock = time.monotonic
    ) -> None:
        self._task, self._profiler, self._live, self._limit, self._now = task, profiler, live, limit_bytes, now
        self._ends = now() + task.seconds
        self._blocks: dict[int, list[Block]] = {}
        self._quiet_rounds: dict[tuple[int, int], int] = {}  # Undisturbed ones, by ranks and batch
        self._too_large = 10**9

    def run(self) -> None:
        """Measure the batch sizes that matter, then several ranks together, then all again while there is time."""
        affordable_s = self._task.launches * self._task.seconds / _LARGEST_STEP
        if self._task.every:
            for chosen in self._task.batches:
                self._alone(chosen)
        else:
            while True:
                steps_s = {batch: median(block.step_s for block in blocks) for batch, blocks in self._blocks.items()}
                possible = [batch for batch in self._task.batches if batch < self._too_large]
                if (batch := next_batch(steps_s, possible, affordable_s)) is None:
                    break
                self._alone(batch)
                if self._spent(0.6) and len(self._blocks) > 1:
                    break
        # Contention depends on whether a step fits into the caches, so it is seen at both ends of what was measured.
        ends = sorted({min(self._blocks), max(self._blocks)}) if self._task.together and self._blocks else []
        rounds = 0
        while rounds == 0 or (rounds < self._task.repeats and not self._spent(self._patience())):
            rounds += 1
            for batch, copies in itertools.product(ends, self._task.together):
                # The first launch sees everything once, later ones what their time allows.
                if (rounds == 1 and not self._task.every) or not self._spent(self._patience()):
                    self._together(batch, copies)
            for batch in sorted(self._blocks):
                if len(self._quiet(batch)) < rounds + 1 and not self._spent(self._patience()):
                    self._alone(batch)
        self._live.agree(0)

    @property
    def measured(self) -> list[int]:
        """Batch sizes that ran."""
        return sorted(self._blocks)

    def _patience(self) -> float:
        """The part of its time that the profile may take: more while other programs leave nothing undisturbed."""
        undisturbed = all(map(self._quiet, self._blocks)) and all(self._quiet_rounds.values())
        return 1.0 if undisturbed else _PATIENCE

    def _spent(self, part: float) -> bool:
        return self._ends - self._now() < (1 - part) * self._task.seconds

    def _quiet(self, batch: int) -> list[Block]:
        return [block for block in self._blocks[batch] if block.foreign_cores <= QUIET]

    def _alone(self, batch: int) -> None:
        used = {size: float(blocks[-1].memory_bytes) for size, blocks in self._blocks.items()}
        if expected_bytes(used, batch) > _MEMORY_SHARE * self._limit:
            self._too_large = batch
            self._profiler.write(Block(batch=batch, copies=1, failed="more memory than there is"))
            return
        block = self._profiler.block(batch, 1)
        if block.failed:
            self._too_large = batch
        else:
            self._blocks.setdefault(batch, []).append(block)

    def _together(self, batch: int, copies: int) -> None:
        steps = steps_of_block(self._blocks[batch][-1].step_s)
        for value in (copies, batch, steps):
            self._live.agree(value)
        block = self._profiler.block(batch, copies, steps)
        wait_for_all(self._live)
        self._alone(batch)  # right after it, so that drift does not count as contention
        quiet = max(block.foreign_cores, self._blocks[batch][-1].foreign_cores) <= QUIET
        self._quiet_rounds[copies, batch] = self._quiet_rounds.get((copies, batch), 0) + quiet


def wait_for_all(live: Any) -> None:
    """Wait for all ranks: one that steps alone must not begin while others finish their steps."""
    import torch

    live.wait(live.begin_allreduce(torch.zeros(1), "scalescope.wait"))


def follow(profiler: Profiler, live: Any, rank: int) -> None:
    """Step in the other ranks when they are needed; sleep otherwise."""
    while copies := live.agree(0):
        batch, steps = live.agree(0), live.agree(0)
        if rank < copies:
            profiler.block(batch, copies, steps)
        wait_for_all(live)


def main(arguments: list[str]) -> int:
    """`profile_ranks FILE`: one rank of a profile, into the folder of the file."""
    task = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ProfileTask)
    live = importlib.import_module((USUAL if task.together else PLAIN).live_module)
    rank, _ = live.start("cpu", {})
    try:
        device = device_named(task.device)
        profiler = Profiler(task, device, Path(arguments[0]).parent / file_of(rank))
        if rank == 0:
            model = profiler.describe()
            profiler.write(model)
            director = Director(task, profiler, live, model.memory_limit_bytes)
            director.run()
            costs = EngineCosts(task.workload, profiler.clock, device, profiler.write)
            if task.together:
                # A model that DDP cannot train as it is, or twice in memory: then that cost is not known.
                with contextlib.suppress(RuntimeError, MemoryError, ValueError):
                    costs.wrapped(min(task.batches))
        else:
            follow(profiler, live, rank)
    except ScalescopeError as problem:
        print(USAGE_MARK, problem, file=sys.stderr)
        return problem.exit_code
    live.finish()
    if rank == 0 and task.sharding and director.measured:
        # On a CPU copies and hooks take as long with any batch; a GPU hides more of them under larger ones.
        smallest, largest = director.measured[0], director.measured[-1]
        batches = sorted({smallest, largest}) if device.type == "cuda" else [smallest]
        try:
            costs.sharded(task.sharding, batches, weigh=not task.every)
        except Exception as problem:  # memory of a second model, a torch that differs inside: the rest still counts
            profiler.write(Block(batch=smallest, copies=1, pair="sharded", failed=one_line(problem)))
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
