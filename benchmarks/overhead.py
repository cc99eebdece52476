"""What measuring costs the measured: the same DDP loop under plain torchrun and under scalescope, in turns."""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.command import scalescope
from scalescope.stats import of_logarithms

ROUNDS = 24
STEPS = 60
SCRIPT = """
import json, os, sys, time, torch, torch.distributed as dist
from statistics import median
from scalescope.workloads import WorkloadSpec, load
dist.init_process_group("gloo")
workload = load(WorkloadSpec(model="cnn"))
model = torch.nn.parallel.DistributedDataParallel(workload.model)
optimizer = workload.optimizer(model.parameters())
(inputs,), target, seconds = workload.batch(32), workload.target(32), []
for _ in range({steps}):
    started = time.perf_counter()
    optimizer.zero_grad()
    workload.loss(model(inputs), target).backward()
    optimizer.step()
    seconds.append(time.perf_counter() - started)
if dist.get_rank() == 0:
    open(sys.argv[1], "w").write(json.dumps(median(seconds[10:])))
dist.barrier()
sys.stdout.flush()
os._exit(0)
"""


def run() -> list[dict[str, Any]]:
    ratios, plain, watched = [], [], []
    order = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT.format(steps=STEPS))
        for number in range(ROUNDS):
            found = {}
            for kind in order.sample(["plain", "watched"], 2):
                answer = folder / f"{kind}-{number}.json"
                if kind == "plain":
                    _torchrun(folder, answer)
                else:
                    words = ("--np", "2", "--launches", "1", "-o", str(folder / f"out{number}"), "--")
                    scalescope("measure", *words, sys.executable, "train.py", str(answer), cwd=folder)
                found[kind] = json.loads(answer.read_text())
            plain.append(found["plain"])
            watched.append(found["watched"])
            ratios.append(found["watched"] / found["plain"])
            print(f"  round {number + 1}: {ratios[-1]:.3f}", flush=True)
    ratio = of_logarithms(ratios)
    return [
        {
            "launches of each": ROUNDS,
            "plain torchrun, ms": 1e3 * of_logarithms(plain).middle,
            "under scalescope, ms": 1e3 * of_logarithms(watched).middle,
            "added %": 100 * (ratio.middle - 1),
            "95 % interval": f"{100 * (ratio.low - 1):.2f} to {100 * (ratio.high - 1):.2f} %",
            "goal": "below 1 %",
        }
    ]


def _torchrun(folder: Path, answer: Path) -> None:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", str(answer))
    subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
