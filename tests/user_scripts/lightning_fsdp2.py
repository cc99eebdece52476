"""Lightning's strategy for FSDP2: the model shards itself in configure_model."""

import sys
from pathlib import Path

import lightning
import torch
from common import BATCH, STEPS, dataset, network
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        for layer in self.network:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.network, mesh=mesh)

    def training_step(self, batch, _):
        inputs, labels = batch
        return cross_entropy(self.network(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
model = Classifier()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(model, DataLoader(dataset(STEPS * BATCH), BATCH, shuffle=True))
whole = {name: values.full_tensor() for name, values in model.network.state_dict().items()}
torch.save(whole, Path(sys.argv[1]) / f"rank{trainer.global_rank}.pt")
