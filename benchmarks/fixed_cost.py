"""Known one-time costs in a real DDP training, and in made-up tables: how well the fit of times finds them."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared import scalescope
from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation

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
    """Rows of launches that know their work, then of tables whose fit must find that, too."""
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
