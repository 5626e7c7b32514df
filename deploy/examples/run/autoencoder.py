"""Lightning: one line tunes it."""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from preflight.lightning import PreflightCallback


class Autoencoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(1, 16, 3, 2, padding=1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 2, 2))

    def training_step(self, batch, _):
        return nn.functional.mse_loss(self.network(batch[0]), batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
trainer = lightning.Trainer(
    max_steps=steps,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[PreflightCallback()],
)
trainer.fit(Autoencoder(), DataLoader(TensorDataset(torch.randn(1024, 1, 28, 28)), batch_size=32))
