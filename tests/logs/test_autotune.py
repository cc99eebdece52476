"""Horovod's autotune logs: real ones, and some whose truth is known."""

import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean, median

import pytest
from autotune_logs import (
    HEADER,
    HELD_FUSION,
    HELD_SWITCHES,
    OLDER,
    WALKED,
    flat,
    judged,
    planted_log,
    sloping,
)

import needs
from scalescope.logs.autotune import read_autotune
from scalescope.logs.autotune_log import is_autotune_log
from scalescope.records.autotune import Autotune
from scalescope.records.store import load, save

# Real logs


def test_the_last_row_of_a_finished_log_is_the_choice_and_not_a_sample() -> None:
    record = read_autotune(WALKED)
    assert (len(record.samples), len(record.settings), record.finished) == (36, 30, True)
    winner = record.samples[record.winner]
    assert (winner.line, winner.score) == (33, 166.805)
    assert winner.knobs.switches == {
        "hierarchical_allreduce": False,
        "hierarchical_allgather": True,
        "torus_allreduce": False,
        "cache_enabled": True,
    }


def test_samples_that_differ_in_the_last_digit_are_one_setting() -> None:
    record = read_autotune(WALKED)
    (twice,) = [each for each in record.settings if each.knobs.fusion_threshold_mb == 63.7176]
    assert (twice.samples, twice.low, twice.high) == (2, 75.8023, 163.718)
    assert twice.score == pytest.approx((75.8023 * 163.718) ** 0.5)


def test_switches_that_were_walked_and_held_are_told_apart() -> None:
    record = read_autotune(WALKED)
    assert [switch.name for switch in record.walked] == ["hierarchical_allgather", "cache_enabled"]
    assert record.held == {"hierarchical_allreduce": 0.0, "torus_allreduce": 0.0}
    assert not read_autotune(HELD_SWITCHES).walked
    assert read_autotune(HELD_FUSION).held["tensor_fusion_threshold"] == 128


def test_noise_comes_from_repeats_where_there_are_some_and_from_neighbours_otherwise() -> None:
    repeats, neighbours = read_autotune(WALKED).noise, read_autotune(HELD_SWITCHES).noise
    assert repeats is not None
    assert neighbours is not None
    assert (repeats.source, repeats.freedom) == ("repeats", 6)
    assert repeats.relative == pytest.approx(0.260, abs=0.001)
    assert neighbours.source == "neighbours"
    assert 0.2 < neighbours.relative < 0.6


def test_none_of_the_real_choices_beat_the_noise() -> None:
    for path in (WALKED, HELD_SWITCHES, HELD_FUSION):
        record = read_autotune(path)
        assert record.verdict != "clear"
        assert record.lead_next is not None
        assert record.needed is not None
        assert record.lead_next < record.needed
        assert not record.default_tried


def test_a_held_value_is_recommended_as_it_was_held() -> None:
    assert read_autotune(HELD_FUSION).environment == {
        "HOROVOD_FUSION_THRESHOLD": str(128 << 20),
        "HOROVOD_CYCLE_TIME": "5.3",
    }


def test_a_judged_log_survives_the_disk(tmp_path: Path) -> None:
    record = read_autotune(WALKED)
    save(record, tmp_path / "autotune.json")
    assert load(tmp_path / "autotune.json", Autotune) == record


@pytest.mark.launches
def test_a_fresh_log_of_horovod_is_read(tmp_path: Path) -> None:
    needs.horovod()
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, horovod.torch as hvd\n"
        "hvd.init(); torch.set_num_threads(1)\n"
        "model = torch.nn.Linear(64, 64)\n"
        "own = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())\n"
        "for _ in range(40):\n"
        "    own.zero_grad(); model(torch.ones(4, 64)).mean().backward(); own.step()\n"
    )
    log = tmp_path / "autotune.csv"
    held = {"HOROVOD_CACHE_CAPACITY": "1024", "HOROVOD_HIERARCHICAL_ALLGATHER": "0", "OMP_NUM_THREADS": "1"}
    short = {"WARMUP_SAMPLES": "0", "STEPS_PER_SAMPLE": "1", "BAYES_OPT_MAX_SAMPLES": "4"}
    environment = {**os.environ, **held, **{f"HOROVOD_AUTOTUNE_{name}": value for name, value in short.items()}}
    environment |= {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(log)}
    launch = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", sys.executable, str(script)]
    subprocess.run(launch, env=environment, check=True, capture_output=True, timeout=120)
    assert is_autotune_log(log.read_text())
    record = read_autotune(log)
    assert (len(record.samples), record.finished, record.lost.events) == (5, True, 0)
    assert [sample.knobs.cycle_time_ms for sample in record.samples[:4]] == [5, 50, 25, 10]
    assert [sample.knobs.fusion_threshold_mb for sample in record.samples[:4]] == [4, 32, 16, 8]


# Planted truth


def test_planted_noise_is_found(tmp_path: Path) -> None:
    for truth in (flat, sloping):
        found = [judged(tmp_path, planted_log(truth, 0.05, seed)).noise for seed in range(16)]
        assert 0.8 < median(noise.relative / 0.05 for noise in found if noise) < 1.25
        assert {noise.source for noise in found if noise} == {"repeats", "neighbours"}


def turned_round(seed: int) -> str:
    """A log with noise of 5 %, in which longer cycles cost as much without the cache as they gain with it."""
    chance = random.Random(seed)
    places = [(2 ** chance.uniform(0, 6.6), 2 ** chance.uniform(0, 6)) for _ in range(10)]
    rows = [
        (cache, cycle, fusion, 100 * (cycle / 10) ** (0.22 if cache else -0.22) * math.exp(chance.gauss(0, 0.05)))
        for cache in (0, 1)
        for cycle, fusion in places
    ]
    return "\n".join([HEADER, *(f"0,0,0, {c},{cycle:.6g},{f:.6g},{score:.6g}" for c, cycle, f, score in rows), ""])


def test_a_switch_that_turns_the_landscape_round_is_not_taken_for_noise(tmp_path: Path) -> None:
    found = [judged(tmp_path, turned_round(seed)).noise for seed in range(6)]
    assert {noise.source for noise in found if noise} == {"neighbours"}
    assert 0.5 < median(noise.relative / 0.05 for noise in found if noise) < 2


def test_the_best_of_equal_settings_is_not_called_clear(tmp_path: Path) -> None:
    verdicts = Counter(
        judged(tmp_path, planted_log(flat, 0.05, seed, samples)).verdict for seed in range(20) for samples in (9, 21)
    )
    assert verdicts["clear"] == 0
    assert verdicts["noise"] > 35


def test_a_setting_that_is_much_better_is_called_clear(tmp_path: Path) -> None:
    def one_peak(cycle_ms: float, fusion_mb: float) -> float:
        return 300.0 if (round(cycle_ms), round(fusion_mb)) == (10, 8) else 100.0

    for seed in range(10):
        record = judged(tmp_path, planted_log(one_peak, 0.02, seed, samples=41))
        assert record.verdict == "clear"
        assert record.settings[record.recommended].knobs.fusion_threshold_mb == 8
        assert record.lead_next == pytest.approx(2, abs=0.3)


def test_the_recommended_setting_is_truly_better_than_the_luckiest_sample(tmp_path: Path) -> None:
    gains = []
    for seed in range(40):
        record = judged(tmp_path, planted_log(sloping, 0.2, seed))
        chosen, better = (
            sloping(record.settings[at].knobs.cycle_time_ms, record.settings[at].knobs.fusion_threshold_mb)
            for at in (record.winning_setting, record.recommended)
        )
        gains.append(better / chosen)
    assert fmean(gains) > 1.01


def two_ways(cache_off: float) -> str:
    """A log in which the cache was walked; without it scores are multiplied."""
    rows = [
        (cache, cycle, fusion, (1 if cache else cache_off) * (100 - cycle) * (1 + 0.01 * (-1) ** number))
        for cache in (0, 1)
        for number, (cycle, fusion) in enumerate(((5, 4), (50, 32), (25, 16), (10, 8), (70, 9), (30, 50)))
    ]
    best = max(rows, key=lambda row: row[3])
    return "\n".join([HEADER, *(f"0,0,0, {c},{cycle},{f},{score}" for c, cycle, f, score in [*rows, best]), ""])


def test_a_chosen_cache_off_is_told_as_not_applied(tmp_path: Path) -> None:
    record = judged(tmp_path, two_ways(cache_off=2))
    assert record.cache_not_applied
    assert record.environment["HOROVOD_CACHE_CAPACITY"] == "0"
    assert not judged(tmp_path, two_ways(cache_off=0.5)).cache_not_applied
    held_off = judged(tmp_path, f"{OLDER}\n0,0,0,5,4,90\n0,0,0,10,8,80\n0,0,0,5,4,90\n")
    assert held_off.finished
    assert not held_off.cache_not_applied
    assert held_off.environment["HOROVOD_CACHE_CAPACITY"] == "0"


def test_the_default_counts_as_tried_where_it_was_held(tmp_path: Path) -> None:
    assert judged(tmp_path, f"{HEADER}\n0,0,0, 1,1,128,90\n0,0,0, 1,1,128,90\n").default_tried
    assert not judged(tmp_path, f"{HEADER}\n0,0,0, 0,1,128,90\n").default_tried


def test_of_few_samples_the_setting_that_was_measured_more_often_is_trusted_more(tmp_path: Path) -> None:
    rows = ("5,4,95", "5,4,100", "5,4,105", "50,32,101")
    record = judged(tmp_path, "\n".join([HEADER, *(f"0,0,0, 1,{row}" for row in rows), ""]))
    assert record.noise is not None
    assert (record.noise.source, record.noise.relative) == ("repeats", pytest.approx(0.05, abs=0.001))
    assert [setting.score for setting in record.settings] == pytest.approx([100, 101], abs=0.1)
    assert record.settings[record.recommended].samples == 3
    better = judged(tmp_path, "\n".join([HEADER, *(f"0,0,0, 1,{row}" for row in rows[:3]), "0,0,0, 1,50,32,104", ""]))
    assert better.settings[better.recommended].samples == 1


def test_noise_of_few_samples_is_unknown(tmp_path: Path) -> None:
    record = judged(tmp_path, f"{HEADER}\n0,0,0, 1,5,4,90\n0,0,0, 1,50,32,60\n")
    assert record.noise is None
    assert (record.verdict, record.lead_next) == ("unknown", pytest.approx(0.5))
