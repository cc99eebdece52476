"""Saves a rank's own gradients and what its engine made of all ranks': gradients.py LIVE_MODULE KNOBS FOLDER.

KNOBS are a list: one model after the other is wrapped with each of them.
"""

import copy
import importlib
import json
import os
import sys

import torch


def whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient.clone()


live = importlib.import_module(sys.argv[1])
saved = []
for knobs in json.loads(sys.argv[2]):
    if not saved:
        rank, size = live.start("cpu", knobs)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    alone = copy.deepcopy(model)
    wrapped, optimizer = live.wrap(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1), knobs)
    inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(rank))

    alone(inputs).square().mean().backward()
    wrapped(inputs).square().mean().backward()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    saved.append(
        {
            "size": size,
            "own": [parameter.grad for parameter in alone.parameters()],
            "engine": [whole(parameter.grad) for parameter in wrapped.parameters()],
        }
    )
torch.save(saved, f"{sys.argv[3]}/rank{rank}.pt")
live.finish()
os._exit(0)  # torch's gloo threads abort now and then after this
