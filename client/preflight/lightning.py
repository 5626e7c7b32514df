"""Callback of Lightning: `Trainer(callbacks=[PreflightCallback()])` tunes the training to its container."""

import sys

from lightning.pytorch import Callback, LightningModule, Trainer

from preflight.launch.library import Tuner


class PreflightCallback(Callback):
    """Tunes threads and malloc while the trainer trains, and says at its end what was done."""

    def __init__(self, *, exact: bool = False, quiet: bool = False) -> None:
        """With `exact` nothing changes after the first step; `quiet` prints nothing."""
        self._exact = exact
        self._quiet = quiet
        self._tuner: Tuner | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's
        """Begin."""
        steps = trainer.estimated_stepping_batches
        self._tuner = Tuner(exact=self._exact, steps=int(steps) if 0 < steps < float("inf") else None)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's
        """Say what was done."""
        if self._tuner is not None and not self._quiet:
            sys.stderr.write(self._tuner.report() + "\n")
