"""Ignite: a supervised trainer, with the model, the optimizer and the data adapted by ignite.distributed.

With a number as second argument it starts as many ranks itself.
"""

import sys

import ignite.distributed as idist
import torch
from common import BATCH, STEPS, dataset, network, save
from ignite.engine import create_supervised_trainer
from torch import nn


def training(_: int) -> None:
    model = idist.auto_model(network())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    loader = idist.auto_dataloader(dataset(STEPS * BATCH), batch_size=2 * BATCH, shuffle=True)
    create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss()).run(loader, max_epochs=2)
    save(model)


if __name__ == "__main__":
    ranks_to_start = int(sys.argv[2]) if len(sys.argv) > 2 else None
    with idist.Parallel(backend="gloo", nproc_per_node=ranks_to_start) as parallel:
        parallel.run(training)
