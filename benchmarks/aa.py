"""Real launches of a configuration against itself: how many of the intervals contain 1?

A study is one measurement of ten launches of one point. Of every two launches in a row one is called A and the other B,
by a coin: nothing tells them apart, so a 95 % interval of A over B should contain 1 in 95 of 100 studies. The script
forks its ranks after importing torch, which is most of such a launch.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.table import Unfinished, print_table
from scalescope import host
from scalescope.measurement.sweep import continue_measurement, measure
from scalescope.progress import Progress
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Measurement
from scalescope.records.scaling import Estimate, estimate
from scalescope.records.store import load

STUDIES, ROUNDS = 50, 5
# One run of this section goes on for this long; the next one continues with what is missing.
SECONDS = float(os.environ.get("SECONDS_OF_AA", 18 * 60))
FOLDER = Path("results") / "bench" / "aa"
NAMED = "study"
SCRIPT = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as ranks
def train(rank, count, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(64, 64)
    for _ in range(200):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    dist.barrier()
if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks.start_processes(train, args=(int(sys.argv[1]), port), nprocs=int(sys.argv[1]), start_method="fork")
"""


def run() -> list[dict[str, Any]]:
    """Several studies at a time where there are cores for them: most of a launch is importing torch."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + SECONDS
    at_once = max(3 * host.cores().logical // 4, 1) if host.cores().logical > 2 else 1
    left = [
        FOLDER / f"{NAMED}{number:02d}" for number in range(STUDIES) if _pairs(FOLDER / f"{NAMED}{number:02d}") is None
    ]
    running: list[subprocess.Popen[bytes]] = []
    while (left and time.monotonic() < until) or running:
        running = [each for each in running if each.poll() is None]
        if time.monotonic() > until:
            for each in running:
                each.terminate()  # a measurement keeps its finished launches
                each.wait()
        elif left and len(running) < at_once:
            words = [sys.executable, "-m", "benchmarks.aa", str(left.pop(0)), str(until - time.monotonic())]
            running.append(subprocess.Popen(words))
        time.sleep(0.2)
    rows = _rows()
    if rows[0]["A/A studies"] < STUDIES:
        raise Unfinished(rows)
    return rows


def _study(folder: Path, seconds: float) -> None:
    """The launches of one study that are not there yet."""
    script = folder.parent.absolute() / "train.py"
    if not script.exists():
        script.write_text(SCRIPT)
    request = MeasureRequest(
        command=(sys.executable, str(script), "{np}"),
        np=(2,),
        batch=(64,),
        engines=("ddp",),
        launcher="own",
        device="cpu",
        launches=2 * ROUNDS,
        budget_s=seconds,
        folder=str(folder),
    )
    if (folder / "plan.json").exists():
        continue_measurement(folder, {"budget_s": seconds}, Progress())
    else:
        measure(request, Progress())
    pairs = _pairs(folder)
    print(f"  {folder.name}: {json.dumps([[round(1e6 * each) for each in pair] for pair in pairs or []])}", flush=True)


def _pairs(folder: Path) -> list[tuple[float, float]] | None:
    """Seconds per step of A and of B, round by round; None before all launches are there."""
    path = folder / "measurement.json"
    runs = load(path, Measurement).runs if path.exists() else ()
    if len(runs) < 2 * ROUNDS:
        return None
    coin = random.Random(folder.name)
    seconds = [run.mean_step_s for run in sorted(runs, key=lambda run: run.round)]
    pairs = [tuple(coin.sample(seconds[at : at + 2], 2)) for at in range(0, 2 * ROUNDS, 2)]
    return [(a, b) for a, b in pairs]


def _ratio(folder: Path) -> Estimate | None:
    pairs = _pairs(folder)
    return estimate([a / b for a, b in pairs]) if pairs else None


def _rows() -> list[dict[str, Any]]:
    found = [ratio for folder in sorted(FOLDER.glob(f"{NAMED}*")) if (ratio := _ratio(folder))]
    widths = sorted((each.high - each.low) / 2 for each in found)
    return [
        {
            "A/A studies": len(found),
            "contain 1": sum(each.low <= 1 <= each.high for each in found),
            "goal": f"43 of {STUDIES}",
            "half-width, median": widths[len(widths) // 2] if widths else None,
            "launches of each arm": ROUNDS,
        }
    ]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _study(Path(sys.argv[1]), float(sys.argv[2]))
    else:
        print_table(_rows())
