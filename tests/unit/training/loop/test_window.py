"""Windows of training steps."""

import math
import time

import pytest
import torch

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import Diverged
from training.group import Alone
from training.loop.window import Window
from training.step.train_state import TrainState
from training.step.train_step import TrainStep


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize("leads", [True, False])
def test_the_leader_says_that_a_training_diverged(leads: bool) -> None:
    """A member that ended first, as its windows are its own, would leave the leader short of a rank."""
    step = TrainStep(TrainSpec(dataset="digits", model="cnn"), Plan(threads=1, micro_batch=64), (1, 28, 28), 10)
    step.group = Alone()
    step.group.leads = leads
    window = Window(step, TrainState(steps=4), time.perf_counter())
    window.add(torch.tensor(math.nan))
    if leads:
        with pytest.raises(Diverged, match="training loss is nan after step 1"):
            window.sync_loss()
    else:
        assert math.isnan(window.sync_loss().loss)
