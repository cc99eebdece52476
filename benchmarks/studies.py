"""Studies in small: hosts out of network namespaces, lab 11, planted fixed costs, a whole study over a slow link."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared import lab_of, scalescope, scalescope_words
from benchmarks.tune_example import DDP
from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation
from scalescope.records.scaling import SPEEDUPS, Scaling
from scalescope.records.store import load
from scalescope.show.study import check_words
from scalescope.show.tuning import sentence
from scalescope.studies.results import read_results

HOSTS = Path("results") / "bench" / "hosts"
STUDIES = {
    "batch": ("--np", "1", "--batch", "8,16,...,128", "--launches", "5"),
    "scaling": ("--np", "1,2,4", "--batch", "32", "--scaling", "both", "--launches", "5"),
}


def hosts() -> list[dict[str, Any]]:
    """Both studies, each resumable; the rows are what their figures show."""
    rows = []
    with lab_of(4, "1gbit") as lab:
        for study, words in STUDIES.items():
            rows += _host_rows(study, _measure(lab, HOSTS / study, words))
    return rows


def _measure(lab: Any, folder: Path, words: tuple[str, ...]) -> Scaling:
    """Started on the first host, as a user would; what an earlier run has finished is kept."""
    if (folder / "plan.json").exists():
        command: tuple[str, ...] = ("measure", "--resume", str(folder))
    else:
        names = ",".join(f"{host}:1" for host in lab.names)
        where = ("--hosts", names, "--threads-per-rank", "1", "-o", str(folder))
        command = ("measure", "cnn", "--engine", "ddp,horovod,fsdp2", *where, *words)
    lab.run("h1", scalescope_words(*command), check=True, stdout=subprocess.DEVNULL)
    return load(folder / "scaling.json", Scaling)


def _host_rows(study: str, scaling: Scaling) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for curve in scaling.curves:
        for point in curve.points:
            steady, rate = point.speedup.get("steady"), point.throughput
            row = {
                "study": study if study == "batch" else curve.scaling,
                "engine": point.engine,
                "hosts": point.nodes,
                "batch each": point.batch,
                "samples/s": rate.value if rate else None,
                "speedup": f"{steady.value:.2f} ({steady.low:.2f} to {steady.high:.2f})" if steady else "",
                "launches": point.launches,
            }
            rows += [row] if row not in rows else []
    return rows


LAB11 = Path("results") / "bench" / "lab11"
MODELS = {"resnet101": "4", "vgg19": "16"}  # And the global batch


def lab11() -> list[dict[str, Any]]:
    rows = []
    for model, batch in MODELS.items():
        folder = LAB11 / model
        if (folder / "plan.json").exists():
            words: tuple[str, ...] = ("--resume", str(folder))
        else:
            words = (model, "--input", "3x32x32", "--engine", "horovod", "--np", "1,2", "--batch", batch)
            words = (*words, "--scaling", "strong", "--launches", "5", "-o", str(folder))
        subprocess.run(scalescope_words("measure", *words), check=True, stdout=subprocess.DEVNULL)
        curve = load(folder / "scaling.json", Scaling).curves[0]
        for point in curve.points:
            speedups = {name: point.speedup[name] for name in SPEEDUPS}
            rows.append(
                {
                    "model": model,
                    "engine": point.engine,
                    "np": point.np,
                    **{name: f"{each.value:.2f} ({each.low:.2f}-{each.high:.2f})" for name, each in speedups.items()},
                    "90 % needs x longer": point.longer_for_90.get("end_to_end"),
                }
            )
    return rows


PLANTED_S = (1, 2, 5, 10, 20)
STEPS, GLOBAL_BATCH, SAMPLE_S = 40, 32, 0.005
SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
fixed_s, global_batch, steps, sample_s = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
dist.init_process_group("gloo")
share = global_batch // dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    optimizer.zero_grad()
    loss = model(torch.ones(share, 8)).square().mean()
    time.sleep(share * sample_s + (fixed_s if step == 0 else 0))
    loss.backward()
    optimizer.step()
dist.barrier()
os._exit(0)
"""


def fixed_cost() -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        for planted in PLANTED_S:
            words = ("--np", "1,2,4", "--oversubscribe", "--scaling", "strong", "--batch", str(GLOBAL_BATCH))
            script = ("train.py", str(planted), "{global_batch}", str(STEPS), str(SAMPLE_S))
            once = ("--launches", "1", "-o", str(folder / f"out{planted}"))
            document, _ = scalescope("measure", *words, *once, "--", sys.executable, *script, cwd=folder)
            found = [point["fixed_s"] for point in document["points"]]
            rows.append(_row(f"launches, {planted} s, np 1, 2, 4", planted, 0, found, []))
            print(f"  {planted} s: {', '.join(f'{each:.3f} s' for each in found)}", flush=True)
    rng = np.random.default_rng(5)
    for planted in PLANTED_S:
        fits = [_simulated_fit(rng, planted) for _ in range(500)]
        rows.append(_row(f"tables, {planted} s", planted, 30_000, [fit[0] for fit in fits], [fit[1] for fit in fits]))
    return rows


def _row(name: str, planted: float, work: float, fixed: list[float], works: list[float]) -> dict[str, Any]:
    fixed_error = np.abs(np.array(fixed) / planted - 1)
    work_error = np.abs(np.array(works) / work - 1) if works else np.zeros(len(fixed))  # launches know their work
    return {
        "planted": name,
        "found": len(fixed),
        "fixed cost found, s": float(np.median(fixed)),
        "its error % (median)": 100 * float(np.median(fixed_error)),
        "work error % (median)": 100 * float(np.median(work_error)) if works else None,
        "within 5 %": f"{100 * float(np.mean((fixed_error < 0.05) & (work_error < 0.05))):.0f} %",
    }


def _simulated_fit(rng: np.random.Generator, planted: float) -> tuple[float, float]:
    """A table of 1 to 32 processes, one run each, whose times and rates are off by half a per cent."""
    observations = []
    for count in (1, 2, 4, 8, 16, 32):
        rate = 200.0 * count * 0.95
        seen, train_s = rate * rng.lognormal(0, 0.005), (planted + 30_000 / rate) * rng.lognormal(0, 0.005)
        parts = {"fixed": train_s - 30_000 / seen}
        observations.append(Observation(engine="", np=count, rate=seen, work=30_000.0, parts=parts))
    fit = make_curve(observations, Frame(engine="", work="fitted")).fit
    assert fit
    return fit.fixed_s, fit.work


STUDY = Path("results") / "bench" / "study_hosts"
RATE, BUDGET = "100mbit", "15m"


def study_hosts() -> list[dict[str, Any]]:
    """Started on the first host, as a user would; what it prints is shown, and the page stays."""
    subprocess.run(["rm", "-rf", str(STUDY)], check=True)
    with lab_of(2, RATE) as lab:
        hosts = ",".join(f"{host}:2" for host in lab.names)
        words = ["study", "--np", "1,4", "--hosts", hosts, "--threads-per-rank", "1", "--budget", BUDGET]
        command = scalescope_words(*words, "-o", str(STUDY), "--", sys.executable, *DDP)
        lab.run("h1", command, check=True)
    (results,) = read_results([STUDY])
    assert results.study is not None
    tuning = results.tuning
    told = {"tune": sentence(tuning) if tuning else "", "check": check_words(results)}
    return [
        {
            "part": part.name,
            "planned s": part.planned_s,
            "used s": part.used_s,
            "state": part.state,
            "": part.why or told.get(part.name, ""),
        }
        for part in results.study.parts
    ]
