"""Callback of Transformers: `Trainer(..., callbacks=[PreflightCallback()])` tunes the training to its container."""

import sys

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from preflight.launch.library import Tuner


class PreflightCallback(TrainerCallback):
    """Tunes threads and malloc while the trainer trains, and prints a report at its end."""

    def __init__(self, *, exact: bool = False, quiet: bool = False) -> None:
        """Prepare the callback; with `exact` nothing changes after the first step, with `quiet` nothing is printed."""
        self._exact = exact
        self._quiet = quiet
        self._tuner: Tuner | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002 - Transformers'
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **others: object,  # noqa: ARG002
    ) -> None:
        """Begin the tuning."""
        self._tuner = Tuner(exact=self._exact, steps=state.max_steps if state.max_steps > 0 else None)

    def on_train_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        **others: object,  # noqa: ARG002
    ) -> None:
        """Print the report."""
        if self._tuner is not None and not self._quiet:
            sys.stderr.write(self._tuner.report() + "\n")
