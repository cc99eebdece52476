"""What being measured costs a training: the same DDP job with the agent's hooks and without them, in blocks by turns.

Whole launches differ by several per cent, so both kinds of blocks are made inside one launch of a measurement. What
runs beside the ranks, the process that watches them, is counted by its CPU time.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil

from benchmarks.agent import WATCH
from benchmarks.table import Unfinished
from scalescope.measurement.sweep import measure
from scalescope.progress import Progress
from scalescope.records.request import MeasureRequest
from scalescope.stats import FEWEST, MEASURED, of_values, percent
from scalescope.steady import step_times

FOLDER = Path("results") / "bench" / "overhead"
LAUNCHES, PAIRS, STEPS = 20, 200, 10
# One run of this section goes on for this long; the next one continues.
SECONDS = 18 * 60
SCRIPT = f"""
import json, os, sys, time, torch, torch.distributed as dist
from scalescope.workloads import WorkloadSpec, load
assert "scalescope_agent" in sys.modules
dist.init_process_group("gloo")
workload = load(WorkloadSpec(model="cnn"))
model = torch.nn.parallel.DistributedDataParallel(workload.model)
optimizer = workload.optimizer(model.parameters())
(inputs,), target = workload.batch(4), workload.target(4)  # short steps: what is added is the larger part of them
{WATCH}
def block(steps):
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        workload.loss(model(inputs), target).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    return seconds
block(30)
out = open(f"{{sys.argv[1]}}/rank{{dist.get_rank()}}.jsonl", "w")
for pair in range(int(sys.argv[2])):
    for watched in (pair % 2 == 0, pair % 2 == 1):
        watch(watched)
        block(1)  # not counted: it begins under one kind and ends under the other
        out.write(json.dumps([pair, watched, block(int(sys.argv[3]))]) + "\\n")
    out.flush()
watch(True)
block(5)
dist.barrier()
sys.stdout.flush()
os._exit(0)
"""


def run() -> list[dict[str, Any]]:
    began = time.monotonic()
    for number in range(LAUNCHES):
        folder = FOLDER / f"launch{number:02d}"
        if not (folder / "done.json").exists():
            if time.monotonic() - began > SECONDS:
                raise Unfinished(_rows())
            _launch(folder)
            print(f"  launch {number + 1}: {100 * _added(folder):+.2f} %", flush=True)
    return _rows()


def _launch(folder: Path) -> None:
    """One launch; only a finished one counts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    started = time.monotonic()
    parent = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.overhead", str(folder.absolute()), str(PAIRS), str(STEPS)]
    )
    seen: list[tuple[float, float]] = []  # when, and the CPU seconds of the watching process, while ranks step
    while parent.poll() is None:
        lines = (folder / "rank0.jsonl").read_text().count("\n") if (folder / "rank0.jsonl").exists() else 0
        if 0 < lines < 2 * PAIRS:
            times = psutil.Process(parent.pid).cpu_times()
            seen.append((time.monotonic(), times.user + times.system))
        time.sleep(0.2)
    if parent.returncode:
        raise RuntimeError(f"the measurement ended with {parent.returncode}")
    (_, cpu_first), (_, cpu_last) = seen[0], seen[-1]
    share = (cpu_last - cpu_first) / max(seen[-1][0] - seen[0][0], 1e-9)
    (folder / "done.json").write_text(json.dumps({"watching_cores": share, "seconds": time.monotonic() - started}))


def _measured(folder: Path, pairs: str, steps: str) -> None:
    """The launch, measured as any other; this process is the one that watches."""
    script = (sys.executable, str(folder / "train.py"), str(folder), pairs, steps)
    out = str(folder / f"out-{time.time_ns()}")
    request = MeasureRequest(
        command=script, np=(2,), engines=("ddp",), device="cpu", threads_per_rank=1, launches=1, folder=out
    )
    measure(request, Progress())


def _blocks(folder: Path) -> dict[tuple[int, bool], list[list[float]]]:
    """Step times of every rank by pair and kind of block."""
    found: dict[tuple[int, bool], list[list[float]]] = {}
    for rank in range(2):
        for line in (folder / f"rank{rank}.jsonl").read_text().splitlines():
            pair, watched, seconds = json.loads(line)
            found.setdefault((pair, watched), []).append(seconds)
    return found


def _added(folder: Path) -> float:
    """How much longer a step takes with the agent, in the median pair of blocks of one launch."""
    blocks = {key: fmean(step_times(ranks)) for key, ranks in _blocks(folder).items()}
    return median(blocks[pair, True] / blocks[pair, False] - 1 for pair, watched in blocks if watched)


def _rows() -> list[dict[str, Any]]:
    folders = sorted(path.parent for path in FOLDER.glob("launch*/done.json"))
    if not folders:
        return []
    added = of_values([_added(folder) for folder in folders])
    bare = [fmean(map(fmean, ranks)) for folder in folders for (_, on), ranks in _blocks(folder).items() if not on]
    watching: Sequence[float] = [json.loads((folder / "done.json").read_text())["watching_cores"] for folder in folders]
    kind = f"{percent(MEASURED)} interval" if len(folders) >= FEWEST else "range"
    return [
        {
            "launches": len(folders),
            "pairs of blocks": PAIRS * len(folders),
            "step without the agent, ms": 1e3 * median(bare),
            "added %": 100 * added.middle,
            kind: f"{100 * added.low:.2f} to {100 * added.high:.2f} %",
            "goal": "below 1 %",
            "watching process, % of a core": 100 * median(watching),
        }
    ]


if __name__ == "__main__":
    _measured(Path(sys.argv[1]), *sys.argv[2:])
