"""Steps of engines that shard on described clusters, to the second: a MiB between two ranks takes a second."""

import msgspec
import numpy as np
import pytest

from scalescope.engines import find_engine
from scalescope.engines.base import in_blocks
from scalescope.engines.fsdp2_live import blocks_of
from scalescope.records.job import Knobs
from scalescope.records.profile import Gradient, ShardedPoint, WorkloadSpec
from scalescope.simulator.gpu import copy_s_per_byte
from scalescope.simulator.step import predicted_step
from scalescope.workloads import load
from scalescope.workloads.loading import spec_from_options
from simulator.made import GIB, MIB, described, point, profile, stepped

NAMES = ("head.weight", "blocks.1.weight", "blocks.0.weight", "embedding.weight")
FOUR = profile(gradients=tuple(Gradient(name=name, bytes=MIB) for name in NAMES))
# In GPU mode nothing is copied for free; a V100's memory is far faster than these links.
ON_GPU = msgspec.structs.replace(FOUR, device="V100")


def fsdp2(model=FOUR, cluster=None, ranks=2, batches=8, **knobs):
    return stepped(model, cluster or described(), ranks, batches, engine="fsdp2", **knobs)


def test_groups_are_the_root_and_its_blocks_in_the_order_of_forward() -> None:
    groups = in_blocks(FOUR.gradients, None)
    assert [(group.name, group.bytes // MIB, group.gradients, group.reshards) for group in groups] == [
        ("", 2, (0, 3), False),
        ("blocks.0", 1, (2,), True),
        ("blocks.1", 1, (1,), True),
    ]
    assert [group.reshards for group in in_blocks(FOUR.gradients, False)] == [False, False, False]
    assert in_blocks(FOUR.gradients, True)[0].reshards


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "vgg19", "transformer", "gpt"])
def test_names_of_parameters_tell_the_blocks_that_are_sharded(name: str) -> None:
    model = load(spec_from_options(name)).model
    sharded = {id(block) for block in blocks_of(model)}
    blocks = {path for path, module in model.named_modules() if id(module) in sharded}
    gradients = [
        Gradient(name=path, bytes=each.numel() * each.element_size()) for path, each in model.named_parameters()
    ]
    groups = in_blocks(gradients[::-1], None)
    assert {group.name for group in groups if group.name} == blocks
    assert sum(group.bytes for group in groups) == sum(gradient.bytes for gradient in gradients)


def test_over_gloo_a_step_is_compute_and_all_collectives() -> None:
    # Between two ranks a MiB is gathered in half a second; a reduce-scatter sums it everywhere, in a second.
    made = fsdp2()
    gathers_s, scatters_s = 0.5 * (2 + 2 * 1 + 2 * 1), 4.0
    assert made.step_s.tolist() == [2 + 4 + 0.5 + gathers_s + scatters_s]
    assert made.exposed_s.tolist() == [gathers_s + scatters_s]
    kept = fsdp2(reshard_after_forward=False)
    assert made.step_s - kept.step_s == 0.5 * 2
    freed = fsdp2(reshard_after_forward=True)
    assert freed.step_s - made.step_s == 0.5 * 2


def test_one_process_is_alone_and_more_ranks_share_the_optimizer() -> None:
    made = fsdp2(cluster=described(1e12), ranks=[1, 2, 8])
    np.testing.assert_allclose(made.step_s, [7, 6.5, 6.125])
    assert made.exposed_s[0] == 0


def test_over_nccl_gathers_are_hidden_by_compute() -> None:
    cluster = described(8.0, device="gpu", gpu="V100", device_spread=0.0)
    made = fsdp2(ON_GPU, cluster)
    copies_s = copy_s_per_byte(cluster) * MIB * (4 + 2 + 4)  # out of every gather, into every reduce-scatter
    assert made.outcome.hidden_s > 0
    assert 6.5 + copies_s < made.step_s < fsdp2().step_s
    infinite = fsdp2(ON_GPU, described(1e12, device="gpu", gpu="V100", device_spread=0.0))
    assert infinite.step_s == pytest.approx(6.5 + copies_s, rel=0.01)


def test_accumulation_gathers_in_every_pass_and_reduces_once() -> None:
    from scalescope.simulator.step import steps

    exchange = find_engine("fsdp2").exchange(FOUR, {})
    made = steps(FOUR, described(), exchange, np.array([2]), np.array([24]), 3)
    assert made.step_s.tolist() == [3 * (2 + 4 + 0.5 * 6) + 4 + 0.5]


def added(*points: tuple[int, int, float, int]):
    """The profile with what sharding adds to a step of one process: ranks, batch, seconds, MiB."""
    sharded = tuple(
        ShardedPoint(ranks=ranks, batch=batch, reshards=None, added_s=seconds, added_bytes=mib * MIB)
        for ranks, batch, seconds, mib in points
    )
    return msgspec.structs.replace(FOUR, sharded=sharded)


def test_what_sharding_itself_costs_is_in_every_pass() -> None:
    measured = added((2, 8, 0.25 - 1 / 2, 0))  # the optimizer saves half of its second on half of the parameters
    assert (fsdp2(measured, ranks=[1, 2]).step_s - fsdp2(ranks=[1, 2]).step_s).tolist() == [0, 0.25]
    noise = added((2, 8, -0.75, 0))
    assert fsdp2(noise).step_s.tolist() == fsdp2().step_s.tolist()


def test_measured_copies_are_not_modelled_again() -> None:
    copying = described(copy_s_per_byte=0.1 / MIB)
    assert fsdp2(cluster=copying).step_s > fsdp2().step_s
    measured = added((2, 8, 0.25 - 1 / 2, 0))
    assert fsdp2(measured, copying).step_s.tolist() == fsdp2(measured).step_s.tolist()


def test_measured_memory_lies_on_lines_over_the_share_of_a_rank_and_the_batch() -> None:
    measured = added((2, 8, 0.0, -6), (8, 8, 0.0, -9), (2, 24, 0.0, -2), (8, 24, 0.0, -5))
    batches = [8, 8, 8, 8, 8, 16, 48]
    alone = fsdp2(measured, ranks=[1] * len(batches), batches=batches).memory_bytes
    made = fsdp2(measured, ranks=[1, 2, 4, 8, 16, 2, 2], batches=batches).memory_bytes
    assert np.round((alone - made) / MIB).tolist() == [0, 6, 8, 9, 9, 4, 2]


def test_what_was_measured_with_another_setting_does_not_count() -> None:
    kept = fsdp2(added((2, 8, 5.0, -6)), reshard_after_forward=False)
    assert kept.step_s.tolist() == fsdp2(reshard_after_forward=False).step_s.tolist()


def test_parameters_and_state_are_shared_and_buffers_of_the_largest_block_are_whole() -> None:
    points = [point(batch, memory_bytes=GIB + batch * 64 * MIB) for batch in (8, 16)]
    adam = msgspec.structs.replace(FOUR, points=tuple(points), workload=WorkloadSpec(model="mlp", optimizer="adam"))
    made = fsdp2(adam, ranks=[1, 2, 4])
    # Of 4 MiB of parameters and 8 of state a part stays; the root is whole and so are three buffers of a block.
    buffers = 2 + 3 * 1
    alone = 1024 + 8 * 64
    assert (made.memory_bytes / MIB).tolist() == [alone, alone - 12 / 2 + buffers, alone - 12 * 3 / 4 + buffers]


def test_an_unknown_optimizer_is_taken_to_keep_its_state_whole() -> None:
    own = msgspec.structs.replace(FOUR, workload=WorkloadSpec(model="mlp", optimizer="mine.py:optimizer"))
    assert fsdp2(own).memory_bytes > fsdp2().memory_bytes


def test_the_drawn_step_shows_every_gather_and_scatter() -> None:
    drawn = predicted_step(FOUR, described(), Knobs(engine="fsdp2"), 2, 8)
    sent = [span.name for span in drawn.spans if span.activity == "communication"]
    assert sent == [
        "all-gather of the rest",
        "all-gather of blocks.0",
        "all-gather of blocks.1",
        "all-gather of blocks.1",
        "all-gather of blocks.0",
        "reduce-scatter of blocks.1",
        "reduce-scatter of blocks.0",
        "reduce-scatter of the rest",
    ]
    assert drawn.steps[0].end_s == fsdp2().step_s[0]
