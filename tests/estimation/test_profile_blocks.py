"""From the blocks that ranks wrote to the record of a profile."""

from pathlib import Path

import msgspec
import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.estimation.profile import assemble, read_blocks
from scalescope.estimation.profile_blocks import Block, Model, ProfileTask, Sharding, file_of
from scalescope.estimation.profile_plan import steps_of_block
from scalescope.estimation.profile_ranks import Director
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.stats import standard_error

MLP = WorkloadSpec(model="mlp")
MODEL = Model(
    names=["first", "second", "third", "head"],
    bytes=[400, 300, 200, 100],
    element_bytes=[4, 4, 2, 4],
    buffers_bytes=[64, 8],
    torch="2.13.0",
    device="cpu",
    hostname="here",
    memory_limit_bytes=10**9,
)
READY = {"0": 0.45, "1": 0.3, "2": 0.2}
"""Shares of a step; the last parameter gets no gradient."""


def block(batch: int = 8, step_s: float | list[float] = 1.0, copies: int = 1, **more: object) -> Block:
    """Steps that are 0.4 forward, 0.5 backward, 0.1 optimizer."""
    steps = step_s if isinstance(step_s, list) else [step_s] * 3
    given = {
        "ready_s": {position: share * steps[0] for position, share in READY.items()},
        "memory_bytes": 1000 + batch,
        "cpu_s": [0.9 * step for step in steps],
        **more,
    }
    return Block(
        batch=batch,
        copies=copies,
        forward_s=[0.4 * step for step in steps],
        backward_s=[0.5 * step for step in steps],
        optimizer_s=[0.1 * step for step in steps],
        **given,
    )


def failed(batch: int, copies: int = 1, why: str = "out of memory") -> Block:
    return Block(batch=batch, copies=copies, failed=why)


def assembled(*ranks: list[Block], model: Model = MODEL) -> ModelProfile:
    return assemble(MLP, model, ranks, threads_per_rank=2, seconds=12.5)


def test_the_record_holds_model_device_and_host() -> None:
    found = assembled([block()])
    assert (found.workload, found.torch, found.device, found.hostname) == (MLP, "2.13.0", "cpu", "here")
    assert (found.threads_per_rank, found.seconds, found.memory_limit_bytes) == (2, 12.5, 10**9)
    assert found.buffers_bytes == (64, 8)
    assert found.too_large is None


def test_gradients_stand_in_the_order_in_which_they_get_ready() -> None:
    found = assembled([block()])
    assert [(each.name, each.bytes, each.element_bytes) for each in found.gradients] == [
        ("third", 200, 2),
        ("second", 300, 4),
        ("first", 400, 4),
    ]
    assert found.points[0].ready_s == pytest.approx((0.2, 0.3, 0.45))


def test_the_order_is_that_of_most_blocks() -> None:
    once = block(ready_s={"0": 0.1, "1": 0.3, "2": 0.45})
    assert [each.name for each in assembled([once, block(), block()]).gradients] == ["third", "second", "first"]


def test_a_gradient_that_one_batch_does_not_have_comes_at_its_end() -> None:
    found = assembled([block(8, ready_s={"0": 0.45, "1": 0.3}), block(16, 2.0)])
    assert [each.name for each in found.gradients] == ["third", "second", "first"]
    assert found.points[0].ready_s == pytest.approx((1.0, 0.3, 0.45))


def test_points_are_medians_by_ascending_batch() -> None:
    blocks = [block(16, 3.0), block(8, 1.1), block(8, 1.0), block(16, 2.0), block(8, 5.0), block(16, 2.2)]
    found = assembled(blocks).points
    assert [(point.batch, point.step_s) for point in found] == [(8, pytest.approx(1.1)), (16, pytest.approx(2.2))]
    assert (found[0].forward_s, found[0].backward_s, found[0].optimizer_s) == pytest.approx((0.44, 0.55, 0.11))
    assert [point.steps for point in found] == [9, 9]
    assert [point.memory_bytes for point in found] == [1008, 1016]
    assert found[0].cores_used == pytest.approx(0.9)


def test_the_parts_of_a_point_add_up_to_its_step() -> None:
    odd = Block(
        batch=8,
        copies=1,
        forward_s=[1.0, 2.0, 3.0],
        backward_s=[9.0, 2.0, 1.0],
        optimizer_s=[1.0, 1.0, 5.0],
        cpu_s=[1.0, 1.0, 1.0],
        ready_s={"0": 1.5},
    )
    (point,) = assembled([odd]).points  # steps of 11, 5 and 9 s; the parts' medians are 2, 2 and 1 s
    assert point.step_s == 9
    assert (point.forward_s, point.backward_s, point.optimizer_s) == pytest.approx((3.6, 3.6, 1.8))
    assert point.ready_s == pytest.approx((1.5 * 9 / 5,))


def test_noise_is_of_steps_and_the_error_of_blocks() -> None:
    found = assembled([block(8, [0.9, 1.0, 1.1]), block(8, [0.95, 1.05, 1.15]), block(8, [1.0, 1.1, 1.2])]).points[0]
    assert found.step_s == pytest.approx(1.05)
    assert found.noise == pytest.approx(1.4826 * 0.05 / 1.05)
    assert found.error == pytest.approx(standard_error([1.0, 1.05, 1.1]))
    assert assembled([block()]).points[0].error == 0.03  # one block says nothing about others


def test_the_first_of_many_blocks_found_memory_cold_and_does_not_count() -> None:
    found = assembled([block(8, 2.0), block(8, 1.0), block(8, 1.01), block(8, 0.99)]).points[0]
    assert found.step_s == pytest.approx(1.0)
    assert found.error < 0.02
    assert found.remade == 0
    few = assembled([block(8, 2.0), block(8, 1.0), block(8, 1.01)]).points[0]
    assert few.step_s == pytest.approx(1.01)


def test_a_step_is_the_mean_over_launches_and_its_error_is_no_less_than_launches_differ_by() -> None:
    slow = [block(8, 1.2, launch=1), *[block(8, 1.1, launch=1)] * 3]
    found = assembled([block(8, 1.1), *[block(8, 1.0)] * 3, *slow])
    assert found.points[0].step_s == pytest.approx(1.05), "the first block of each launch does not count"
    assert found.launch_spread > 0.025
    assert found.points[0].error >= found.launch_spread / 2**0.5
    even = assembled([*[block(8, 1.0)] * 3, *[block(8, 1.0, launch=1)] * 3])
    assert 0.02 < even.launch_spread < 0.025
    assert even.points[0].error > 0.01
    gpu = msgspec.structs.replace(MODEL, device="H200")
    assert assembled([block()], model=gpu).launch_spread == 0


def test_engine_cost_is_the_difference_of_paired_blocks() -> None:
    pairs = [
        block(8, step_s, pair=kind)
        for step_s, kind in [(2.0, "bare"), (2.3, "wrapped"), (2.2, "wrapped"), (2.0, "bare")]
    ]
    found = assembled([block(8, 1.0), *pairs])
    assert found.ddp_s == pytest.approx(0.25)
    assert found.points[0].step_s == 1.0
    assert assembled([block()]).ddp_s is None


def test_what_sharding_adds_is_told_by_ranks_without_what_was_made_up() -> None:
    def pair(ranks: int, *sides: tuple[str, float, int], launch: int = 0) -> list[Block]:
        given = {"ranks": ranks, "launch": launch}
        return [
            block(8, step_s, pair=kind, memory_bytes=bytes_, fill_s=0.5 * (kind == "sharded"), **given)
            for kind, step_s, bytes_ in sides
        ]

    blocks = [
        block(8, 2.0),
        *pair(2, ("bare", 2.0, 900), ("sharded", 3.0, 700), ("sharded", 3.1, 700), ("bare", 2.0, 900)),
        *pair(8, ("bare", 2.0, 900), ("sharded", 2.4, 300)),
        block(8, 2.0, launch=1),
        *pair(2, ("bare", 3.0, 0), ("sharded", 4.2, 0), launch=1),
    ]
    found = assemble(MLP, MODEL, [blocks], 2, 12.5, Sharding(live_module="", reshards=False, ranks=(2, 8)))
    assert [(point.ranks, point.batch, point.reshards, point.added_bytes) for point in found.sharded] == [
        (2, 8, False, -200),
        (8, 8, False, -600),
    ]
    assert [point.added_s for point in found.sharded] == pytest.approx([0.6, -0.1])
    assert found.points[0].step_s == 2.0
    assert assembled(blocks).sharded == ()


def test_contention_that_launches_disagree_on_is_less_certain() -> None:
    def of(launch: int, slowdown: float) -> list[Block]:
        return [block(8, 1.0, launch=launch)] + 3 * [
            block(8, slowdown, copies=2, launch=launch),
            block(8, 1.0, launch=launch),
        ]

    agreed, apart = ([*of(0, 1.2), *of(1, again)] for again in (1.2, 1.5))
    (same,) = assembled(agreed, [each for each in agreed if each.copies == 2]).crowds
    (other,) = assembled(apart, [each for each in apart if each.copies == 2]).crowds
    assert (same.slowdown, other.slowdown) == pytest.approx((1.2, 1.35))
    assert other.error > 0.3 > same.error


def test_disturbed_blocks_count_only_when_there_are_no_better_ones() -> None:
    blocks = [block(8, 3.0, foreign_cores=0.9), block(8, 1.0), block(8, 1.2, foreign_cores=0.1), block(8, 1.1)]
    (point,) = assembled(blocks).points
    assert (point.step_s, point.remade, point.steps) == (pytest.approx(1.1), 1, 9)
    assert point.foreign_cores == pytest.approx(0)
    (disturbed,) = assembled([block(8, 3.0, foreign_cores=0.9), block(8, 2.0, foreign_cores=0.5)]).points
    assert (disturbed.step_s, disturbed.remade) == (pytest.approx(2.5), 0)
    assert disturbed.foreign_cores == pytest.approx(0.7)


def line(**changes: float) -> list[Block]:
    """A second and a tenth per sample, apart from the batches that are named."""
    sizes = {8: 1.8, 16: 2.6, 32: 4.2, 64: 7.4, 128: 13.8}
    return [block(size, step * changes.get(f"b{size}", 1.0)) for size, step in sizes.items()]


def test_a_straight_line_has_no_outlying_point_and_no_interpolation_error() -> None:
    found = assembled(line())
    assert not any(point.outlying for point in found.points)
    assert found.interpolation_error == pytest.approx(0, abs=1e-9)


def test_an_outlying_point_is_marked_and_its_neighbours_tell_the_interpolation_error() -> None:
    found = assembled(line(b32=1.6))
    assert [point.batch for point in found.points if point.outlying] == [32]
    below = 2.6 / (1.8 + (4.2 * 1.6 - 1.8) * 8 / 24) - 1
    above = 7.4 / (4.2 * 1.6 + (13.8 - 4.2 * 1.6) * 32 / 96) - 1
    assert found.interpolation_error == pytest.approx(max(-below, -above))


@pytest.mark.parametrize("sizes", [(8, 16, 32, 64, 128, 256), (8, 64, 512, 4096)], ids=["doublings", "leaps"])
def test_a_bend_is_not_an_outlier_and_counts_as_an_error_of_interpolation(sizes: tuple[int, ...]) -> None:
    found = assembled([block(size, max(6.4, 0.1 * size)) for size in sizes])  # nothing is gained below 64
    assert not any(point.outlying for point in found.points)
    before, after = sizes[sizes.index(64) - 1], sizes[sizes.index(64) + 1]
    expected = 6.4 + (0.1 * after - 6.4) * (64 - before) / (after - before)
    assert found.interpolation_error == pytest.approx(1 - 6.4 / expected)


@pytest.mark.parametrize("factor", [0.8, 0.9, 1.1, 1.3, 2.0])
def test_an_outlier_is_found_in_steps_that_grow_with_the_batch(factor: float) -> None:
    noise = {8: 1.005, 16: 0.995, 32: factor, 64: 1.005, 128: 0.995, 256: 1.0}
    found = assembled([block(size, 0.1 * size * share) for size, share in noise.items()])
    assert [point.batch for point in found.points if point.outlying] == [32]


def test_noise_a_jump_and_three_points_make_no_outlier() -> None:
    noisy = line(b8=1.01, b16=0.99, b32=1.02, b64=0.99, b128=1.01)
    jump = line(b64=1.3, b128=1.3)
    three = [block(8, 1.0), block(16, 5.0), block(32, 4.0)]
    for blocks in (noisy, jump, three):
        assert not any(point.outlying for point in assembled(blocks).points)


def test_the_smallest_batch_that_failed_is_too_large() -> None:
    found = assembled([block(8), block(16, 2.0), failed(64), failed(32)])
    assert found.too_large == 32
    assert [point.batch for point in found.points] == [8, 16]


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([failed(8, why="DefaultCPUAllocator: can't allocate memory")], r"batch 8.*can't allocate memory"),
        ([], "cannot run any step"),
    ],
    ids=["out of memory", "nothing"],
)
def test_without_a_single_step_there_is_a_line_that_says_what_to_do(blocks: list[Block], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        assembled(blocks)
    line = str(caught.value)
    assert line.startswith("mlp cannot")
    assert line.endswith(": try a smaller --batch, or a machine with more memory")


def test_contention_is_its_typical_rank_over_the_steps_alone_right_after() -> None:
    mine = [block(8, 1.0), block(8, 1.5, copies=3), block(8, 1.25)]
    others = [[block(8, 1.8, copies=3)], [block(8, 2.5, copies=3)]]
    (contention,) = assembled(mine, *others).crowds
    assert (contention.copies, contention.batch) == (3, 8)
    # Between the block right after it (1.25) and the typical one of all (1.125): both are measured.
    assert contention.slowdown == pytest.approx(1.8 / (1.25 * 1.125) ** 0.5)
    assert contention.error == 0.03
    # A rank that is always slower is in the residuals, which are over the typical step of all.
    assert contention.residuals is not None
    assert (contention.residuals.levels[0], contention.residuals.levels[-1]) == pytest.approx((2.5 / 1.8, 1.5 / 1.8))


def test_contention_is_measured_by_copies_with_the_error_of_its_repetitions() -> None:
    mine = [
        block(8, 1.0),
        *(block(8, 1.2, copies=2), block(8, 1.0)),
        *(block(8, [1.5, 1.6, 1.7], copies=3), block(8, 1.0)),
        *(block(8, 1.3, copies=2), block(8, 1.0)),
        *(block(8, 1.4, copies=2), block(8, 1.0)),
    ]
    second = [block(8, 1.2, copies=2), block(8, 1.6, copies=3), block(8, 1.3, copies=2), block(8, 1.4, copies=2)]
    found = assembled(mine, second, [block(8, 1.6, copies=3)]).crowds
    assert [(contention.copies, contention.slowdown) for contention in found] == [
        (2, pytest.approx(1.3)),
        (3, pytest.approx(1.6)),
    ]
    assert found[0].error == pytest.approx(standard_error([1.2, 1.3, 1.4]))
    assert found[1].residuals is not None
    assert sum(found[1].residuals.counts) == 9


def test_contention_that_two_batches_disagree_on_by_chance_moves_to_their_mean() -> None:
    def rounds(batch: int, *among_others: float) -> list[Block]:
        return [each for step_s in among_others for each in (block(batch, step_s, copies=2), block(batch, 1.0))]

    mine = [block(8, 1.0), *rounds(8, 0.9, 1.1, 1.3), block(16, 1.0), *rounds(16, 1.1, 1.3, 1.5)]
    other = [each for each in mine if each.copies == 2]
    small, large = assembled(mine, other).crowds
    assert 1.1 < small.slowdown < 1.19 < 1.2 < large.slowdown < 1.22
    alone = assembled(mine[:7], other[:3]).crowds[0]
    assert alone.slowdown == pytest.approx(1.1)
    assert small.error < alone.error
    sure = [block(8, 1.0), *rounds(8, 1.1, 1.1, 1.101), block(16, 1.0), *rounds(16, 1.3, 1.3, 1.301)]
    found = assembled(sure, [each for each in sure if each.copies == 2]).crowds
    assert [each.slowdown for each in found] == pytest.approx([1.1, 1.3], rel=1e-3), "what is certain stays"


def test_contention_of_another_batch_and_failed_ones_are_left_out() -> None:
    mine = [
        block(8, 1.0),
        *(block(8, 9.0, copies=2), block(16, 2.0)),
        *(block(8, 9.0, copies=2), block(8, 1.0)),
        *(failed(8, copies=2), block(8, 1.0)),
        *(block(8, 1.4, copies=2), block(8, 1.0)),
        block(8, 9.0, copies=2),
    ]
    other = [
        block(8, 9.0, copies=2),
        failed(8, copies=2),
        block(8, 9.0, copies=2),
        block(8, 1.4, copies=2),
        block(8, 9.0, copies=2),
    ]
    (contention,) = assembled(mine, other).crowds
    assert contention.slowdown == pytest.approx(1.4)


def test_steps_among_others_are_no_points() -> None:
    found = assembled([block(8, 1.0), block(8, 5.0, copies=2), block(8, 1.0)], [block(8, 5.0, copies=2)])
    assert [(point.batch, point.step_s, point.steps) for point in found.points] == [(8, pytest.approx(1.0), 6)]


class MadeProfiler:
    """Makes blocks at once; batches from `limit` on do not fit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.written: list[Block] = []

    def block(self, batch: int, copies: int, steps: int = 0) -> Block:
        made = failed(batch, copies) if batch >= self._limit else block(batch, 0.1 * batch, copies)
        self.written.append(made)
        return made

    def write(self, what: Block) -> None:
        self.written.append(what)


class Others:
    """Hears what rank 0 tells the other ranks."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def agree(self, value: int) -> int:
        self.told.append(value)
        return value

    def begin_allreduce(self, tensor: object, name: str) -> None:
        self.told.append(ALLREDUCE)

    def wait(self, handle: None) -> None:
        pass


ALLREDUCE = -1


def directed(limit: int, batches: tuple[int, ...] = (8, 16, 64), repeats: int = 1) -> tuple[list[Block], list[int]]:
    task = ProfileTask(workload=MLP, batches=batches, device="cpu", seconds=1e6, repeats=repeats, together=(2,))
    profiler, others = MadeProfiler(limit), Others()
    Director(task, profiler, others, limit_bytes=10**9).run()
    return profiler.written, others.told


def test_a_model_that_does_not_even_fit_with_the_smallest_batch_ends_the_profile() -> None:
    written, told = directed(limit=8)
    assert written == [failed(8)]
    assert told == [0]


def test_a_batch_that_does_not_fit_is_tried_once_and_the_others_are_profiled() -> None:
    written, _ = directed(limit=64)
    assert [each.batch for each in written if each.failed] == [64]
    assert assembled(written, [block(batch, copies=2) for batch in (8, 16)]).too_large == 64


def test_ranks_step_together_at_both_ends_next_to_steps_alone() -> None:
    written, told = directed(limit=10**9)
    together = [at for at, each in enumerate(written) if each.copies == 2]
    assert [written[at].batch for at in together] == [8, 64]
    assert [(written[at + 1].batch, written[at + 1].copies) for at in together] == [(8, 1), (64, 1)]
    # Who stepped with rank 0 has finished before rank 0 steps alone.
    assert told == [2, 8, steps_of_block(0.8), ALLREDUCE, 2, 64, steps_of_block(6.4), ALLREDUCE, 0]


def test_a_disturbed_profile_takes_more_time_and_an_undisturbed_one_does_not() -> None:
    class Disturbed(MadeProfiler):
        def block(self, batch: int, copies: int, steps: int = 0) -> Block:
            self.written.append(msgspec.structs.replace(block(batch, 0.1 * batch, copies), foreign_cores=0.9))
            return self.written[-1]

    def blocks(profiler: MadeProfiler) -> int:
        """Every block takes a second of a profile of 50."""
        task = ProfileTask(workload=MLP, batches=(8,), device="cpu", seconds=50, repeats=10**6, together=(2,))
        Director(task, profiler, Others(), limit_bytes=10**9, now=lambda: len(profiler.written)).run()
        return len(profiler.written)

    assert 50 <= blocks(MadeProfiler(10**9)) < 54
    assert 80 <= blocks(Disturbed(10**9)) < 84


def test_more_rounds_repeat_every_batch() -> None:
    written, _ = directed(limit=10**9, repeats=3)
    alone = [each.batch for each in written if each.copies == 1]
    assert set(alone) == {8, 16, 64}
    assert min(alone.count(batch) for batch in (8, 16, 64)) >= 4


@pytest.mark.parametrize(("step_s", "steps"), [(0.0, 200), (0.001, 200), (0.07, 10), (0.14, 5), (30.0, 3)])
def test_a_block_has_as_many_steps_as_fit(step_s: float, steps: int) -> None:
    assert steps_of_block(step_s) == steps


def write(path: Path, *lines: msgspec.Struct, torn: str = "") -> None:
    path.write_text("".join(msgspec.json.encode(line).decode() + "\n" for line in lines) + torn)


def test_a_torn_line_of_a_rank_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / file_of(0), MODEL, block(8), block(16, 2.0), torn='{"batch":3')
    write(tmp_path / file_of(1), block(8, copies=2))
    model, blocks = read_blocks(tmp_path, 2)
    assert model == MODEL
    assert [[(each.batch, each.copies) for each in of_rank] for of_rank in blocks] == [[(8, 1), (16, 1)], [(8, 2)]]


def test_a_profile_that_wrote_nothing_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match=f"ended before it began \\(see {tmp_path}\\)"):
        read_blocks(tmp_path, 2)


def test_rounds_of_several_ranks_that_others_disturbed_are_left_out() -> None:
    disturbed = block(8, 3.0, copies=2, foreign_cores=1.0)
    mine = [block(8, 1.0), disturbed, block(8, 1.0), block(8, 1.2, copies=2), block(8, 1.0)]
    (contention,) = assembled(mine, [block(8, 3.0, copies=2), block(8, 1.2, copies=2)]).crowds
    assert contention.slowdown == pytest.approx(1.2)
