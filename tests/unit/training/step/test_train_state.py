"""Which epoch of a training is its best, and when patience ends it."""

from dataclasses import replace

import pytest

from preflight.contract.spec import Metric, TrainSpec
from training.step.train_state import EpochDone, TrainState

FIRST = EpochDone(
    epoch=1, loss=1.0, val_acc=0.90, val_loss=0.5, val_macro_f1=0.50, samples_per_s=1.0, seconds=1.0, train_seconds=1.0
)
SECOND = replace(FIRST, epoch=2, val_acc=0.88, val_macro_f1=0.60)
THIRD = replace(SECOND, epoch=3, val_loss=0.6)


@pytest.mark.parametrize(("metric", "best", "patient"), [("accuracy", 1, False), ("macro_f1", 2, True)])
def test_the_metric_decides_best_epoch_and_patience(metric: Metric, best: int, patient: bool) -> None:
    """Rare classes lift macro F1 while accuracy falls; of two epochs as good the one with the lower loss is better."""
    spec = TrainSpec(dataset="digits", model="cnn", epochs=9, patience=2, metric=metric)
    state = TrainState(steps=4, metric=metric, history=[FIRST, SECOND, THIRD])
    assert state.best_epoch == best
    assert state.is_finished(spec) is not patient


def test_without_validation_the_last_epoch_is_the_best() -> None:
    """Whatever the metric: none was measured."""
    bare = replace(FIRST, val_acc=None, val_loss=None, val_macro_f1=None)
    for metric in ("accuracy", "macro_f1"):
        assert TrainState(steps=4, metric=metric, history=[bare, replace(bare, epoch=2)]).best_epoch == 2
