"""Interleaved blocks of one process and of all, and those that other programs disturbed."""

import json
from pathlib import Path

import pytest

from scalescope.jobs.interleaved import FILE, Interleaved, ratio_is_known, read_pairs
from scalescope.records.run import QUIET


def blocks(folder: Path, foreign_cores: tuple[float, ...], ratios: tuple[float, ...]) -> None:
    """Pairs of blocks of two ranks, as they write them down."""
    for rank in range(2):
        with open(folder / FILE.format(rank=rank), "w") as file:
            for pair, (foreign, ratio) in enumerate(zip(foreign_cores, ratios, strict=True)):
                for mode, step_s in (("alone", 0.1), ("all", 0.1 * ratio)):
                    if mode == "all" or rank == 0:
                        line = {"pair": pair, "mode": mode, "seconds": [step_s] * 3, "foreign_cores": foreign}
                        file.write(json.dumps(line) + "\n")


def test_pairs_that_other_programs_disturbed_do_not_count(tmp_path) -> None:
    blocks(tmp_path, (0.0, 0.9, 0.1, 0.6), (1.1, 2.0, 1.2, 1.9))
    found = read_pairs(tmp_path, 2)
    assert [both / one for one, both in found.seconds] == pytest.approx([1.1, 1.2])
    assert found.foreign_cores == pytest.approx(0.05)


def test_without_two_quiet_pairs_all_count_and_the_load_is_recorded(tmp_path) -> None:
    blocks(tmp_path, (0.0, 0.9, 0.8), (1.1, 2.0, 1.9))
    found = read_pairs(tmp_path, 2)
    assert len(found.seconds) == 3
    assert found.foreign_cores > QUIET


def test_a_block_of_all_ranks_takes_the_mean_over_ranks(tmp_path: Path) -> None:
    late = {0: [1.0, 3.0, 2.0], 1: [3.0, 1.0, 2.0]}  # who is late in one step is early in the next
    for rank, seconds in late.items():
        lines = [{"pair": pair, "mode": "all", "seconds": seconds} for pair in range(2)]
        lines += [{"pair": pair, "mode": "alone", "seconds": [1.0, 1.0, 4.0]} for pair in range(2) if rank == 0]
        (tmp_path / FILE.format(rank=rank)).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_pairs(tmp_path, 2).seconds == ((2.0, 2.0),) * 2


LIMITED = Interleaved(precision=1e-9, seconds=4.0)


@pytest.mark.parametrize(
    ("foreign_cores", "elapsed_s", "enough"),
    [
        ((0.0, 0.0), 5.0, True),
        ((0.0, 0.0), 3.0, False),
        ((0.9, 0.9), 5.0, False),
        ((0.9, 0.0, 0.0), 11.9, False),
        ((0.9, 0.0, 0.0, 0.0), 5.0, True),
        ((0.9, 0.9), 12.1, True),
        ((0.9,), 60.0, False),
    ],
)
def test_a_disturbed_launch_goes_on_for_three_times_as_long(foreign_cores, elapsed_s, enough) -> None:
    pairs = [(1.2, foreign) for foreign in foreign_cores]
    assert ratio_is_known(pairs, LIMITED, elapsed_s) is enough


def test_enough_is_counted_in_undisturbed_pairs() -> None:
    quiet, disturbed = [(1.2, 0.0)] * 8, [(1.2, 0.9)] * 8
    wide = Interleaved(precision=0.5)
    assert ratio_is_known(quiet, wide, 1.0)
    assert not ratio_is_known(disturbed, wide, 1.0)
