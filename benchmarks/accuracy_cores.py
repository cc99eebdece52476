"""Predicted against real steps of 2 to 16 ranks on a machine with 16 cores: profiled alone, probed at 2 and 4."""

import os
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.accuracy import FOLDER, joined_blocks, joined_lines, launch, read_truth, rows_of, summary
from benchmarks.accuracy_ranks import AccuracyTask, Case
from benchmarks.table import print_table
from scalescope.measurement.link_probe import SIZES
from scalescope.measurement.probe import Group, findings
from scalescope.measurement.profile import assemble
from scalescope.records.cluster import Cluster
from scalescope.records.knobs import Knobs
from scalescope.records.profile import ModelProfile
from scalescope.records.workload import WorkloadSpec

CASES = (
    Case(workload=WorkloadSpec(model="mlp"), batches=(64, 256)),
    Case(workload=WorkloadSpec(model="cnn"), batches=(16, 64)),
    Case(workload=WorkloadSpec(model="transformer"), batches=(4, 8)),
    Case(workload=WorkloadSpec(model="resnet18"), batches=(4, 8)),
)
RANKS = (2, 4, 8, 16)
PROBED = (2, 4)
ROUNDS = 3


def run() -> list[dict[str, Any]]:
    """Every number of ranks in a launch of its own; crowds of 8 and 16 copies are only used where the table says so."""
    cores = len(os.sched_getaffinity(0))
    ranks = [count for count in RANKS if count <= cores]
    folders = {count: FOLDER / "cores" / f"np{count}" for count in ranks}
    for count, folder in folders.items():
        parts = ("profile", "probe", "truth") if count in PROBED else ("profile", "truth")
        task = AccuracyTask(cases=CASES, engine="ddp", knobs={}, rounds=ROUNDS, sizes=SIZES, parts=parts)
        launch(task, _group(count), folder)
    return report(folders, cores)


def report(folders: dict[int, Path], cores: int) -> list[dict[str, Any]]:
    """The tables, from what the ranks wrote."""
    summaries = []
    for name, largest in (("crowds of 2 and 4", max(PROBED)), ("crowds of all sizes", max(RANKS))):
        rows = []
        for index, case in enumerate(CASES):
            profile = _profile(case, index, folders, largest)
            cluster = _cluster(index, folders, cores)
            for count, folder in folders.items():
                truth = read_truth([folder / f"case{index}"], count)
                made = rows_of(profile, cluster, Knobs(engine="ddp"), _group(count), truth)
                rows += [{"ranks": count, **row} for row in made]
        print_table(sorted(rows, key=lambda row: row["ranks"]))
        for count in folders:
            mine = [row for row in rows if row["ranks"] == count]
            summaries.append({"profile": name, "ranks": count, **summary(mine)})
        summaries.append({"profile": name, "ranks": "all", **summary(rows)})
    return summaries


def _group(ranks: int) -> Group:
    return Group(backend="gloo", ranks=ranks, nodes=1)


def _profile(case: Case, index: int, folders: dict[int, Path], largest_crowd: int) -> ModelProfile:
    read = [joined_blocks([folder / f"case{index}"], count) for count, folder in folders.items()]
    blocks = [
        [block for _, launched in read if rank < len(launched) for block in launched[rank]]
        for rank in range(max(folders))
    ]
    profile = assemble(case.workload, read[0][0], blocks, 1, 0.0)
    crowds = tuple(crowd for crowd in profile.crowds if crowd.copies <= largest_crowd)
    return msgspec.structs.replace(profile, crowds=crowds)


def _cluster(index: int, folders: dict[int, Path], cores: int) -> Cluster:
    found = [
        findings(_group(count), joined_lines([folders[count]], index, count)) for count in PROBED if count in folders
    ]
    return Cluster(
        nodes=1,
        slots_per_node=cores,
        cores_per_node=cores,
        costs=tuple(costs for each in found for costs in each.costs),
        overlaps=tuple(each.overlap for each in found if each.overlap),
        copy_s_per_byte=found[0].copy_s_per_byte,
    )
