"""The program that makes a profile: rank 0 steps alone, and at times all ranks of the host step next to each other."""

import contextlib
import dataclasses
import importlib
import itertools
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from scalescope.engines import PLAIN, USUAL
from scalescope.errors import ScalescopeError, UsageError
from scalescope.estimation.profile_plan import expected_bytes, next_batch, steps_of_block
from scalescope.jobs.load import LoadMeter
from scalescope.jobs.rank_program import USAGE_MARK
from scalescope.jobs.step_clock import StepClock, forget_peak, memory_limit, peak_bytes
from scalescope.jobs.train_model import device_named, end
from scalescope.records.profile import WorkloadSpec
from scalescope.records.run import QUIET
from scalescope.records.store import LineWriter
from scalescope.workloads.references import one_line

Clock = Callable[[], float]  # Seconds

_PATIENCE = 1.6  # Times its own length that a disturbed profile may take
_PAIRS = 2  # Of blocks with DDP and without it in one launch
_LARGEST_STEP = 15  # A batch whose single step takes more than this part of the time is not tried
# Of the device's memory, beyond which a batch is not tried on a CPU: the system would end the process.
_MEMORY_SHARE = 0.85


class ProfileTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to profile and how long it may take."""

    workload: WorkloadSpec
    batches: tuple[int, ...]
    device: str
    seconds: float
    repeats: int  # Blocks of every batch size that are wanted
    together: tuple[int, ...]  # Numbers of ranks that step next to each other, to see CPU contention
    launches: int = 1  # Of this program, each of which has `seconds`
    sharding: str = ""  # The live module of an engine that shards, whose own cost is to be seen too
    every: bool = False  # All batch sizes, because an earlier launch chose them; otherwise those that matter


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is made of; the first line of rank 0."""

    names: list[str]
    bytes: list[int]
    element_bytes: list[int]
    buffers_bytes: list[int]
    buffers: int = 0
    norm_channels: list[int] = []
    torch: str
    device: str
    hostname: str
    memory_limit_bytes: int


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps in a row of one rank, as written down when they are done."""

    batch: int
    copies: int
    forward_s: list[float] = []
    backward_s: list[float] = []
    optimizer_s: list[float] = []
    cpu_s: list[float] = []
    ready_s: dict[str, float] = {}  # By position among the parameters; the median over the steps
    memory_bytes: int = 0
    foreign_cores: float = 0.0
    failed: str = ""  # Why this batch cannot be run; empty when it can
    launch: int = 0
    # One of two blocks in a row that tell what DDP (wrapped) or an engine that shards (sharded) costs.
    pair: Literal["", "bare", "wrapped", "sharded"] = ""

    @property
    def step_s(self) -> float:
        """The median step."""
        return median(map(sum, zip(self.forward_s, self.backward_s, self.optimizer_s, strict=True)))


def file_of(rank: int) -> str:
    """Where a rank writes its blocks."""
    return f"profile-rank{rank}.jsonl"


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
        self._task, self._device, self._clock = task, device, StepClock(workload, device)
        self.write = LineWriter(path).write
        self._batch = 0

    def describe(self) -> Model:
        """Parameters, buffers and where this is."""
        import torch

        named = list(self._clock.model.named_parameters())
        kinds: dict[str, int] = {}
        for buffer in self._clock.model.buffers():
            kinds[str(buffer.dtype)] = kinds.get(str(buffer.dtype), 0) + buffer.numel() * buffer.element_size()
        cuda = self._device.type == "cuda"
        return Model(
            names=[name for name, _ in named],
            bytes=[parameter.numel() * parameter.element_size() for _, parameter in named],
            element_bytes=[parameter.element_size() for _, parameter in named],
            buffers_bytes=list(kinds.values()),
            buffers=sum(1 for _ in self._clock.model.buffers()),
            norm_channels=_synchronized_norms(self._clock.model),
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
            if not _is_out_of_memory(problem):
                raise
            self._batch = 0
            block = Block(batch=batch, copies=copies, failed=one_line(problem))
        self.write(block)
        return block

    def pairs(self, batch: int, count: int) -> None:
        """Blocks of the model in DDP, or sharded, over a group of one, and bare, in pairs whose order alternates.

        They have models of their own: hooks that an engine leaves on parameters would slow the bare one down.
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh

        from scalescope.workloads import load

        group = dist.new_group([0], use_local_synchronization=True)
        apart = load(self._task.workload)
        wrapped = torch.nn.parallel.DistributedDataParallel(apart.model, process_group=group)
        self._pairs(batch, count, "wrapped", dataclasses.replace(apart, model=wrapped))
        if self._task.sharding:
            apart = load(self._task.workload)
            live, mesh = importlib.import_module(self._task.sharding), DeviceMesh.from_group(group, "cpu")
            sharded, _ = live.wrap(apart.model, apart.optimizer, {}, mesh=mesh)
            self._pairs(batch, count, "sharded", dataclasses.replace(apart, model=sharded))

    def _pairs(self, batch: int, count: int, kind: Literal["wrapped", "sharded"], other: Any) -> None:
        clocks = {"bare": self._clock, kind: StepClock(other, self._device)}
        for clock in clocks.values():
            clock.use(batch)
            for _ in range(3):  # DDP rebuilds its buckets after the first
                step_s = sum(clock.step()[:3])
        for number in range(count):
            for name in sorted(clocks, reverse=bool(number % 2)):
                times = [clocks[name].step() for _ in range(max(steps_of_block(step_s) // 2, 2))]
                block = Block(
                    batch=batch,
                    copies=1,
                    forward_s=[each.forward_s for each in times],
                    backward_s=[each.backward_s for each in times],
                    optimizer_s=[each.optimizer_s for each in times],
                    pair=name,  # type: ignore[arg-type]
                )
                self.write(block)

    def _steps(self, batch: int, copies: int, steps: int) -> Block:
        if batch != self._batch:
            self._clock.use(batch)
            self._clock.step()  # takes memory that no later step takes
            forget_peak(self._device)
            self._batch, self._step_s = batch, sum(self._clock.step()[:3])
        meter = LoadMeter()
        began = time.perf_counter()
        times = [self._clock.step() for _ in range(steps or steps_of_block(self._step_s))]
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
            # The other copies are no foreigners: each uses as much as this one.
            foreign_cores=max(meter.read().foreign_cores - (copies - 1) * own_cores, 0.0),
        )


def _synchronized_norms(model: Any) -> list[int]:
    """Channels of every SyncBatchNorm, in the order of the model."""
    import torch

    return [each.num_features for each in model.modules() if isinstance(each, torch.nn.SyncBatchNorm)]


def _is_out_of_memory(problem: BaseException) -> bool:
    return isinstance(problem, MemoryError) or any(
        word in str(problem).lower() for word in ("out of memory", "can't allocate memory", "defaultcpuallocator")
    )


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
        """The batch sizes that matter, then several ranks together, then everything again while there is time."""
        affordable_s = self._task.launches * self._task.seconds / _LARGEST_STEP
        if self._task.every:
            for chosen in self._task.batches:
                self._alone(chosen)
        else:
            while (batch := next_batch(self._steps_s(), self._wanted(), affordable_s)) is not None:
                self._alone(batch)
                if self._spent(0.6) and len(self._blocks) > 1:
                    break
        rounds = 0
        while rounds == 0 or (rounds < self._task.repeats and not self._spent(self._patience())):
            rounds += 1
            for batch, copies in itertools.product(self._contended_batches(), self._task.together):
                # The first launch sees everything once, later ones what their time allows.
                if (rounds == 1 and not self._task.every) or not self._spent(self._patience()):
                    self._together(batch, copies)
            for batch in sorted(self._blocks):
                if len(self._quiet(batch)) < rounds + 1 and not self._spent(self._patience()):
                    self._alone(batch)
        self._live.agree(0)

    def _patience(self) -> float:
        """The part of its time that the profile may take: more while other programs leave nothing undisturbed."""
        undisturbed = all(map(self._quiet, self._blocks)) and all(self._quiet_rounds.values())
        return 1.0 if undisturbed else _PATIENCE

    def _spent(self, part: float) -> bool:
        return self._ends - self._now() < (1 - part) * self._task.seconds

    def _wanted(self) -> list[int]:
        return [batch for batch in self._task.batches if batch < self._too_large]

    def _steps_s(self) -> dict[int, float]:
        return {batch: median(block.step_s for block in blocks) for batch, blocks in self._blocks.items()}

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

    def _contended_batches(self) -> list[int]:
        """The ends of what was measured: contention depends on whether a step fits into the caches."""
        sizes = sorted(self._blocks)
        return list(dict.fromkeys([sizes[0], sizes[-1]])) if self._task.together and sizes else []

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
    """The other ranks: step when they are needed, otherwise sleep."""
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
            Director(task, profiler, live, model.memory_limit_bytes).run()
            if task.together:
                # A model that DDP cannot train as it is, or twice in memory: then that cost is not known.
                with contextlib.suppress(RuntimeError, MemoryError, ValueError):
                    profiler.pairs(min(task.batches), _PAIRS)
        else:
            follow(profiler, live, rank)
    except ScalescopeError as problem:
        print(USAGE_MARK, problem, file=sys.stderr)
        return problem.exit_code
    live.finish()
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
