"""torch.distributed's replicate, which makes a model data-parallel in place of wrapping it."""

import torch
import torch.distributed as dist
from common import batches, network, save
from torch.distributed._composable.replicate import replicate
from torch.nn.functional import cross_entropy

dist.init_process_group("gloo")
model = replicate(network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for inputs, labels in batches():
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()
save(model)
dist.destroy_process_group()
