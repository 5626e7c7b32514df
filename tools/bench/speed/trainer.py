"""A Lightning Trainer on the network of the recipe `fast`, with its optimizer, schedule and batch."""

import time
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.nn import functional as F

from preflight.contract.recipes import RECIPES
from tools.bench.speed.peers import accuracy, loaders
from training.data.dataset_store import PreparedDataset
from training.models.factory import build
from training.optim.schedule import learning_rate


class Module(LightningModule):
    """The network and its training."""

    def __init__(self, steps: int, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self._spec, self._steps = RECIPES["fast"], steps
        self.model = build(self._spec.model, shape, classes)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self.model(images), labels, label_smoothing=self._spec.label_smoothing)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        spec = self._spec
        optimizer = (
            torch.optim.SGD(self.parameters(), spec.learning_rate, spec.momentum, 0, spec.weight_decay, nesterov=True)
            if spec.optimizer == "sgd"
            else torch.optim.AdamW(self.parameters(), spec.learning_rate, weight_decay=spec.weight_decay)
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(spec, min(step, self._steps - 1), self._steps, self._steps)
            / spec.learning_rate
        )  # fmt: skip
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def trainer(store: PreparedDataset, target: float, epochs: int) -> dict[str, float]:
    """Train for one epoch, if that is not enough again for two, and so on; return the figures of the last training.

    The schedule falls to 0 at the end, so that each length is a separate training.
    """
    warnings.filterwarnings("ignore", module="lightning")
    found, seconds, epoch = 0.0, 0.0, 0
    while found < target and epoch < epochs:
        epoch += 1
        train, test = loaders(store, RECIPES["fast"].batch_size)
        module = Module(epoch * len(train), store.info.shape, store.info.classes)
        began = time.perf_counter()
        Trainer(
            max_epochs=epoch, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, train)  # fmt: skip
        found = accuracy(module.model, test)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "accuracy": found, "epochs": epoch}
