"""Predicted against real steps of 2 to 16 ranks on a machine with 16 cores: profiled alone, probed at 2 and 4."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import FOLDER, joined_blocks, keep_points, launch, read_truth, rows_of, summary
from benchmarks.accuracy_ranks import AccuracyTask, Case
from benchmarks.shared import print_table
from scalescope.estimation.link_probe import SIZES
from scalescope.estimation.probe import Group, findings, read_lines
from scalescope.estimation.profile import assemble
from scalescope.records.cluster import Cluster
from scalescope.records.job import Knobs
from scalescope.records.profile import ModelProfile, WorkloadSpec

CASES = (
    Case(workload=WorkloadSpec(model="mlp"), batches=(64, 256)),
    Case(workload=WorkloadSpec(model="cnn"), batches=(16, 64)),
    Case(workload=WorkloadSpec(model="transformer"), batches=(2, 4)),
    Case(workload=WorkloadSpec(model="resnet18"), batches=(2, 4)),
)
RANKS = (2, 4, 8, 16)
ROUNDS = 3


def accuracy_cores() -> list[dict[str, Any]]:
    """Numbers of ranks take turns in a launch of each model; what 8 and 16 show is used where the table says so."""
    cores = len(os.sched_getaffinity(0))
    ranks = tuple(count for count in RANKS if count <= cores)
    for case in CASES:
        if not _finished(case).exists():
            take(case, ranks)
    return report(CASES, ranks, cores)


def take(case: Case, ranks: Sequence[int], rounds: int = ROUNDS) -> None:
    """The launch of one model."""
    task = AccuracyTask(cases=(case,), engine="ddp", knobs={}, rounds=rounds, sizes=SIZES, groups=tuple(ranks))
    launch(task, _group(max(ranks)), _place(case))
    _finished(case).touch()


def report(cases: Sequence[Case], ranks: Sequence[int], cores: int) -> list[dict[str, Any]]:
    """The tables, from what the ranks wrote."""
    summaries = []
    variants = {
        "contention and probe of 2 and 4": (4, 4),
        "contention of all": (16, 4),
        "contention and probe of all": (16, 16),
    }
    rows: list[dict[str, Any]] = []
    for name, (largest_group, largest_probe) in variants.items():
        rows = []
        for case in cases:
            profile = _profile(case, ranks, largest_group)
            cluster = _cluster(_place(case), [count for count in ranks if count <= largest_probe], max(ranks), cores)
            for count in ranks:
                truth = read_truth([_place(case) / f"np{count}" / "case0"], count)
                made = rows_of(profile, cluster, Knobs(engine="ddp"), _group(count), truth)
                rows += [{"ranks": count, **row} for row in made]
        print_table(sorted(rows, key=lambda row: row["ranks"]))
        for count in ranks:
            mine = [row for row in rows if row["ranks"] == count]
            summaries.append({"known": name, "ranks": count, **summary(mine)})
        summaries.append({"known": name, "ranks": "all", **summary(rows)})
    keep_points("accuracy_cores", rows)  # those of `all`, which is what estimate probes by itself
    return summaries


def _place(case: Case) -> Path:
    return FOLDER / "cores" / case.workload.model.rpartition(":")[2]


def _finished(case: Case) -> Path:
    return _place(case) / "finished"


def _group(ranks: int) -> Group:
    return Group(backend="gloo", ranks=ranks, nodes=1)


def _profile(case: Case, ranks: Sequence[int], largest_group: int) -> ModelProfile:
    read = [joined_blocks([_place(case) / f"np{count}" / "case0"], count) for count in ranks]
    blocks = [
        [block for _, of_group in read if rank < len(of_group) for block in of_group[rank]]
        for rank in range(max(ranks))
    ]
    profile = assemble(case.workload, read[0][0], blocks, 1, 0.0)
    crowds = tuple(each for each in profile.crowds if each.copies <= largest_group)
    return msgspec.structs.replace(profile, crowds=crowds)


def _cluster(folder: Path, probed: Sequence[int], most: int, cores: int) -> Cluster:
    found = []
    for count in probed:
        lines = read_lines(folder / f"np{count}" / "case0", count)
        around = read_lines(folder, most)[:count] if count == probed[0] else [[]] * count
        found.append(findings(_group(count), [[*own, *more] for own, more in zip(lines, around, strict=True)]))
    return Cluster(
        nodes=1,
        slots_per_node=cores,
        cores_per_node=cores,
        costs=tuple(costs for each in found for costs in each.costs),
        overlaps=tuple(each.overlap for each in found if each.overlap),
        copy_s_per_byte=found[0].copy_s_per_byte,
    )
