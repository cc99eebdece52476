"""Lightning with automatic optimization: the Trainer passes forward and backward to the optimizer as a closure."""

import lightning
import torch
from common import BATCH, STEPS, dataset, network, save
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch, _):
        inputs, labels = batch
        return cross_entropy(self.network(inputs), labels)

    def validation_step(self, batch, _):
        inputs, labels = batch
        self.log("loss", cross_entropy(self.network(inputs), labels), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
model = Classifier()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
training_loader = DataLoader(dataset(STEPS * BATCH), BATCH, shuffle=True)
trainer.fit(model, training_loader, DataLoader(dataset(8 * BATCH), BATCH))
save(model)
