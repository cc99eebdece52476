"""Maps of scripts: sizes that ran, those between them, what does not fit."""

import msgspec
import numpy as np
import pytest
from tests.simulator.made import GIB, described
from tests.simulator.made_recorded import message, rank_zero

from scalescope.errors import UsageError
from scalescope.records.prediction import Prediction
from scalescope.records.rank_zero import RankZero
from scalescope.simulator.recorded_map import RecordedQuestion, backend_of, predict_recorded, record_at


def asked(*records: RankZero, np: tuple[int, ...] = (), cluster=None, **more) -> Prediction:
    counts = np or tuple(record.np for record in records)
    return predict_recorded(
        RecordedQuestion(what="train.py", records=records, cluster=cluster or described(slots=8), np=counts, **more)
    )


def alone(**more) -> RankZero:
    return rank_zero(1, 10.0, copies=1, **more)


def test_speedups_are_over_the_script_as_one_process() -> None:
    one, two = asked(alone(), rank_zero(2, 10.0, message(7.0, 8.0, bytes_=2 * 2**20))).cells
    assert (one.speedup, one.step_s, one.exposed_s) == (1.0, 10.0, 0.0)
    assert two.step_s == pytest.approx(11.0)  # 2 MiB take 2 s, of which one is hidden
    assert two.speedup == pytest.approx(2 * 10 / 11)
    assert two.scaling == "weak"
    assert two.low_s < two.step_s < two.high_s


def test_what_is_divided_among_ranks_is_interpolated_over_their_reciprocal() -> None:
    low, high = rank_zero(2, 10.0, memory_bytes=6 * GIB), rank_zero(8, 7.0, memory_bytes=3 * GIB)
    between = record_at({2: low, 8: high}, 4)
    assert between is not None
    assert between.step_s == pytest.approx(8.0)  # 6 + 8 / ranks
    assert between.memory_bytes == 4 * GIB


def test_groups_of_a_size_between_are_of_its_ranks() -> None:
    shards = message(ranks=2, stride=1, bytes_=100, group="shard")
    replicas = message(ranks=4, stride=2, bytes_=50, group="replicas")
    records = {2: rank_zero(2, 10.0), 8: rank_zero(8, 10.0, message(ranks=8), shards, replicas)}
    between = record_at(records, 4)
    assert between is not None
    assert [(each.ranks, each.stride) for each in between.messages] == [(4, 1), (2, 1), (2, 2)]
    assert record_at(records, 5) is None  # does not divide into groups of two


def test_what_every_rank_adds_to_grows_with_their_number() -> None:
    metrics = [rank_zero(ranks, 10.0, message(ranks=ranks, bytes_=8 * ranks)) for ranks in (2, 8)]
    between = record_at({record.np: record for record in metrics}, 6)
    assert between is not None
    assert between.messages[0].bytes == 48


def test_a_batch_that_shrinks_with_ranks_is_strong_scaling() -> None:
    records = [alone(batch=64), rank_zero(2, 5.0, batch=32), rank_zero(8, 2.0, batch=8)]
    cells = asked(*records, np=(1, 2, 4, 8)).cells
    assert {cell.scaling for cell in cells} == {"strong"}
    assert [cell.batch for cell in cells] == [64, 32, 16, 8]
    assert cells[1].speedup == pytest.approx(2.0)
    assert cells[1].efficiency == pytest.approx(1.0)


def test_memory_that_ran_out_is_a_cell_that_does_not_fit() -> None:
    full = rank_zero(1, 0.0, copies=1, out_of_memory="tried to allocate 2 GiB", memory_bytes=65 * GIB)
    records = full, rank_zero(4, 10.0), rank_zero(8, 10.0)
    made = asked(*records, np=(1, 2, 4, 8))
    assert [(cell.np, cell.fits) for cell in made.cells] == [(1, False), (4, True), (8, True)]
    assert made.cells[0].step_s == 0.0
    assert made.cells[1].speedup == pytest.approx(4.0)  # over a quarter of what four do
    assert made.recommended is not None
    assert any("left out" in warning and "2" in warning for warning in made.warnings)
    assert any("one process does not fit" in warning for warning in made.warnings)


def test_memory_is_compared_with_the_devices_of_the_cluster() -> None:
    gpus = described(slots=8, device="gpu", memory_bytes=80 * GIB)
    records = [
        rank_zero(ranks, 10.0, device="gpu", backend="nccl", memory_bytes=size * GIB, memory_limit_bytes=141 * GIB)
        for ranks, size in ((1, 83), (8, 40))
    ]
    assert [cell.fits for cell in asked(*records, cluster=gpus).cells] == [False, True]


def test_processes_of_a_node_share_its_memory() -> None:
    records = [rank_zero(ranks, 10.0, memory_bytes=20 * GIB) for ranks in (1, 2, 4)]
    assert [cell.fits for cell in asked(*records).cells] == [True, True, False]


def test_intervals_grow_where_fewer_ranks_stepped_together_than_a_node_takes() -> None:
    def width(copies: int) -> float:
        cell = asked(alone(), rank_zero(8, 10.0, copies=copies)).cells[1]
        return cell.high_s / cell.low_s

    assert width(2) > width(8)


def test_the_slowest_rank_sets_the_pace_and_what_all_do_at_once_counts_once() -> None:
    def step_s(*steps_s: float) -> float:
        return asked(alone(), rank_zero(8, 10.0, steps_s=steps_s)).cells[1].step_s

    steady, uneven = [10.0] * 40, [9.0, 11.0] * 20
    assert step_s(*steady) == pytest.approx(10.0)
    assert step_s(*uneven) > 10.5
    assert step_s(*steady, 60.0) == pytest.approx(10.0)  # an epoch begins, on every rank


def test_a_loss_that_is_not_finite_and_what_was_held_back_are_told() -> None:
    warnings = asked(alone(), rank_zero(2, 10.0, finite=False, saves=("torch.save",), warnings=("one pass",))).warnings
    assert any("not finite" in warning for warning in warnings)
    assert any("torch.save" in warning for warning in warnings)
    assert "one pass" in warnings


def test_other_devices_than_the_clusters_are_refused() -> None:
    with pytest.raises(UsageError, match="ran on a CPU and made has GPUs"):
        asked(alone(), cluster=described(device="gpu"))


@pytest.mark.parametrize(
    ("named", "device", "backend"),
    [("gloo", "cpu", "gloo"), ("", "gpu", "nccl"), ("cpu:gloo,cuda:nccl", "gpu", "nccl"), ("undefined", "cpu", "gloo")],
)
def test_a_backend_is_that_of_the_device(named: str, device: str, backend: str) -> None:
    assert backend_of(msgspec.structs.replace(alone(), backend=named, device=device)) == backend


def test_ranks_wait_for_the_slowest_at_each_collective_that_stops_compute() -> None:
    random = np.random.default_rng(3)
    pieces = random.gamma(25.0, 0.04, (64, 10, 4))  # Ranks, collectives and a step's end: each varies by a fifth
    moments = [tuple(np.cumsum(each)) for each in pieces[:, :, 0]]
    truth = pieces.reshape(64, 10, 4).max(axis=2).sum(axis=1).mean() / pieces[:, :, 0].sum(axis=1).mean()
    gathers = [message(1.0 + at, operation="all_gather", ranks=4, bytes_=4) for at in range(9)]
    recorded = {"steps_s": tuple(each[-1] for each in moments), "issues_s": tuple(moments)}
    one = alone(engine="fsdp2", issues_s=((10.0,),) * 64)
    sharded = asked(one, rank_zero(4, 10.0, *gathers, engine="fsdp2", **recorded), np=(4,))
    at_the_end = asked(rank_zero(4, 10.0, *gathers, engine="ddp", **recorded))
    compute_s = [cell.step_s - cell.exposed_s for (cell,) in (sharded.cells, at_the_end.cells)]
    assert compute_s[0] == pytest.approx(10 * truth, rel=0.04)
    assert compute_s[1] < 10 * (1 + 0.5 * (truth - 1))
