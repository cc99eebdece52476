"""Rank 0 alone trains a linear probe on the features, with an optimizer of its own, every fifth step."""

import torch
import torch.distributed as dist
from common import CLASSES, WIDTH, batches, network, save
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
probe = nn.Linear(WIDTH, CLASSES)
probe_optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
for step, (inputs, labels) in enumerate(batches()):
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % 5 == 0:
        with torch.no_grad():
            features = model.module[:4](inputs)
        probe_optimizer.zero_grad()
        cross_entropy(probe(features), labels).backward()
        probe_optimizer.step()
save(nn.ModuleList([model, probe]))
dist.destroy_process_group()
