"""Four ranks on two pretended hosts compare hierarchical with flat allreduces: hierarchical_cases.py HALVES FOLDER."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from switch_ranks import become_ranks, engine_files
from torch import nn
from torch.nn.parallel import DistributedDataParallel

live, hierarchical = engine_files(sys.argv[1], "ddp_live", "hierarchical")
warnings.simplefilter("error", FutureWarning)
rank = become_ranks(4, sys.argv[2])
found = {}


def on_hosts(name: str, group=None):
    os.environ["SCALESCOPE_HOST"] = name
    return hierarchical.prepare(group)


found["why not"] = {
    "one host": on_hosts("a", dist.new_group()),
    "one rank each": on_hosts(f"host{rank}", dist.new_group()),
    "unequal": on_hosts(f"host{rank > 0}", dist.new_group()),
}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    os.environ["SCALESCOPE_HOST"] = "a"
    model, _ = live.wrap(nn.Linear(4, 4), list, {"hierarchical_allreduce": True, "first_bucket_mb": 2})
found["wrapped on one host"] = [live.current(model), [str(each.message) for each in caught]]
whole = dist.new_group()
groups = on_hosts(f"host{rank // 2}", whole)
found["shape"] = [groups.hosts, groups.ranks_per_host]
found["prepared once"] = hierarchical.prepare(whole) is groups and hierarchical.prepared(whole) is groups
dealt_out = dist.new_group()
in_turn = on_hosts(f"host{rank % 2}", dealt_out)

wrong = []
kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
for used in (groups, in_turn):
    for kind in kinds:
        for size in (0, 1, 2, 3, 7, 1000, 100_003):
            values = torch.arange(size).remainder(7).add(rank).to(kind)
            flat = values.clone()
            if size:
                dist.all_reduce(flat)
            used.allreduce(values)
            if not torch.equal(values, flat):
                wrong.append(f"{kind} {size}")
grid = torch.full((3, 5), float(rank))
groups.allreduce(grid)
found["wrong sums"] = wrong + ([] if torch.equal(grid, torch.full((3, 5), 6.0)) else ["grid"])


class Bucket:
    def __init__(self, values):
        self.values = values

    def buffer(self):
        return self.values


sizes = [(index * 7919) % 50_000 + 1 for index in range(40)]
on_their_way = [groups.hook(None, Bucket(torch.full((size,), float(rank + size)))) for size in sizes]
found["wrong means"] = [
    size
    for size, future in zip(reversed(sizes), reversed(on_their_way), strict=True)
    if not torch.equal(future.wait(), torch.full((size,), 1.5 + size))
]


def train(settings=(), **arguments):
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(33, 33, bias=False), nn.BatchNorm1d(33), nn.Tanh())]
    ddp = DistributedDataParallel(nn.Sequential(*layers), process_group=whole, **arguments)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.001)
    data = torch.Generator().manual_seed(rank)
    used = []
    for step in range(12):
        if settings and step % 4 == 2:
            live.switch(ddp, settings[step // 4 % len(settings)])
            used.append(live.current(ddp)["hierarchical_allreduce"])
        optimizer.zero_grad()
        ddp(torch.randn(8, 33, generator=data)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()]), used


on, small = {"hierarchical_allreduce": True}, {"bucket_cap_mb": 0.004}
errors, differing = {}, []
for name, arguments in {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
}.items():
    flat, _ = train(**arguments)
    for switching in ([on], [{**on, **small}], [on, {}, {**on, **small, "gradient_as_bucket_view": True}, small]):
        reduced, used = train(switching, **arguments)
        case = f"{name} {len(errors)} {used}"
        errors[case] = (reduced - flat).abs().max().item()
        of_rank_0 = reduced.clone()
        dist.broadcast(of_rank_0, 0)
        if not torch.equal(of_rank_0, reduced):
            differing.append(case)
found["errors"], found["ranks differ"] = errors, differing


def failing(_):
    raise OSError("planted")


def said(action) -> str:
    try:
        return str(action())
    except (RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"


doomed = dist.new_group()
broken = on_hosts(f"host{rank // 2}", doomed)
broken._reduce_across = failing
ddp = DistributedDataParallel(nn.Linear(4, 4), process_group=doomed)
live.switch(ddp, on)
found["failed backward"] = said(lambda: ddp(torch.ones(1, 4)).sum().backward())
found["failed allreduce"] = said(lambda: broken.allreduce(torch.ones(4)))

Path(sys.argv[2], f"rank{rank}.json").write_text(json.dumps(found))
dist.barrier()
sys.stdout.flush()
os._exit(0)  # torch's gloo threads abort now and then after this
