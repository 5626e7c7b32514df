"""Windows of training steps: their speed and loss, from which progress is reported and the plan tuned."""

import math
import time
from collections.abc import Sequence
from typing import Final

import torch
from pydantic import JsonValue
from torch import Tensor

from preflight.contract.spec import TrainSpec
from training.step.train_state import TrainState, divergence_error
from training.step.train_step import TrainStep

WINDOW_SECONDS: Final = 0.5
"""Length of a window."""
RARER_AFTER: Final = 2.5
"""Seconds of training after which a progress report spans one window more, so that reports stay cheap."""
MOST_WINDOWS: Final = 4
"""Windows of a progress report, at most."""


class Window:
    """Speed since the last window, and loss since the last report; the loss is read only for a report."""

    def __init__(self, step: TrainStep, state: TrainState, started: float) -> None:
        """Start with the remaining steps of an epoch; the process started training at `started`."""
        self.state = state
        self._spec = step.spec
        self._judges = step.group.leads
        """Whether a loss that is not finite ends the training here: a member that ended first would hide why."""
        self._losses: list[Tensor] = []
        """Losses of the steps since they were read last, each where it was computed."""
        self._loss_before, self._first = state.loss, state.step
        self._seconds_before = state.seconds
        self._started = started
        self._entered = self._began = self._reported = self._stepped = time.perf_counter()
        self._windows = 0
        """Windows since the last report."""
        self._steps: list[float] = []
        self.step_seconds: Sequence[float] = ()
        """Seconds of each step of the window that was closed last."""
        self.seconds = 0.0
        """Seconds of all of that window."""

    def add(self, loss: Tensor) -> None:
        """Count one step's mean loss."""
        self._losses.append(loss)
        self.state.step += 1
        now = time.perf_counter()
        self._steps.append(now - self._stepped)
        self._stepped = now

    def due(self) -> bool:
        """Whether the window is over after the step just counted."""
        return self._epoch_is_over() or time.perf_counter() - self._began >= WINDOW_SECONDS

    def close(self) -> None:
        """End the window, and start the next."""
        now = time.perf_counter()
        self.seconds, self.step_seconds = now - self._began, self._steps
        self._began, self._steps = now, []
        self._windows += 1

    def report_due(self) -> bool:
        """Whether to report the windows since the last report."""
        windows = min(1 + (self._began - self._started) // RARER_AFTER, MOST_WINDOWS)
        return self._epoch_is_over() or self._windows >= windows

    def report(self, hits: int) -> dict[str, JsonValue]:
        """Return the figures of the steps since the last report, `hits` of their samples correct.

        Raises:
            Diverged: as `sync_loss`.
        """
        state, now = self.sync_loss(), self._began
        steps, seconds, loss = state.step - self._first, now - self._reported, state.loss - self._loss_before
        self._loss_before, self._first, self._reported, self._windows = state.loss, state.step, now, 0
        return {
            "epoch": state.epoch + 1,
            "epochs": state.total_epochs(self._spec),
            "step": state.step,
            "steps": state.epoch_steps,
            "train_steps": state.position,
            "loss": loss / steps,
            "accuracy": hits / (steps * self._spec.batch_size),
            "samples_per_s": steps * self._spec.batch_size / seconds,
            "eta_s": (state.total_steps(self._spec) - state.position) * seconds / steps,
        }

    def sync_loss(self) -> TrainState:
        """Bring loss and seconds of the state up to date, and return it.

        Raises:
            Diverged: the loss is no longer finite; in a group, the leader alone raises it.
        """
        state = self.state
        if self._losses:
            # One sum, step by step, whatever the windows and checkpoints: the epoch's loss depends on neither.
            for loss in torch.stack(self._losses).tolist():  # sum() would round otherwise from Python 3.12 on
                state.loss += loss
            self._losses.clear()
        state.seconds = self._seconds_before + time.perf_counter() - self._entered
        if self._judges:
            require_finite("training", state.loss, state.position, self._spec)
        return state

    def _epoch_is_over(self) -> bool:
        return self.state.step == self.state.epoch_steps


def require_finite(which: str, loss: float, steps: int, spec: TrainSpec) -> None:
    """Raise `Diverged` for a loss that is NaN or infinite after `steps` steps."""
    if not math.isfinite(loss):
        raise divergence_error(f"the {which} loss is {loss}", steps, spec)
