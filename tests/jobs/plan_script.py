"""Trains in one of several ways; of ranks that exist it writes the collectives of a step, as the profiler saw them.

`plan_script.py MODE` trains on and on; `plan_script.py FILE MODE...` makes five steps of every mode, profiles the last.
"""

import contextlib
import json
import math
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

NAMES = {
    "allreduce_": "all_reduce",
    "broadcast_": "broadcast",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
}
DTYPES = {"float": "float32", "long int": "int64", "int": "int32", "unsigned char": "uint8"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(3))
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        hidden = self.embedding(x).mean(1)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return self.head(self.norm(hidden))


def made(mode):
    """The model, how passes before the last of a step go, and the ranks of the groups that it uses."""
    size, net = dist.get_world_size(), Net()
    if mode.startswith("ddp"):
        model = DistributedDataParallel(net, bucket_cap_mb=0.1)
        return model, model.no_sync, [list(range(size))]
    shape = (2, size // 2) if mode == "hsdp" else (size,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    model = fully_shard(net, mesh=mesh)

    @contextlib.contextmanager
    def no_sync():
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    return model, no_sync, [dist.get_process_group_ranks(mesh.get_group(at)) for at in range(len(shape))]


def stepper(mode):
    model, no_sync, groups = made(mode)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        for at in range(3 if mode.endswith("accumulate") else 1):
            last = at == 2 or not mode.endswith("accumulate")
            with contextlib.nullcontext() if last else no_sync():
                loss = nn.functional.cross_entropy(model(torch.randint(0, 50, (8, 12))), torch.randint(0, 10, (8,)))
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        seen = loss.detach().clone()
        dist.all_reduce(seen)
        assert seen.isfinite()
        optimizer.step()
        optimizer.zero_grad()

    return step, groups


def elements(shape):
    """Of a tensor, or of all in a list."""
    if shape and isinstance(shape[0], list):
        return sum(map(elements, shape))
    return math.prod(shape)


def plan(trace):
    """Name and elements of every collective in the order of calls; elements and dtype of what gloo sent."""
    events = json.loads(Path(trace).read_text())["traceEvents"]
    calls, sent = [], []
    for event in sorted((each for each in events if each.get("ph") == "X"), key=lambda each: each["ts"]):
        kind, _, name = str(event["name"]).rpartition(":")
        if kind == "c10d:" and name in NAMES:
            shapes = event["args"]["Input Dims"]
            whole = max(map(elements, shapes[:2])) if name.startswith("_") else elements(shapes[0])
            calls.append([NAMES[name], whole])
        elif kind == "gloo":
            sent.append([elements(event["args"]["Input Dims"][0]), DTYPES[event["args"]["Input type"][0]]])
    return {"calls": calls, "sent": sorted(sent)}


torch.manual_seed(0)
dist.init_process_group("gloo")
if len(sys.argv) == 2:
    step, _ = stepper(sys.argv[1])
    while True:
        step()
results = {}
for mode in sys.argv[2:]:
    step, groups = stepper(mode)
    for _ in range(4):
        step()
    with torch.profiler.profile(record_shapes=True) as profile:
        step()
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        profile.export_chrome_trace(trace.name)
        results[mode] = {**plan(trace.name), "groups": groups}
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps(results))
dist.barrier()
dist.destroy_process_group()
