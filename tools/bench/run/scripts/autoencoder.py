"""A convolutional autoencoder by Lightning, batch 64."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 2, 2), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1),
        )  # fmt: skip

    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.network(batch[0]), batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


loader = DataLoader(TensorDataset(torch.randn(4096, 1, 28, 28)), batch_size=64)
trainer = lightning.Trainer(
    max_steps=1_000_000, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Autoencoder(), loader)
