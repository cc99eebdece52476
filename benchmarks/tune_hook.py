"""What a search adds to a step, and what an agreement of the ranks and a switch cost next to a step."""

import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from scalescope.jobs.plan import AGENT_HOOK

PROCESSES = 6
HOOKS = """
import gc, json, sys, time, torch, torch.distributed as dist
import torch.optim.optimizer
optimizers = sys.modules["torch.optim.optimizer"]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/meeting", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.ones(4, 2)
def block(n):
    for _ in range(n):
        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
block(500)
clock = next(each for each in gc.get_objects() if type(each).__name__ == "StepClock")
collecting = clock.on_steps
assert collecting is not None
hooks = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
aside = [{}, {}]
def put(what):
    clock.on_steps = collecting if what == "search" else None
    for each, kept in zip(hooks, aside):
        if what == "bare":
            kept.update(each)
            each.clear()
        else:
            each.update(kept)
            kept.clear()
ways = ["bare", "agent", "search"]
times = {way: [] for way in ways}
for turn in range(180):
    for at in range(3):
        way = ways[(turn + at) % 3]
        put(way)
        block(10)
        started = time.perf_counter(); block(100); times[way].append((time.perf_counter() - started) / 100 * 1e6)
print(json.dumps({way: sorted(each)[len(each) // 4] for way, each in times.items()}))
"""  # The lower quartile of 180 blocks of 100 steps each: blocks that another process disturbed do not count

SWITCHES = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/meeting", rank=rank, world_size=2)
layers, width, batch = map(int, sys.argv[2:5])
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randn(batch, width)
while True:
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
MODELS = {
    "60 layers, 120 tensors": (60, 128, 128),
    "600 layers, 1,200 tensors": (600, 64, 64),
    "mid, 12 tensors": (6, 1024, 64),
}
TURNS = 15


def run() -> list[dict[str, Any]]:
    found = [_hooks() for _ in range(PROCESSES)]
    rows = []
    for way, name in (("agent", "agent alone"), ("search", "agent and search")):
        added = [each[way] - each["bare"] for each in found]
        low, _, high = quantiles(added, n=4)
        rows.append(
            {
                "what": f"a step, {name}",
                "bare step": f"{median(each['bare'] for each in found):.1f} us",
                "added": f"{median(added):.2f} us",
                "quartiles": f"{low:.2f} to {high:.2f} us",
                "goal": "at most 5 us",
            }
        )
    return rows + [_switches(name, shape) for name, shape in MODELS.items()]


def _environment(folder: str) -> dict[str, str]:
    agent = {"SCALESCOPE_FOLDER": folder, "PYTHONPATH": str(AGENT_HOOK), "SCALESCOPE_TUNE": "1"}
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **agent}


def _direct(folder: str, number: int, **directive: Any) -> None:
    Path(folder, f"directive-{number:05d}.json").write_text(json.dumps({"id": number, **directive}))


def _hooks() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        _direct(folder, 0, kind="sample", values={}, discard=0, steps=10**9)
        words = [sys.executable, "-c", HOOKS, folder]
        done = subprocess.run(words, env=_environment(folder), capture_output=True, text=True, check=True)
    steps: dict[str, float] = json.loads(done.stdout)
    return steps


def _switches(name: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Two ranks that go back and forth between two settings; how long a switch, with its broadcast, keeps them."""
    with tempfile.TemporaryDirectory() as folder:
        _direct(folder, 0, kind="warmup", steps=20)
        for turn in range(1, 2 * TURNS + 1):
            values = {"bucket_cap_mb": 1.0} if turn % 2 else {}
            _direct(folder, turn, kind="sample", values=values, discard=2, steps=8)
        _direct(folder, 2 * TURNS + 1, kind="stop")
        words = [sys.executable, "-c", SWITCHES, folder, *map(str, shape)]
        ranks = [subprocess.Popen(words, env={**_environment(folder), "RANK": str(rank)}) for rank in (0, 1)]
        assert [rank.wait() for rank in ranks] == [0, 0]
        lines = [json.loads(line) for line in Path(folder, "reports.jsonl").read_text().splitlines()]
    samples = [line for line in lines if line["kind"] == "sample"]
    step = median(time for line in samples for time in line["step_ns"])
    shares = [line["switch_ns"] / step for line in samples]
    # what lies between the end of one sample and the beginning of the next is the ranks' agreement
    agreements = [after["began_ns"] - before["ended_ns"] for before, after in pairwise(samples)]
    low, middle, high = quantiles(shares, n=4)
    switch = median(line["switch_ns"] for line in samples)
    return {
        "what": f"a switch, {name}",
        "bare step": f"{step * 1e-6:.1f} ms",
        "added": f"{switch * 1e-6:.2f} ms, agreement {median(agreements) * 1e-6:.2f} ms",
        "quartiles": f"{low:.2f} to {high:.2f}, median {middle:.2f} of a step",
        "goal": "at most half a step",
    }
