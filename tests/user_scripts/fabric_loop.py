"""Lightning Fabric: a loop of one's own, for `fabric run`, which names accelerator, devices and strategy."""

import lightning
import torch
from common import BATCH, dataset, network, save
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

fabric = lightning.Fabric()
model = network()
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
for inputs, labels in fabric.setup_dataloaders(DataLoader(dataset(), BATCH)):
    optimizer.zero_grad()
    fabric.backward(cross_entropy(model(inputs), labels))
    optimizer.step()
save(model)
