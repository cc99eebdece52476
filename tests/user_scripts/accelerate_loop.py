"""Accelerate: a loop of one's own, with model, optimizer and data prepared by an Accelerator."""

import torch
from accelerate import Accelerator
from common import BATCH, dataset, network, save
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(dataset(), BATCH))
for inputs, labels in batches:
    optimizer.zero_grad()
    accelerator.backward(cross_entropy(model(inputs), labels))
    optimizer.step()
save(accelerator.unwrap_model(model))
accelerator.end_training()
