"""Hook: joins the tuning to a training by torch's public hook after optimizer steps; its code stays as it is."""

import atexit
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .journal import Journal, Options
from .laps import LapClock
from .training import Imported, Training

if TYPE_CHECKING:
    import torch

CHOOSE_CALLS: Final = 24
"""Calls of several optimizers after which the one that steps most seldom marks the steps, as in a GAN."""
SILENT_CALLS: Final = 64
"""Calls of others after which an optimizer that no longer steps does not mark them any more."""


class TrainingHook:
    """Times the optimizer steps of this process, tunes it, and keeps a journal."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        """Write the journal into `folder`; `variables` are those of the environment."""
        self._folder = folder
        self._variables = variables  # and no copy: a script may set WORLD_SIZE itself
        self.options = Options.read(folder / "options.json")
        self.imported = Imported.look()
        self._training: Training | None = None
        self.handles: Sequence[torch.utils.hooks.RemovableHandle] = ()
        self.forget()

    def forget(self) -> None:
        """Begin again, in a child that was forked: only where it makes optimizer steps itself is it a training."""
        if self._training is not None:
            self._training.knobs.release()
        self._lead = 0
        """id() of the optimizer whose steps are counted; 0: there was none yet."""
        self._lead_alive: Callable[[], object] = lambda: self
        self._calls: dict[int, int] = {}
        self._silent = 0
        self._has_begun = False
        self._clock = LapClock()
        self._training = None
        self._is_off = False

    def before_step(self, optimizer: "torch.optim.Optimizer") -> None:
        """Note that a step begins."""
        if id(optimizer) == self._lead:
            self._has_begun = True

    def on_step(self, optimizer: "torch.optim.Optimizer") -> None:
        """Count a step."""
        if id(optimizer) != self._lead:
            if not self._takes(optimizer):
                return
        elif not self._has_begun:  # it called the step of its base class, which was counted
            return
        self._has_begun = False
        lap = self._clock.tick()
        if lap is not None and self._training is not None:
            try:
                self._training.end_lap(lap)
            except Exception as error:  # a training never ends for its tuning
                self._give_up(error)
            self._silent = 0
            self._clock.begin()

    def finish(self) -> None:
        """Write the last summary, at the end of the process."""
        if self._training is not None:
            with suppress(Exception, KeyboardInterrupt):
                self._training.summarize(ended=True, pending=self._clock.pending)
                if not hasattr(sys, "last_value"):  # which an error or Ctrl-C leaves that ended the script
                    self._training.advise()

    def leave(self) -> None:
        """End the tuning, with the script's own threads: another tuner follows."""
        self.finish()
        for handle in self.handles:
            handle.remove()
        if self._training is not None:
            self._training.leave()
        self._training = None

    def _takes(self, optimizer: "torch.optim.Optimizer") -> bool:
        """Whether the step of another optimizer than before is one that counts."""
        if self._is_off:
            return False
        mine = id(optimizer)
        self._calls[mine] = self._calls.get(mine, 0) + 1
        if not self._lead:
            self._lead, self._lead_alive = mine, weakref.ref(optimizer)
            if multiprocessing.parent_process() is not None:
                # Its forked children end by os._exit. This is the one way there, and has no public name.
                Finalize(None, self.finish, exitpriority=0)
                atexit.unregister(self.finish)  # which spawned ones call, too
            try:
                self._training = Training(self._folder, self._variables, self.options, optimizer)
                self._training.begin(self.imported)
            except Exception as error:  # as above
                self._give_up(error)
            self._clock.begin()
            return False
        self._silent += 1
        training = self._training
        if training is None:
            return False
        if self._lead_alive() is None:  # a script that makes a new optimizer for each epoch or fold
            self._lead, self._lead_alive = mine, weakref.ref(optimizer)
            return True
        is_rarer = self._calls[mine] == CHOOSE_CALLS and training.steps > 2 * CHOOSE_CALLS
        if is_rarer or (self._silent > SILENT_CALLS and training.is_stale()):
            self._lead, self._lead_alive, self._silent = mine, weakref.ref(optimizer), 0
            self._clock.begin()
        return False

    def _give_up(self, error: Exception) -> None:
        """Stop tuning after an error in it; the training continues with the settings that it has."""
        self._is_off, self._lead = True, -1
        journal = Journal(self._folder / f"{os.getpid()}.jsonl")
        journal.write("failed", message=f"{type(error).__name__}: {error}")


def install(folder: Path, variables: Mapping[str, str]) -> TrainingHook:
    """Join the tuning to all optimizers of this process; torch has been imported."""
    from torch.compiler import is_compiling
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    hook = TrainingHook(folder, variables)
    interop = hook.options.interop
    if interop is not None:
        _set_interop(interop, hook.imported.interop)
    before, after = hook.before_step, hook.on_step

    def before_step(optimizer: "torch.optim.Optimizer", args: object, kwargs: object) -> None:  # noqa: ARG001 - torch's
        if not is_compiling():
            before(optimizer)

    def after_step(optimizer: "torch.optim.Optimizer", args: object, kwargs: object) -> None:  # noqa: ARG001 - torch's
        if not is_compiling():  # a step inside torch.compile: nothing may be timed while it is traced
            after(optimizer)

    hook.handles = register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)
    os.register_at_fork(after_in_child=hook.forget)
    atexit.register(hook.finish)
    return hook


def _set_interop(count: int, at_import: int) -> None:
    """Set the inter-op threads before the first forward pass, for which a script that sets them does so before."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    def set_once(module: "torch.nn.Module", args: object) -> None:  # noqa: ARG001 - torch's
        handle.remove()
        if torch.get_num_interop_threads() == at_import:
            with suppress(RuntimeError):  # they run already
                torch.set_num_interop_threads(count)

    handle = register_module_forward_pre_hook(set_once)
