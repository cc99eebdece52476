"""Gradients are views of one flat buffer, which is cleared and clipped as a whole."""

import torch
import torch.distributed as dist
from common import batches, network, save
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
parameters = list(model.parameters())
gradients = torch.zeros(sum(parameter.numel() for parameter in parameters))
for parameter, part in zip(parameters, gradients.split([each.numel() for each in parameters]), strict=True):
    parameter.grad = part.view_as(parameter)
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
for inputs, labels in batches():
    gradients.zero_()
    cross_entropy(model(inputs), labels).backward()
    gradients.mul_(torch.clamp(1 / (gradients.norm() + 1e-6), max=1))
    optimizer.step()
save(model)
dist.destroy_process_group()
