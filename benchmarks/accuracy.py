"""Predicted against real steps: profile, probe and truth take turns in one launch; nothing is fitted to them."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from benchmarks.accuracy_ranks import AccuracyTask, Case, Truth
from benchmarks.shared import lab_of, print_table
from scalescope.engines import find_engine, knobs_of
from scalescope.estimation.link_probe import SIZES
from scalescope.estimation.probe import Group, findings, read_lines
from scalescope.estimation.probe_ranks import Line
from scalescope.estimation.profile import assemble, read_blocks
from scalescope.estimation.profile_blocks import Block, Model
from scalescope.jobs.rank_program import RankProgram, run_ranks
from scalescope.records.cluster import Cluster
from scalescope.records.job import Host, Knobs
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.records.store import complete_lines
from scalescope.simulator.compute import contention
from scalescope.simulator.costs import CostModel
from scalescope.simulator.step import steps
from scalescope.stats import PREDICTED, normal_width
from scalescope.steady import step_times

CASES = (
    Case(workload=WorkloadSpec(model="mlp"), batches=(16, 64, 128, 256)),
    Case(workload=WorkloadSpec(model="cnn"), batches=(8, 32, 64, 128)),
    Case(workload=WorkloadSpec(model="transformer"), batches=(2, 4, 8, 16)),
    Case(workload=WorkloadSpec(model="resnet18"), batches=(2, 4, 8, 16)),
)
LATER = (
    Case(workload=WorkloadSpec(model="gpt"), batches=(1, 4)),
    Case(workload=WorkloadSpec(model="vgg19"), batches=(4, 16)),
)  # Models that nobody looked at while the simulator was written
FOLDER = Path("results") / "bench" / "accuracy"
POINTS = Path("results") / "bench" / "points"  # What `intervals` counts, a file for each section


def accuracy() -> list[dict[str, Any]]:
    """DDP over gloo on two ranks of this machine."""
    rows = compare((*CASES, *LATER), Group(backend="gloo", ranks=2, nodes=1), 5, FOLDER / "gloo")
    print_table(rows)
    keep_points("accuracy", rows)
    later = {case.workload.model for case in LATER}
    return [
        {"models": "the four of the goal", **summary([row for row in rows if row["model"] not in later])},
        {"models": "looked at only here", **summary([row for row in rows if row["model"] in later])},
    ]


def keep_points(section: str, rows: Sequence[dict[str, Any]]) -> None:
    """Keep errors and intervals of a section's points for `make bench SECTION=intervals`."""
    POINTS.mkdir(parents=True, exist_ok=True)
    kept = [
        {
            "inside": row["covered"],
            "half-width %": row["half-width %"],
            "error %": row["error %"],
        }
        for row in rows
    ]
    (POINTS / f"{section}.json").write_text(json.dumps(kept))


def compare(
    cases: Sequence[Case], group: Group, rounds: int, folder: Path, sizes: Sequence[int] = SIZES
) -> list[dict[str, Any]]:
    """One row per model and batch: predicted, measured, the seed's formula, how far the truth differs from itself."""
    knobs = Knobs(engine="ddp")
    launch(AccuracyTask(cases=tuple(cases), engine="ddp", knobs={}, rounds=rounds, sizes=tuple(sizes)), group, folder)
    return analyse(cases, group, knobs, [folder], [folder])


def launch(task: AccuracyTask, group: Group, folder: Path) -> None:
    """Run the ranks of one launch."""
    run_ranks(
        RankProgram(
            module="benchmarks.accuracy_ranks",
            task=task,
            np=group.ranks,
            knobs=Knobs(engine=task.engine, values=task.knobs),
            folder=folder.absolute(),
            hosts=group.hosts,
            writes="**/*.jsonl",
        )
    )


def analyse(
    cases: Sequence[Case], group: Group, knobs: Knobs, profiled: Sequence[Path], run: Sequence[Path]
) -> list[dict[str, Any]]:
    """The rows, from what the ranks wrote: profiles in some folders, probes and truth in others or the same."""
    rows = []
    for index, case in enumerate(cases):
        model, blocks = joined_blocks([folder / f"case{index}" for folder in profiled], group.ranks)
        profile = assemble(case.workload, model, blocks, 1, 0.0)
        found = findings(group, joined_lines(run, index, group.ranks))
        cluster = Cluster(
            nodes=group.nodes,
            slots_per_node=group.ranks // group.nodes,
            cores_per_node=2,
            costs=found.costs,
            overlaps=(found.overlap,) if found.overlap else (),
            copy_s_per_byte=found.copy_s_per_byte,
        )
        truth = read_truth([folder / f"case{index}" for folder in run], group.ranks)
        rows += rows_of(profile, cluster, knobs, group, truth)
    return rows


def rows_of(
    profile: ModelProfile, cluster: Cluster, knobs: Knobs, group: Group, truth: dict[int, list[float]]
) -> list[dict[str, Any]]:
    """One row per batch size of one model in one group of ranks."""
    batches = sorted(truth)
    exchange = find_engine(knobs.engine).exchange(profile, knobs.values)
    made = steps(profile, cluster, exchange, np.full(len(batches), group.ranks), np.array(batches))
    total = float(sum(gradient.bytes for gradient in profile.gradients))
    whole = float(CostModel(cluster, group.backend, "allreduce").seconds(total, group.ranks, group.nodes))
    stretch = contention(profile, np.full(len(batches), group.ranks / group.nodes), np.array(batches, dtype=float))
    rows = []
    for column, batch in enumerate(batches):
        alone = next(point.step_s for point in profile.points if point.batch == batch)
        predicted, real = float(made.step_s[column]), median(truth[batch])
        sigma = float(np.hypot(made.error[column], find_engine(knobs.engine).model_error))
        half = normal_width(PREDICTED) * sigma
        rows.append(
            {
                "model": profile.workload.model.rpartition(":")[2],
                "batch": batch,
                "alone ms": alone * 1e3,
                "crowd": float(stretch.slowdown[column]),
                "exposed ms": float(made.exposed_s[column]) * 1e3,
                "predicted ms": predicted * 1e3,
                "measured ms": real * 1e3,
                "error %": 100 * (predicted / real - 1),
                "seed %": 100 * ((alone + whole) / real - 1),
                "halves %": 100 * (median(truth[batch][::2]) / median(truth[batch][1::2]) - 1),
                "speedup": group.ranks * alone / real,
                "sign right": (alone * group.ranks > predicted) == (alone * group.ranks > real),
                "half-width %": 100 * math.expm1(half),
                "covered": abs(math.log(predicted / real)) <= half,
            }
        )
    return rows


def joined_blocks(folders: Sequence[Path], ranks: int) -> tuple[Model, list[list[Block]]]:
    """The model, and the blocks of every rank from all folders."""
    read = [read_blocks(folder, ranks) for folder in folders]
    return read[0][0], [[block for _, blocks in read for block in blocks[rank]] for rank in range(ranks)]


def joined_lines(folders: Sequence[Path], index: int, ranks: int) -> list[list[Line]]:
    """What every rank timed in one case, and around all cases, from all folders."""
    places = [place for folder in folders for place in (folder / f"case{index}", folder)]
    read = [read_lines(place, ranks) for place in places]
    return [[line for lines in read for line in lines[rank]] for rank in range(ranks)]


def read_truth(folders: Sequence[Path], ranks: int) -> dict[int, list[float]]:
    """By batch: the median step of every block."""
    decode = msgspec.json.Decoder(Truth).decode
    found: dict[int, list[float]] = {}
    for folder in folders:
        files = [folder / f"truth-rank{rank}.jsonl" for rank in range(ranks)]
        for together in zip(*([decode(line) for line in complete_lines(file)] for file in files), strict=True):
            found.setdefault(together[0].batch, []).append(median(step_times([block.seconds for block in together])))
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and 95th percentile of the errors, beside the seed's formula and the truth's own."""

    def of(column: str) -> list[float]:
        return sorted(abs(row[column]) for row in rows)

    errors = of("error %")
    return {
        "points": len(rows),
        "mean error %": fmean(errors),
        "95th percentile %": float(np.percentile(errors, 95)),
        "worst %": errors[-1],
        "seed's mean %": fmean(of("seed %")),
        "seed's worst %": of("seed %")[-1],
        "truth's halves %": fmean(of("halves %")),
        "sign right": f"{sum(row['sign right'] for row in rows)} of {len(rows)}",
        "half-width %": median(row["half-width %"] for row in rows),
        "in 90 % interval": f"{sum(row['covered'] for row in rows)} of {len(rows)}",
    }


UNSEEN_CASES = (
    Case(workload=WorkloadSpec(model="benchmarks.models:Recurrent", inputs=("32x64",)), batches=(8, 32, 128)),
    Case(workload=WorkloadSpec(model="benchmarks.models:Separable", inputs=("3x32x32",)), batches=(4, 16, 64)),
    Case(workload=WorkloadSpec(model="benchmarks.models:Halving", inputs=("3x32x32",)), batches=(4, 16, 64)),
)
UNSEEN_ROUNDS = 5


def accuracy_unseen() -> list[dict[str, Any]]:
    """Three models at three batch sizes; the goal is a mean error of 4 %."""
    rows = compare(UNSEEN_CASES, Group(backend="gloo", ranks=2, nodes=1), UNSEEN_ROUNDS, FOLDER / "unseen")
    print_table(rows)
    keep_points("accuracy_unseen", rows)
    return [{"models": "not built in", **summary(rows)}]


HOROVOD_CASES = (
    Case(workload=WorkloadSpec(model="mlp"), batches=(32, 128)),
    Case(workload=WorkloadSpec(model="cnn"), batches=(16, 64)),
    Case(workload=WorkloadSpec(model="transformer"), batches=(4, 8)),
    Case(workload=WorkloadSpec(model="resnet18"), batches=(4, 8)),
)
HOROVOD_BACKENDS = ("horovod-gloo", "horovod-mpi")
HOROVOD_ROUNDS = 3


def accuracy_horovod() -> list[dict[str, Any]]:
    """Both controllers, one after the other; launches with Horovod and without take turns."""
    rows, points = [], []
    for backend in HOROVOD_BACKENDS:
        group, knobs = Group(backend=backend, ranks=2, nodes=1), knobs_of(backend)
        folder = FOLDER / backend
        plain = [folder / f"plain{number}" for number in range(HOROVOD_ROUNDS)]
        ours = [folder / f"horovod{number}" for number in range(HOROVOD_ROUNDS)]
        for without, with_horovod in zip(plain, ours, strict=True):
            launch(_task(Knobs(engine="ddp"), ("profile",)), Group(backend="gloo", ranks=2, nodes=1), without)
            launch(_task(knobs, ("probe", "truth")), group, with_horovod)
        found = analyse(HOROVOD_CASES, group, knobs, plain, ours)
        print_table(found)
        points += found
        keep_points("accuracy_horovod", points)
        rows.append({"backend": backend, **summary(found)})
    return rows


def _task(knobs: Knobs, parts: tuple[str, ...]) -> AccuracyTask:
    return AccuracyTask(
        cases=HOROVOD_CASES, engine=knobs.engine, knobs=dict(knobs.values), rounds=1, sizes=SIZES, parts=parts
    )


RATES = {"200 Mbit/s": "200mbit", "1 Gbit/s": "1gbit"}
EMULATED = "benchmarks/models.py:emulated"
HOSTS_CASES = (
    Case(workload=WorkloadSpec(model=EMULATED), batches=(8, 16, 32)),
    Case(workload=WorkloadSpec(model=EMULATED, model_args={"layers": 4, "kilobytes": 2048}), batches=(16, 64)),
    Case(
        workload=WorkloadSpec(model=EMULATED, model_args={"layers": 60, "kilobytes": 64, "microseconds": 50.0}),
        batches=(8, 32),
    ),
)
_LARGEST = 16 << 20  # Bytes: larger messages take seconds on the slow link, and none of the models sends one


def accuracy_hosts() -> list[dict[str, Any]]:
    """One laboratory per rate; the ranks are started from its first host, as a user would."""
    rows, points = [], []
    for name, rate in RATES.items():
        with lab_of(2, rate) as lab:
            words = [sys.executable, "-m", "benchmarks.accuracy", *lab.names, rate]
            done = lab.run("h1", words, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print_table(found)
        points += found
        keep_points("accuracy_hosts", points)
        rows.append({"link": name, **summary(found)})
    return rows


def inside(names: list[str], rate: str) -> list[dict[str, Any]]:
    """On the first host: the comparison itself."""
    hosts = tuple(Host(name, 2) for name in names)
    group = Group(backend="gloo", ranks=2 * len(hosts), nodes=len(hosts), hosts=hosts)
    sizes = [size for size in SIZES if size <= _LARGEST]
    rows = compare(HOSTS_CASES, group, 3, FOLDER / rate, sizes)
    return [{**row, "sign right": bool(row["sign right"]), "covered": bool(row["covered"])} for row in rows]


CORES_CASES = (
    Case(workload=WorkloadSpec(model="mlp"), batches=(64, 256)),
    Case(workload=WorkloadSpec(model="cnn"), batches=(16, 64)),
    Case(workload=WorkloadSpec(model="transformer"), batches=(2, 4)),
    Case(workload=WorkloadSpec(model="resnet18"), batches=(2, 4)),
)
CORES_RANKS = (2, 4, 8, 16)
CORES_ROUNDS = 3


def accuracy_cores() -> list[dict[str, Any]]:
    """Numbers of ranks take turns in a launch of each model; what 8 and 16 show is used where the table says so."""
    cores = len(os.sched_getaffinity(0))
    ranks = tuple(count for count in CORES_RANKS if count <= cores)
    for case in CORES_CASES:
        if not _cores_finished(case).exists():
            _launch_all(case, ranks)
    return _cores_tables(CORES_CASES, ranks, cores)


def _launch_all(case: Case, ranks: Sequence[int], rounds: int = CORES_ROUNDS) -> None:
    """The launch of one model."""
    task = AccuracyTask(cases=(case,), engine="ddp", knobs={}, rounds=rounds, sizes=SIZES, groups=tuple(ranks))
    launch(task, _gloo(max(ranks)), _cores_folder(case))
    _cores_finished(case).touch()


def _cores_tables(cases: Sequence[Case], ranks: Sequence[int], cores: int) -> list[dict[str, Any]]:
    """The tables, from what the ranks wrote."""
    summaries = []
    variants = {"contention and probe of 2 and 4": 4, "contention and probe of all": 16}
    rows: list[dict[str, Any]] = []
    for name, largest in variants.items():
        rows = []
        for case in cases:
            profile = _cores_profile(case, ranks, largest)
            cluster = _cores_cluster(
                _cores_folder(case), [count for count in ranks if count <= largest], max(ranks), cores
            )
            for count in ranks:
                truth = read_truth([_cores_folder(case) / f"np{count}" / "case0"], count)
                made = rows_of(profile, cluster, Knobs(engine="ddp"), _gloo(count), truth)
                rows += [{"ranks": count, **row} for row in made]
        print_table(sorted(rows, key=lambda row: row["ranks"]))
        for count in ranks:
            mine = [row for row in rows if row["ranks"] == count]
            summaries.append({"known": name, "ranks": count, **summary(mine)})
        summaries.append({"known": name, "ranks": "all", **summary(rows)})
    keep_points("accuracy_cores", rows)  # those of `all`, which is what estimate probes by itself
    return summaries


def _cores_folder(case: Case) -> Path:
    return FOLDER / "cores" / case.workload.model.rpartition(":")[2]


def _cores_finished(case: Case) -> Path:
    return _cores_folder(case) / "finished"


def _gloo(ranks: int) -> Group:
    return Group(backend="gloo", ranks=ranks, nodes=1)


def _cores_profile(case: Case, ranks: Sequence[int], largest_group: int) -> ModelProfile:
    read = [joined_blocks([_cores_folder(case) / f"np{count}" / "case0"], count) for count in ranks]
    blocks = [
        [block for _, of_group in read if rank < len(of_group) for block in of_group[rank]]
        for rank in range(max(ranks))
    ]
    profile = assemble(case.workload, read[0][0], blocks, 1, 0.0)
    crowds = tuple(each for each in profile.crowds if each.copies <= largest_group)
    return msgspec.structs.replace(profile, crowds=crowds)


def _cores_cluster(folder: Path, probed: Sequence[int], most: int, cores: int) -> Cluster:
    found = []
    for count in probed:
        lines = read_lines(folder / f"np{count}" / "case0", count)
        around = read_lines(folder, most)[:count] if count == probed[0] else [[]] * count
        found.append(findings(_gloo(count), [[*own, *more] for own, more in zip(lines, around, strict=True)]))
    return Cluster(
        nodes=1,
        slots_per_node=cores,
        cores_per_node=cores,
        costs=tuple(costs for each in found for costs in each.costs),
        overlaps=tuple(each.overlap for each in found if each.overlap),
        copy_s_per_byte=found[0].copy_s_per_byte,
    )


WITH_POINTS = (
    "accuracy",
    "accuracy_unseen",
    "accuracy_horovod",
    "accuracy_hosts",
    "accuracy_cores",
    "estimates_repeat",
    "rank_zero",
)
_ENOUGH = 60


def intervals() -> list[dict[str, Any]]:
    """One row per section that has been run (make bench SECTION=... adds one), and all of them together."""
    kept = {name: json.loads(path.read_text()) for name in WITH_POINTS if (path := POINTS / f"{name}.json").exists()}
    missing = [name for name in WITH_POINTS if name not in kept]
    if missing:
        print(f"not run yet: {', '.join(missing)}")
    rows = [_checks(name, points) for name, points in kept.items()]
    together = [point for points in kept.values() for point in points]
    if together:
        rows.append(_checks(f"all (goal 85 to 95 % of {_ENOUGH} or more)", together))
    return rows


def _checks(name: str, points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    inside = sum(point["inside"] for point in points)
    return {
        "section": name,
        "checks": len(points),
        "inside": inside,
        "inside %": 100 * inside / len(points),
        "median half-width % (goal 10)": median(point["half-width %"] for point in points),
        "mean error %": fmean(abs(point["error %"]) for point in points),
    }


if __name__ == "__main__":
    print(json.dumps(inside(sys.argv[1:-1], sys.argv[-1])))
