"""LBFGS: the optimizer calls a closure that computes loss and gradients, several times per step."""

import torch
import torch.distributed as dist
from common import batches, network, save
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(network())
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=5)
for inputs, labels in batches():

    def closure(inputs=inputs, labels=labels):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)  # LBFGS decides by the loss when to stop: alike on all ranks
        return mean

    optimizer.step(closure)
save(model)
dist.destroy_process_group()
