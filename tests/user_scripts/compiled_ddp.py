"""A compiled DistributedDataParallel model."""

import torch
import torch.distributed as dist
from common import batches, network, save
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for inputs, labels in batches():
    optimizer.zero_grad()
    cross_entropy(compiled(inputs), labels).backward()
    optimizer.step()
save(model)
dist.destroy_process_group()
