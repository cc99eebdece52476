"""What a rank of a profile writes, and how rank 0 divides its time; steps and clocks are played where times count."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from scalescope.engines import find_engine
from scalescope.errors import UsageError
from scalescope.estimation import profile_ranks
from scalescope.estimation.profile import read_blocks, take_profile
from scalescope.estimation.profile_blocks import Block, ProfileTask, Sharding, file_of
from scalescope.estimation.profile_ranks import Director, Profiler, follow, main
from scalescope.jobs.rank_program import USAGE_MARK
from scalescope.jobs.step_clock import StepTimes
from scalescope.records.profile import WorkloadSpec

CPU = torch.device("cpu")
MLP = WorkloadSpec(model="mlp", model_args={"features": 8, "width": 8, "depth": 1, "classes": 4})
TASK = ProfileTask(workload=MLP, batches=(4, 2), device="cpu", seconds=100.0, repeats=1, together=())


class Clock:
    """Steps of a second per sample, of which the first with each batch are slower; every step moves the time."""

    def __init__(self, model: Any = None) -> None:
        self.model = model
        self.now = 10.0
        self.used: list[int] = []
        self.steps = 0
        self.error: Exception | None = None
        self.without = 0  # Steps, from the third on, in which a parameter gets no gradient

    def use(self, batch: int) -> None:
        self.used.append(batch)
        self.steps = 0

    def step(self) -> StepTimes:
        if self.error:
            raise self.error
        self.steps += 1
        step_s = self.used[-1] * (9.0 if self.steps == 1 else 1.0)
        self.now += step_s
        ready = {0: 0.1 * self.steps, 1: 0.5}
        if 2 < self.steps <= 2 + self.without:
            del ready[1]
        return StepTimes(0.4 * step_s, 0.5 * step_s, 0.1 * step_s, ready, 0.75 * step_s)


class Made:
    def __init__(self, profiler: Profiler, clock: Clock, path: Path) -> None:
        self.profiler, self.clock, self._path = profiler, clock, path
        self.forgotten = 0

    def written(self) -> list[Block]:
        return [msgspec.json.decode(line, type=Block) for line in self._path.read_bytes().splitlines()]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    clock = Clock()
    monkeypatch.setattr(profile_ranks, "StepClock", lambda workload, device: clock)
    monkeypatch.setattr(
        profile_ranks, "time", SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: clock.now)
    )
    monkeypatch.setattr(profile_ranks, "peak_bytes", lambda device: 4096)
    monkeypatch.setattr(
        profile_ranks, "LoadMeter", lambda: SimpleNamespace(read=lambda: SimpleNamespace(foreign_cores=1.0))
    )
    found = Made(Profiler(TASK, CPU, tmp_path / file_of(0)), clock, tmp_path / file_of(0))

    def forget(device: Any) -> None:
        found.forgotten += 1
        assert clock.steps == 1, "after the first step, which takes memory that no later one takes"

    monkeypatch.setattr(profile_ranks, "forget_peak", forget)
    return found


def test_a_block_holds_every_part_of_its_steps(made: Made) -> None:
    block = made.profiler.block(2, 1, steps=3)
    assert (block.batch, block.copies, block.failed) == (2, 1, "")
    assert block.forward_s == pytest.approx([0.8] * 3)
    assert block.backward_s == pytest.approx([1.0] * 3)
    assert block.optimizer_s == pytest.approx([0.2] * 3)
    assert block.cpu_s == pytest.approx([1.5] * 3)
    assert block.ready_s == pytest.approx({"0": 0.4, "1": 0.5})  # the steps 3, 4 and 5
    assert (block.memory_bytes, block.foreign_cores) == (4096, 1.0)
    assert made.written() == [block]
    assert block.step_s == pytest.approx(2.0)


def test_a_new_batch_warms_up_once(made: Made) -> None:
    made.profiler.block(2, 1, steps=3)
    assert (made.clock.used, made.clock.steps, made.forgotten) == ([2], 5, 1)
    made.profiler.block(2, 1, steps=3)
    assert (made.clock.used, made.clock.steps, made.forgotten) == ([2], 8, 1)
    made.profiler.block(4, 1, steps=1)
    assert (made.clock.used, made.clock.steps, made.forgotten) == ([2, 4], 3, 2)


def test_without_a_number_a_block_has_as_many_steps_as_fit(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def four(step_s: float) -> int:
        asked.append(step_s)
        return 4

    monkeypatch.setattr(profile_ranks, "steps_of_block", four)
    assert len(made.profiler.block(2, 1).cpu_s) == 4
    assert asked == [pytest.approx(2.0)], "the second step's parts"


def test_a_gradient_that_some_steps_lack_counts_in_the_others(made: Made) -> None:
    made.clock.without = 0
    made.profiler.block(2, 1, steps=1)
    made.clock.without = 3
    block = made.profiler.block(2, 1, steps=3)  # the steps 4, 5 and 6, of which two have one gradient
    assert set(block.ready_s) == {"0"}
    made.clock.without = 0
    assert set(made.profiler.block(2, 1, steps=1).ready_s) == {"0", "1"}


def test_other_copies_are_no_foreigners(made: Made) -> None:
    # One core is used beside this process, whose steps use 0.75 of one.
    assert made.profiler.block(2, 2, steps=3).foreign_cores == pytest.approx(0.25)
    assert made.profiler.block(2, 3, steps=3).foreign_cores == 0.0


@pytest.mark.parametrize(
    "problem",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate"),
        RuntimeError("DefaultCPUAllocator: not enough"),
        RuntimeError("[enforce fail] Can't allocate memory"),
    ],
)
def test_a_batch_that_does_not_fit_is_written_as_failed_and_begun_anew(made: Made, problem: Exception) -> None:
    made.profiler.block(2, 1, steps=1)
    made.clock.error = problem
    block = made.profiler.block(4, 2, steps=1)
    assert (block.batch, block.copies, block.forward_s) == (4, 2, [])
    assert block.failed
    assert "\n" not in block.failed
    made.clock.error = None
    assert not made.profiler.block(2, 1, steps=1).failed
    assert made.clock.used == [2, 4, 2], "what was set up may be gone"
    assert [bool(each.failed) for each in made.written()] == [False, True, False]


def test_another_error_is_not_taken_for_a_lack_of_memory(made: Made) -> None:
    made.clock.error = RuntimeError("shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="shapes"):
        made.profiler.block(2, 1)
    assert made.written() == []


def test_a_model_is_described_by_its_parameters_and_buffers(tmp_path: Path) -> None:
    profiler = Profiler(TASK, CPU, tmp_path / "lines")
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 2).to(torch.bfloat16), torch.nn.BatchNorm1d(2), torch.nn.SyncBatchNorm(5)
    )
    profiler.clock.model = model
    found = profiler.describe()
    assert found.names == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    assert found.bytes == [12, 4, 8, 8, 20, 20]
    assert found.element_bytes == [2, 2, 4, 4, 4, 4]
    assert found.buffers_bytes == [2 * 4 * (2 + 5), 2 * 8]  # means and variances, and counts
    assert (found.buffers, found.norm_channels) == (6, [5])
    assert (found.device, found.torch) == ("cpu", torch.__version__)
    assert found.memory_limit_bytes > 0


def test_layers_that_only_gpus_run_are_refused_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_ranks, "_synchronized_norms", lambda model: [8])
    with pytest.raises(UsageError, match="mlp has SyncBatchNorm layers, which torch runs on GPUs only"):
        Profiler(TASK, CPU, tmp_path / "lines")


def test_a_real_process_alone_profiles_its_batch(tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(TASK, batches=(2,), seconds=0.05)))
    assert main([str(path)]) == 0
    model, (blocks,) = read_blocks(tmp_path, 1)
    assert sum(model.bytes) > 0
    assert {block.batch for block in blocks} == {2}
    assert all(block.copies == 1 and not block.failed and block.step_s > 0 for block in blocks)
    assert len(blocks[0].ready_s) == len(model.names)


@pytest.mark.launches
def test_launches_of_a_profile_measure_the_same_batches_and_what_engines_cost(tmp_path: Path) -> None:
    sharding = Sharding(live_module=find_engine("fsdp2").live_module, ranks=(2, 4))
    task = msgspec.structs.replace(TASK, batches=(2, 4), seconds=4.0, launches=2, together=(2,), sharding=sharding)
    made = take_profile(task, threads_per_rank=1, folder=tmp_path / "profile")
    blocks = [read_blocks(tmp_path / name, 2)[1][0] for name in ("profile", "profile-2")]
    assert [{block.batch for block in of_launch if block.copies == 1} for of_launch in blocks] == [{2, 4}, {2, 4}]
    assert [sum(block.pair == "wrapped" for block in of_launch) for of_launch in blocks] == [2, 2]
    assert made.ddp_s is not None
    sharded = [[block for block in of_launch if block.pair == "sharded"] for of_launch in blocks]
    assert [[block.ranks for block in of_launch] for of_launch in sharded] == [[2, 2, 4, 4]] * 2
    assert all(0 < block.fill_s < block.step_s for of_launch in sharded for block in of_launch), (
        "collectives are made up"
    )
    assert [(point.ranks, point.batch) for point in made.sharded] == [(2, 2), (4, 2)]
    # A rank of 4 holds half of what a rank of 2 does: parameters and gradients, which this optimizer adds nothing to.
    held = 2 * sum(gradient.bytes for gradient in made.gradients)
    two, four = (point.added_bytes for point in made.sharded)
    assert two - four == pytest.approx(held / 4, rel=0.25)
    assert [(each.copies, each.batch) for each in made.crowds] == [(2, 2), (2, 4)]


def test_a_rank_without_its_device_fails_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> None:
        raise UsageError(f"no {name} here")

    monkeypatch.setattr(profile_ranks, "device_named", refuse)
    path = tmp_path / "task.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(TASK, device="cuda")))
    assert main([str(path)]) == UsageError.exit_code
    assert capsys.readouterr().err == f"{USAGE_MARK} no cuda here\n"


class Ranks:
    """Blocks and what ranks tell each other, in one list; every block takes a second."""

    def __init__(
        self, *told: int, foreign: tuple[float, ...] = (0.0,), bytes_per_sample: int = 1, bend: int = 0
    ) -> None:
        self._bend = bend  # Batches up to it take the same time
        self._told, self._foreign, self._per_sample = list(told), list(foreign), bytes_per_sample
        self.log: list[Any] = []
        self.now = 0.0

    def agree(self, value: int) -> int:
        self.log.append(value)
        return self._told.pop(0) if self._told else value

    def begin_allreduce(self, tensor: torch.Tensor, name: str) -> str:
        assert tensor.tolist() == [0.0]
        return name

    def wait(self, handle: str) -> None:
        self.log.append(handle)

    def block(self, batch: int, copies: int, steps: int = 0) -> Block:
        self.log.append((batch, copies, steps))
        self.now += 1.0
        foreign = self._foreign.pop(0) if len(self._foreign) > 1 else self._foreign[0]
        return Block(
            batch=batch,
            copies=copies,
            forward_s=[0.005 * max(batch, self._bend)],
            backward_s=[0.0],
            optimizer_s=[0.0],
            memory_bytes=batch * self._per_sample,
            foreign_cores=foreign,
        )

    def write(self, block: Block) -> None:
        self.log.append((block.batch, block.failed))


def test_the_other_ranks_step_when_they_are_needed_and_always_wait() -> None:
    ranks: Any = Ranks(2, 8, 5, 4, 16, 3, 0)
    follow(ranks, ranks, 2)
    assert ranks.log == [0, 0, 0, "scalescope.wait", 0, 0, 0, (16, 4, 3), "scalescope.wait", 0]


def directed(ranks: Any, limit_bytes: int = 10**9, **task: Any) -> list[Any]:
    asked = msgspec.structs.replace(TASK, **{"batches": (4, 8, 16), "seconds": 1000.0, **task})
    Director(asked, ranks, ranks, limit_bytes, now=lambda: ranks.now).run()
    return [each for each in ranks.log if isinstance(each, tuple)]


def test_every_batch_is_measured_and_repeated_once_more_for_each_round() -> None:
    assert directed(Ranks()) == [(batch, 1, 0) for batch in (4, 16, 8, 4, 8, 16)]
    assert directed(Ranks(), repeats=3) == [(batch, 1, 0) for batch in (4, 16, 8, *(4, 8, 16) * 3)]


def test_a_disturbed_block_is_made_again() -> None:
    quiet_at_last = Ranks(foreign=(0.9, 0.0))
    assert directed(quiet_at_last, repeats=2, batches=(4,)) == [(4, 1, 0)] * 3
    assert directed(Ranks(), repeats=2, batches=(4,)) == [(4, 1, 0)] * 3
    assert directed(Ranks(foreign=(0.9, 0.9, 0.0)), batches=(4,)) == [(4, 1, 0)] * 2


def test_more_memory_than_there_is_is_not_tried() -> None:
    log = directed(Ranks(bytes_per_sample=10), limit_bytes=100, batches=(1, 2, 12))
    assert (12, "more memory than there is") in log
    assert all(each[0] < 12 for each in log if len(each) == 3)
    fits = directed(Ranks(bytes_per_sample=10), limit_bytes=142, batches=(1, 2, 12))
    assert (12, 1, 0) in fits, "120 of 142 bytes are 0.845"


def test_the_batch_sizes_stop_at_six_tenths_of_the_time() -> None:
    # Every block takes a second of 5.5: after the fourth, more than three fifths are spent, and after the sixth all.
    log = directed(Ranks(bend=20), batches=tuple(range(1, 60)), seconds=5.5, repeats=9)
    assert len(set(log[:4])) == 4
    assert log[4:] == sorted(log[:4])[:2], "the rest of the time repeats what there is"
    short = directed(Ranks(), batches=(1, 8), seconds=1.0)
    assert short == [(1, 1, 0), (8, 1, 0)], "two batch sizes at least"
    many = directed(Ranks(), batches=tuple(range(1, 60)), seconds=2.1)
    assert len(set(many)) == 2, "and no third where two took the time"
