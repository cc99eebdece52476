"""Clocks of ranks are brought together on the ends of collectives, however far apart they were."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kineto_samples import loaded, sample, written

from scalescope.diagnosis.explanation import transfers
from scalescope.intervals import Times
from scalescope.traces.alignment import align, on_common_clock
from scalescope.traces.kineto.reading import read
from scalescope.traces.lateness import lateness, stands_out
from scalescope.traces.trace import Collectives, Trace

OFFSET_S = 3.0
NOISE = np.random.default_rng(7)


def with_clock(name: str, rank: int, path: Path) -> Path:
    """The file as a clock would have written it that is ahead."""
    raw = loaded(sample(name, rank))
    for event in raw["traceEvents"]:
        event["ts"] += OFFSET_S * 1e6
    return written(raw, path)


@pytest.mark.parametrize("name", ["gloo_small", "gloo_with_stack", "cuda_gloo"])
def test_a_shifted_clock_is_brought_back(name: str, tmp_path: Path) -> None:
    first, second = read(sample(name, 0)), read(sample(name, 1))
    shifted = read(with_clock(name, 1, tmp_path / "rank1.json"))
    clock = align([first, shifted])[1]
    assert clock.residual_s <= 300e-6
    assert clock.rank == 1
    truth = second.epoch_s - first.epoch_s + second.starts_s
    assert np.abs(on_common_clock(shifted.starts_s, clock) - truth).max() <= 300e-6


def made(ends: Times, sizes: list[int], *, rank: int, lasting: Times | float = 1e-3, epoch_s: float = 0.0) -> Trace:
    """A trace with these allreduces and nothing else."""
    base = read(sample("gloo_small"))
    order = np.argsort(ends, kind="stable")
    collectives = Collectives(
        np.array(["allreduce"] * len(ends), dtype=object),
        np.resize(np.array(sizes, dtype=np.int64), len(ends))[order],
        (ends - lasting)[order],
        ends[order],
    )
    return replace(base, rank=rank, epoch_s=epoch_s, collectives=collectives)


def job(steps: int, seconds: float) -> Times:
    """Ends of three allreduces a step; steps differ as real ones do."""
    begins = np.cumsum(seconds * (1 + 0.1 * NOISE.random(steps)))
    return (begins[:, None] + np.array([0.3, 0.5, 0.8]) * seconds).ravel()


def late(count: int) -> Times:
    """Most ends are written down within 100 microseconds, a third up to milliseconds late."""
    return NOISE.exponential(50e-6, count) + np.where(NOISE.random(count) < 0.33, 1.6e-3 * NOISE.random(count), 0.0)


def test_the_offset_is_found_in_a_long_trace_with_outliers() -> None:
    ends = job(400, 0.05)
    first = made(ends + late(len(ends)), [100, 200, 300], rank=0)
    clock = align([first, made(ends + late(len(ends)) - 7.5, [100, 200, 300], rank=1)])[1]
    assert clock.offset_s == pytest.approx(7.5, abs=100e-6)
    assert clock.residual_s < 300e-6


@pytest.mark.parametrize("missed", [1, 3, 9])
@pytest.mark.parametrize("sizes", [[100, 200, 300], [-1]])
def test_a_trace_that_begins_later_is_paired_with_the_same_collectives(missed: int, sizes: list[int]) -> None:
    ends = job(60, 0.02)
    first = made(ends + late(len(ends)), sizes, rank=0)
    rolled = np.roll(sizes, -missed).tolist()
    second = made(ends[missed:] + 2.0 + late(len(ends) - missed), rolled, rank=1)
    clock = align([first, second])[1]
    assert clock.offset_s == pytest.approx(-2.0, abs=200e-6)


def test_missing_collectives_in_the_middle_leave_the_alignment_right() -> None:
    ends = job(100, 0.02)
    kept = np.ones(len(ends), dtype=bool)
    kept[150:157] = False
    first = made(ends + late(len(ends)), [100, 200, 300], rank=0)
    there = (ends + late(len(ends)) - 1.0)[kept]
    second = made(there, [100], rank=1)
    sizes = np.resize([100, 200, 300], len(ends))[kept]
    order = np.argsort(there, kind="stable")
    second = replace(second, collectives=replace(second.collectives, bytes=sizes[order]))
    clocks = align([first, second])
    assert clocks[1].offset_s == pytest.approx(1.0, abs=200e-6)
    assert len(lateness([first, second], clocks).wait_s) > 0.9 * kept.sum()


def test_traces_without_anything_in_common_keep_the_clocks_of_their_machines() -> None:
    first = made(job(5, 0.02), [100], rank=0, epoch_s=1000.0)
    clock = align([first, made(np.zeros(0), [100], rank=1, epoch_s=1002.5)])[1]
    assert (clock.pairs, clock.offset_s) == (0, 2.5)


def test_the_last_to_come_sets_the_wait_and_the_shortest_time_is_the_transfer() -> None:
    ends = job(50, 0.05)
    first = made(ends, [1_000_000], rank=0, lasting=0.012)
    second = made(ends, [1_000_000], rank=1, lasting=0.004)
    clocks = align([first, second])
    found = lateness([first, second], clocks)
    assert found.late_s[:, 1] == pytest.approx(0.008)
    assert found.late_s[:, 0] == pytest.approx(0.0)
    assert found.transfer_s == pytest.approx(0.004)
    (row,) = transfers([first, second], lateness([first, second], clocks))
    assert (row.count, row.ranks, row.bytes) == (150, 2, 1_000_000)
    assert row.wait_s == pytest.approx(0.008)
    assert row.algorithm_bytes_per_s == pytest.approx(250e6)
    assert row.bus_bytes_per_s == pytest.approx(250e6)


def test_bus_bandwidth_of_four_ranks_counts_what_a_link_carries() -> None:
    ends = job(10, 0.05)
    traces = [made(ends, [4_000_000], rank=rank, lasting=0.01) for rank in range(4)]
    (row,) = transfers(traces, lateness(traces, align(traces)))
    assert row.bus_bytes_per_s == pytest.approx(1.5 * row.algorithm_bytes_per_s)


def test_one_trace_alone_has_a_clock_and_no_wait() -> None:
    trace = read(sample("nccl"))
    (clock,) = align([trace])
    assert clock.offset_s == 0.0
    rows = transfers([trace])
    assert {row.bytes for row in rows if row.operation == "allreduce"} == set(trace.bucket_bytes)
    assert all(row.wait_s is None and row.ranks == 2 for row in rows)


def test_a_rank_stands_out_when_it_is_late_in_nearly_all_steps_by_more_than_they_differ() -> None:
    chance = np.random.default_rng(0)
    assert stands_out(0.020 + chance.normal(0, 0.003, 20), step_s=0.035)
    assert not stands_out(chance.normal(0, 0.004, 20), step_s=0.015)
    assert not stands_out(0.003 + chance.normal(0, 0.005, 20), step_s=0.015), "steps differ by more"
    assert not stands_out(np.full(20, 0.0005), step_s=0.1), "too little to matter"
    assert not stands_out(np.full(3, 0.02), step_s=0.035), "too few steps"


def test_ranks_that_take_turns_stand_out_in_no_steps() -> None:
    assert not stands_out(np.array([0.02, -0.02] * 10), step_s=0.05)


def test_ends_that_a_slow_link_scatters_are_paired_in_their_order() -> None:
    """One message a step, as captured over a link of 50 Mbit/s: few ends met, and most of those by chance."""
    ends = np.fromstring(
        "0.7917 1.1015 1.6742 2.0501 2.3574 2.6673 3.0451 3.3578 3.6646 3.9745 "
        "4.3183 4.624 4.9337 5.2435 6.2582 7.2728 8.1024 8.4121 8.754 9.0638",
        sep=" ",
    )
    others = np.fromstring(
        "0.7943 1.1037 1.6774 2.0543 2.3641 2.6758 3.0142 3.324 3.6338 3.9438 "
        "4.3263 4.636 4.9459 5.272 6.2543 7.284 8.1047 8.4643 8.7742 9.0922",
        sep=" ",
    )
    first = made(ends, [1849384], rank=0, epoch_s=1.7e9)
    second = made(others, [1849384], rank=1, epoch_s=1.7e9)
    clock = align([first, second])[1]
    assert (clock.pairs, abs(clock.offset_s) < 0.05) == (len(ends), True)
