"""Callback of Lightning: `Trainer(callbacks=[PreflightCallback()])` tunes the training to its container."""

import sys

from lightning.pytorch import Callback, LightningModule, Trainer

from preflight.launch.library import Tuner


class PreflightCallback(Callback):
    """Tunes threads and malloc while the trainer trains, and prints a report at its end."""

    def __init__(self, *, exact: bool = False, quiet: bool = False) -> None:
        """Prepare the callback; with `exact` nothing changes after the first step, with `quiet` nothing is printed."""
        self._exact = exact
        self._quiet = quiet
        self._tuner: Tuner | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's
        """Begin the tuning."""
        steps = trainer.estimated_stepping_batches
        self._tuner = Tuner(exact=self._exact, steps=int(steps) if 0 < steps < float("inf") else None)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's
        """Print the report."""
        if self._tuner is not None and not self._quiet:
            sys.stderr.write(self._tuner.report() + "\n")
