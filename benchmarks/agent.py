"""What the agent adds to a step: the same small loop with its hooks and without them, in turns within one process."""

import os
import subprocess
import sys
import tempfile
from statistics import median, quantiles
from typing import Any

from scalescope.jobs.plan import AGENT_HOOK

PROCESSES = 8
LOOPS = {
    "model only": """
x = torch.ones(4, 2)
def block(n):
    for _ in range(n):
        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
""",
    "with a loader": """
data = torch.utils.data.DataLoader(torch.ones(100_000, 4, 2), batch_size=None)
batches = iter(data)
def block(n):
    for _, x in zip(range(n), batches):
        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
""",
}
# Lets the agent of this process watch, or takes its hooks away for a while.
WATCH = """
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterator
hooks = [
    optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks, modules._global_forward_pre_hooks
]
aside = [dict() for _ in hooks]
fetch = Iterator.__next__
def watch(wanted):
    for each, kept in zip(hooks, aside):
        if wanted:
            each.update(kept)
            kept.clear()
        elif each:
            kept.update(each)
            each.clear()
    Iterator.__next__ = fetch if wanted else fetch.__wrapped__
"""
SCRIPT = """
import sys, time, torch
assert "scalescope_agent" in sys.modules
torch.set_num_threads(1)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
{loop}
{watch}
block(2000)
times = {{True: [], False: []}}
for turn in range(120):
    for wanted in (turn % 2 == 0, turn % 2 == 1):
        watch(wanted)
        block(10)
        started = time.perf_counter(); block(200); times[wanted].append((time.perf_counter() - started) / 200 * 1e6)
quarter = {{wanted: sorted(each)[len(each) // 4] for wanted, each in times.items()}}
print(quarter[False], quarter[True])
"""  # The lower quartile of 120 blocks of 200 steps: blocks that another process disturbed do not count


def run() -> list[dict[str, Any]]:
    rows = []
    for name, loop in LOOPS.items():
        pairs = [_bare_and_watched_us(loop) for _ in range(PROCESSES)]
        added = [watched - bare for bare, watched in pairs]
        low, _, high = quantiles(added, n=4)
        rows.append(
            {
                "loop": name,
                "bare step, us": median(bare for bare, _ in pairs),
                "with the agent, us": median(watched for _, watched in pairs),
                "added, us": median(added),
                "quartiles, us": f"{low:.2f} to {high:.2f}",
                "goal, us": "at most 5",
            }
        )
    return rows


def _bare_and_watched_us(loop: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        agent = {"SCALESCOPE_FOLDER": folder, "PYTHONPATH": str(AGENT_HOOK), "SCALESCOPE_SINCE_NS": "1"}
        words = [sys.executable, "-c", SCRIPT.format(loop=loop, watch=WATCH)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", **agent}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    bare, watched = done.stdout.split()
    return float(bare), float(watched)
