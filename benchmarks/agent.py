"""What the agent and a search add to a training: hooks on and off in blocks by turns, and what a switch takes."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import psutil

from benchmarks.shared import LONGEST_S, Unfinished
from scalescope.jobs.plan import AGENT_HOOK
from scalescope.measurement.sweep import measure
from scalescope.progress import Progress
from scalescope.records.request import MeasureRequest
from scalescope.stats import FEWEST, MEASURED, of_values, percent
from scalescope.steady import step_times

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
LOOP = """
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


def agent() -> list[dict[str, Any]]:
    """One row per loop of one process."""
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
        bare, watched = _printed(LOOP.format(loop=loop, watch=WATCH), folder, SCALESCOPE_SINCE_NS="1").split()
    return float(bare), float(watched)


def _printed(code: str, folder: str, **asked: str) -> str:
    """What a script prints that has the agent in it."""
    words = [sys.executable, "-c", code, folder]
    return subprocess.run(words, env=_environment(folder, **asked), capture_output=True, text=True, check=True).stdout


def _environment(folder: str, **asked: str) -> dict[str, str]:
    agent = {"SCALESCOPE_FOLDER": folder, "PYTHONPATH": str(AGENT_HOOK), **asked}
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **agent}


FOLDER = Path("results") / "bench" / "overhead"
LAUNCHES, PAIRS, STEPS = 20, 200, 10
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


def overhead() -> list[dict[str, Any]]:
    """The launches that are not there yet; those of an interrupted run are kept."""
    began = time.monotonic()
    for number in range(LAUNCHES):
        folder = FOLDER / f"launch{number:02d}"
        if not (folder / "done.json").exists():
            if time.monotonic() - began > LONGEST_S:
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
        [sys.executable, "-m", "benchmarks.agent", str(folder.absolute()), str(PAIRS), str(STEPS)]
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


SEARCHES = 6
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


def tune_hook() -> list[dict[str, Any]]:
    """What the hooks add to a step with and without a search, then one row of switches per model."""
    found = [_hooks() for _ in range(SEARCHES)]
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


def _direct(folder: str, number: int, **directive: Any) -> None:
    Path(folder, f"directive-{number:05d}.json").write_text(json.dumps({"id": number, **directive}))


def _hooks() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        _direct(folder, 0, kind="sample", values={}, discard=0, steps=10**9)
        steps: dict[str, float] = json.loads(_printed(HOOKS, folder, SCALESCOPE_TUNE="1"))
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
        around = _environment(folder, SCALESCOPE_TUNE="1")
        ranks = [subprocess.Popen(words, env={**around, "RANK": str(rank)}) for rank in (0, 1)]
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


# Collectives as rank 0 of 8 in interleaved blocks, recorded and not; those of FSDP2 have the frames of real ones.
RECORDED = """
import gc, json, sys, time, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
dist.init_process_group("gloo")
(recording,) = (each for each in gc.get_objects() if type(each).__name__ == "Recording")
one, own, whole = torch.ones(1), torch.ones(64), torch.ones(8 * 64)
model = fully_shard(torch.nn.Linear(64, 64))
model(own)
def gather():
    model.unshard(); model.reshard()
calls = {
    "all_reduce of a number": lambda: dist.all_reduce(one),
    "broadcast": lambda: dist.broadcast(one, 0),
    "all_gather": lambda: dist.all_gather_single(whole, own),
    "barrier": lambda: dist.barrier(),
    "unshard of FSDP2": gather,
}
for name, call in calls.items():
    times = {True: [], False: []}
    for turn in range(60):
        for wanted in (turn % 2 == 0, turn % 2 == 1):
            if wanted:
                recording.begin()
            for _ in range(5):
                call()
            started = time.perf_counter()
            for _ in range(50):
                call()
            times[wanted].append((time.perf_counter() - started) / 50 * 1e6)
            if wanted:
                recording.end()
    print(json.dumps([name, *(sorted(times[wanted])[15] for wanted in (False, True))]))
"""  # The lower quartile, as above


def recorded() -> list[dict[str, Any]]:
    """One row per collective of rank 0 of 8."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(PROCESSES):
        with tempfile.TemporaryDirectory() as folder:
            lines = _printed(RECORDED, folder, SCALESCOPE_RANK_ZERO="8:8:1").splitlines()
        for line in lines:
            name, bare, watched = json.loads(line)
            found.setdefault(name, []).append((bare, watched))
    return [
        {
            "collective": name,
            "not recorded, us": median(bare for bare, _ in pairs),
            "recorded, us": median(watched for _, watched in pairs),
            "added, us": median(watched - bare for bare, watched in pairs),
            "largest, us": max(watched - bare for bare, watched in pairs),
            "goal, us": "at most 30",
        }
        for name, pairs in found.items()
    ]


if __name__ == "__main__":
    _measured(Path(sys.argv[1]), *sys.argv[2:])
