"""How long whole commands take that start no ranks, and a map once its profile exists."""

import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.shared import ROOT
from scalescope.records.cluster import Cluster, Link
from scalescope.records.job import Knobs
from scalescope.records.profile import Gradient, ModelProfile, ProfilePoint, WorkloadSpec
from scalescope.simulator.grid import Question, predict

ROUNDS = 9
_DATA = ROOT / "tests" / "data" / "traces"
COMMANDS = {
    "--help": ("--help",),
    "doctor": ("doctor",),
    "measure --dry-run": ("measure", "cnn", "--np", "1,2", "--dry-run"),
    "explain, a table": ("explain", str(ROOT / "examples" / "data" / "lab11.csv")),
    "explain, a timeline": ("explain", str(_DATA / "horovod" / "mpi_cnn.json.gz")),
    "explain, a timeline, with pictures": ("explain", str(_DATA / "horovod" / "mpi_cnn.json.gz"), "-o", "{folder}"),
}


def verbs() -> list[dict[str, Any]]:
    """One row per command."""
    revision = os.environ.get("REVISION", "")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        sources = {"here": ROOT / "src"}
        if revision:
            archive = place / "source.tar"
            subprocess.run(["git", "archive", "-o", archive, revision, "src"], cwd=ROOT, check=True)
            with tarfile.open(archive) as opened:
                opened.extractall(place, filter="data")
            sources[revision] = place / "src"
        return [_row(name, words, sources, place) for name, words in COMMANDS.items()]


def _row(name: str, words: tuple[str, ...], sources: dict[str, Path], place: Path) -> dict[str, Any]:
    taken: dict[str, list[float]] = {state: [] for state in sources}
    for index in range(ROUNDS + 1):  # the first one warms caches
        for state, source in sources.items():
            folder = place / f"{name}-{state}-{index}".replace(" ", "_").replace(",", "")
            seconds = _seconds(tuple(word.format(folder=folder) for word in words), source)
            taken[state] += [seconds] if index else []
    row: dict[str, Any] = {"command": name, "here, s": round(median(taken["here"]), 3)}
    for state in list(sources)[1:]:
        ratios = [old / new for old, new in zip(taken[state], taken["here"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        row |= {f"{state}, s": round(median(taken[state]), 3), "times faster": round(median(ratios), 2)}
        row["quartiles"] = f"{low:.2f} to {high:.2f}"
    return row


def _seconds(words: tuple[str, ...], source: Path) -> float:
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "scalescope", *words],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - began


MIB = 1 << 20
GRIDS = {
    "64 x 1,024": (tuple(range(8, 520, 8)), tuple(range(1, 1025))),
    "1 x 1, 1,000 ranks": ((64,), (1_000,)),
    "1 x 1, 100,000 ranks": ((64,), (100_000,)),
}
MODELS = ("resnet18", "resnet50", "resnet101")


def map_speed() -> list[dict[str, Any]]:
    """Made-up times for the real gradients of each model; a described cluster of 12,500 nodes with 8 slots."""
    rows = []
    for model in MODELS:
        profile = made_up(model)
        for engine in ("ddp", "horovod"):
            for name, (batches, counts) in GRIDS.items():
                question = Question(
                    profile=profile, cluster=CLUSTER, knobs=Knobs(engine=engine), np=counts, batches=batches
                )
                started, used = time.perf_counter(), time.process_time()
                cells = len(predict(question).cells)
                rows.append(
                    {
                        "model": model,
                        "gradients": len(profile.gradients),
                        "engine": engine,
                        "map": name,
                        "cells": cells,
                        "seconds": time.perf_counter() - started,
                        "CPU seconds": time.process_time() - used,
                    }
                )
    return rows


CLUSTER = Cluster(
    nodes=12_500,
    slots_per_node=8,
    cores_per_node=64,
    device="gpu",
    inside=Link(bytes_per_s=250e9, latency_s=5e-6),
    between=Link(bytes_per_s=25e9, latency_s=3e-6),
)


def made_up(model: str) -> ModelProfile:
    """The model's gradients, with times that grow with the batch."""
    from scalescope.workloads import load

    sizes = [(name, 4 * value.numel()) for name, value in load(WorkloadSpec(model=model)).model.named_parameters()]
    gradients = tuple(Gradient(name=name, bytes=size) for name, size in reversed(sizes))
    total = sum(gradient.bytes for gradient in gradients)

    def point(batch: int) -> ProfilePoint:
        forward_s = 2e-3 + 1e-4 * batch
        done, ready = 0, []
        for gradient in gradients:
            done += gradient.bytes
            ready.append(2 * forward_s * done / total)
        return ProfilePoint(
            batch=batch,
            step_s=3 * forward_s + 2e-3,
            forward_s=forward_s,
            backward_s=2 * forward_s,
            optimizer_s=2e-3,
            ready_s=tuple(ready),
            noise=0.02,
            error=0.01,
            cores_used=1.0,
            memory_bytes=500 * MIB + 20 * MIB * batch,
            steps=10,
        )

    return ModelProfile(
        workload=WorkloadSpec(model=model),
        torch="",
        device="gpu",
        hostname="",
        threads_per_rank=1,
        gradients=gradients,
        buffers_bytes=(200_000, 424),
        points=tuple(point(batch) for batch in (8, 32, 128, 512)),
        interpolation_error=0.01,
        memory_limit_bytes=80 << 30,
    )
