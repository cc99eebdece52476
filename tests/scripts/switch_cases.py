"""Trains small models with DDP, plain and with knobs that change on the way: switch_cases.py HALVES FOLDER."""

import itertools
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from switch_ranks import become_ranks, engine_files
from torch import nn
from torch.nn.parallel import DistributedDataParallel

live, refusals = engine_files(sys.argv[1], "ddp_live", "ddp_refusal_live")
rank = become_ranks(2, sys.argv[2])
found = {}
SETTINGS = ({"bucket_cap_mb": 0.002}, {"first_bucket_mb": 0.001}, {}, {"bucket_cap_mb": 0.01, "first_bucket_mb": 0.05})


def perceptron() -> nn.Module:
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(24, 24), nn.Tanh())])


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 24)), nn.Conv1d(1, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(176, 24)
    )


def partly_frozen() -> nn.Module:
    model = perceptron()
    model[2].weight.requires_grad_(False)
    model[4].weight.requires_grad_(False)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["4.weight", "6.bias"])
    model[6].bias.requires_grad_(False)
    return model


def train(make=perceptron, settings=(), *, hook=None, to_none=True, accumulate=1, steps=18, seen=None, **arguments):
    """Parameters, buffers and losses of a training; the knobs change after every third step."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(make(), **arguments)
    if hook:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    losses, upcoming = [], itertools.cycle(settings)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        turns = accumulate if step else 1  # a static graph starts with an exchange
        for turn in range(turns):
            ddp.require_backward_grad_sync = turn == turns - 1
            loss = ddp(torch.randn(4, 24, generator=data)).square().mean()
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        if settings and step % 3 == 2:
            live.switch(ddp, next(upcoming))
            if seen is not None:
                seen.append(live.current(ddp))
    return [*(tensor.clone() for tensor in ddp.state_dict().values()), torch.stack(losses)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def alone(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


equal = {}
for view, static, to_none, flip in itertools.product((False, True), repeat=4):
    if static and flip and not to_none:
        continue
    options = {"gradient_as_bucket_view": view, "static_graph": static, "to_none": to_none}
    settings = [
        {**setting, "gradient_as_bucket_view": view != (flip and at % 2 == 0)} for at, setting in enumerate(SETTINGS)
    ]
    equal[f"view {view} static {static} none {to_none} flip {flip}"] = same(
        train(**options), train(settings=settings, **options)
    )
for name, options in {
    "accumulation": {"accumulate": 3},
    "accumulation in views": {"accumulate": 3, "gradient_as_bucket_view": True, "to_none": False},
    "accumulation on a static graph": {"accumulate": 3, "static_graph": True},
    "batch normalisation": {"make": convolution},
    "frozen and ignored parameters": {"make": partly_frozen},
}.items():
    settings = [*SETTINGS, {"gradient_as_bucket_view": True}]
    equal[name] = same(train(**options), train(settings=settings, **options))
found["equal"] = equal
found["differs without exchange"] = not same(train(), train(hook=alone))


sizes = []


def own_hook(_, bucket):
    sizes.append(bucket.buffer().numel() * 4)
    return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda done: done.value()[0])


def layout(setting, first=None) -> list[int]:
    """Bytes of the buckets of a step, with the knobs given to DDP or changed later."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(perceptron(), **(first or {}))
    ddp.register_comm_hook(None, own_hook)
    for step in range(5):
        if step == 2:
            live.switch(ddp, setting)
        sizes.clear()
        ddp(torch.ones(1, 24)).sum().backward()
    return list(sizes)


found["layouts"] = {json.dumps(setting): layout(setting) for setting in SETTINGS}
found["layouts at once"] = {
    json.dumps({"bucket_cap_mb": cap}): layout({}, {"bucket_cap_mb": cap}) for cap in (0.002, 0.004)
}
found["layouts"][json.dumps({"bucket_cap_mb": 0.004})] = layout({"bucket_cap_mb": 0.004})
found["own hook"] = same(train(hook=own_hook), train(settings=SETTINGS, hook=own_hook))

seen = []
train(settings=SETTINGS, seen=seen, steps=12, gradient_as_bucket_view=True)
found["seen"] = seen


def said(action, *arguments) -> str:
    try:
        return str(action(*arguments))
    except ValueError as error:
        return str(error)


def wrapped(module=None, hook=None, state=None, **arguments):
    ddp = DistributedDataParallel(module or perceptron(), **arguments)
    if hook:
        ddp.register_comm_hook(state, hook)
    return ddp


thawed = wrapped(partly_frozen())
thawed.module[2].weight.requires_grad_(True)
built_in = wrapped()
built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
compiled = wrapped()
compiled.module.compile()
found["refused"] = {
    "plain": refusals.refusal(wrapped()),
    "own hook": refusals.refusal(wrapped(hook=own_hook)),
    "not DDP": refusals.refusal(perceptron()),
    "unused": refusals.refusal(wrapped(find_unused_parameters=True)),
    "state": refusals.refusal(wrapped(hook=own_hook, state={})),
    "thawed": refusals.refusal(thawed),
    "built in": refusals.refusal(built_in),
    "compiled": refusals.refusal(compiled),
    "switch": said(live.switch, wrapped(find_unused_parameters=True), {"bucket_cap_mb": 1}),
    "static graph": said(live.switch, wrapped(), {"static_graph": True}),
    "hierarchy with own hook": said(live.switch, wrapped(hook=own_hook), {"hierarchical_allreduce": True}),
    "hierarchy not prepared": said(live.switch, wrapped(), {"hierarchical_allreduce": True}),
    "sparse": refusals.fixed(wrapped(nn.Embedding(4, 4, sparse=True)))["hierarchical_allreduce"],
}
knobs = {"bucket_cap_mb": 4, "first_bucket_mb": 0.5, "gradient_as_bucket_view": True, "hierarchical_allreduce": False}
found["wrapped"] = live.current(live.wrap(perceptron(), list, knobs)[0])
found["has scalescope"] = "scalescope" in sys.modules

Path(sys.argv[2], f"rank{rank}.json").write_text(json.dumps(found))
dist.barrier()
sys.stdout.flush()
os._exit(0)  # torch's gloo threads abort now and then after this
