"""A GradScaler whose scale overflows again and again, so that it skips every fifth step."""

import torch
import torch.distributed as dist
from common import batches, network, save
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=4)
for inputs, labels in batches(60):
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs), labels, reduction="sum")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
save(model)
dist.destroy_process_group()
