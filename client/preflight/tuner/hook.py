"""Hook: joins the tuning to a training by torch's public hook after optimizer steps; its code stays as it is."""

import atexit
import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..container.resources import status_sizes
from ..statistics import mean_step, step_interval
from .journal import Journal
from .laps import Lap, LapClock
from .race import Steps
from .settings import Knobs, Settings, explain_fixed_malloc
from .surroundings import Container
from .tuning import Limits, Tuning
from .workload import Workload, explain_untunable, is_compiled, look_at

if TYPE_CHECKING:
    import torch

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""With either the user has chosen the number of threads."""
TELL_SECONDS: Final = 2.0
"""Between two summaries in the journal: what is left of a process that is killed."""
CHOOSE_CALLS: Final = 24
"""Calls of several optimizers after which the one that steps most seldom marks the steps, as in a GAN."""
SILENT_CALLS: Final = 64
"""Calls of others after which an optimizer that no longer steps does not mark them any more."""
PREDICT_SECONDS: Final = 5.0
"""Of steps with the settings that won, before the end is predicted."""
FIGHTS: Final = 2
"""Times that the script sets its threads again after a change, until they are left to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command was asked for."""

    exact: bool = False
    """Change nothing after the first step."""
    steps: int | None = None
    """Optimizer steps of the whole training."""

    @classmethod
    def read(cls, path: Path) -> "Options":
        """Return the options in a file of JSON; the defaults where it cannot be read."""
        with suppress(OSError, ValueError, AttributeError):
            found = json.loads(path.read_text())
            steps = found.get("steps")
            return cls(exact=found.get("exact") is True, steps=steps if isinstance(steps, int) else None)
        return cls()


class TrainingHook:
    """Times the optimizer steps of this process, tunes it, and keeps a journal."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        """Write the journal into `folder`; `variables` are those of the environment."""
        self._folder = folder
        self._variables = variables  # and no copy: a script may set WORLD_SIZE itself
        self._options = Options.read(folder / "options.json")
        self._threads_at_import = _torch_threads()
        self._base_bytes = status_sizes()["VmRSS"]
        self.forget()

    def forget(self) -> None:
        """Begin again, in a child that was forked: only where it makes optimizer steps itself is it a training."""
        self._lead = 0
        """id() of the optimizer whose steps are counted; 0: there was none yet."""
        self._calls: dict[int, int] = {}
        self._silent = 0
        self._clock = LapClock()
        self._training: _Training | None = None
        self._is_off = False

    def on_step(self, optimizer: "torch.optim.Optimizer", args: object, kwargs: object) -> None:  # noqa: ARG002 - torch's
        """Count a step."""
        if id(optimizer) != self._lead and not self._takes(optimizer):
            return
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
            with suppress(Exception):
                self._training.summarize(ended=True, pending=self._clock.pending)

    def _takes(self, optimizer: "torch.optim.Optimizer") -> bool:
        """Whether the step of another optimizer than before is one that counts."""
        if self._is_off:
            return False
        mine = id(optimizer)
        self._calls[mine] = self._calls.get(mine, 0) + 1
        if not self._lead:
            self._lead = mine
            try:
                self._training = _Training(self._folder, self._variables, self._options, optimizer)
                self._training.begin(self._threads_at_import, self._base_bytes)
            except Exception as error:  # as above
                self._give_up(error)
            self._clock.begin()
            return False
        self._silent += 1
        training = self._training
        if training is None:
            return False
        is_rarer = self._calls[mine] == CHOOSE_CALLS and training.steps > 2 * CHOOSE_CALLS
        if is_rarer or (self._silent > SILENT_CALLS and training.is_stale()):
            self._lead, self._silent = mine, 0
            self._clock.begin()
        return False

    def _give_up(self, error: Exception) -> None:
        """Stop tuning after an error of its own; the training goes on with the settings that it has."""
        self._is_off, self._lead = True, -1
        journal = Journal(self._folder / f"{os.getpid()}.jsonl")
        journal.write("failed", message=f"{type(error).__name__}: {error}")


class _Training:
    """The training of this process."""

    def __init__(
        self, folder: Path, variables: Mapping[str, str], options: Options, optimizer: "torch.optim.Optimizer"
    ) -> None:
        self._journal = Journal(folder / f"{os.getpid()}.jsonl")
        self._folder = folder
        self._variables = dict(variables)
        self._options = options
        self._workload: Workload = look_at(optimizer)
        self._reason = explain_untunable(optimizer, variables) or self._explain_second()
        self._container = Container()
        self._knobs = Knobs(_set_torch_threads)
        self._own = self._now = Settings(_torch_threads())
        self._tuning: Tuning | None = None
        self._run: Steps[None] | None = None
        self._fights = 0
        self._began = time.time()
        self._told = time.perf_counter()
        self._spent: dict[Settings, tuple[int, float]] = {}
        self._settled: list[list[float]] = []
        """Seconds of steps, by second, since the settings won."""
        self._predicted: tuple[int, float] | None = None
        """Steps that were done then, and the seconds of a step."""
        self._memory_peak = 0
        self.steps = 1
        """That were made so far; the first one was, but its beginning was not seen."""

    def begin(self, threads_at_import: int, base_bytes: int) -> None:
        """Begin after the first step; `base_bytes` were resident once torch was imported."""
        named = [name for name in THREAD_VARIABLES if name in self._variables]
        source = named[0] if named else "script" if self._own.threads != threads_at_import else "default"
        if self._options.exact and self._reason is None:
            self._reason = "--exact changes nothing after the first step"
        total = self._options.steps or self._workload.total_steps
        quota = self._container.quota
        self._journal.write(
            "start", pid=os.getpid(), torch=_torch_version(), own=self._own, threads_from=source, reason=self._reason,
            processors=self._container.processors, quota=None if quota is None else float(quota.processors),
            memory_bytes=self._container.memory_limit, workload=self._workload, total_steps=total,
            base_bytes=base_bytes, interop=_torch_interop(),
        )  # fmt: skip
        if self._reason is None:
            self._start(self._own, threads=True, must_prove=source != "default")

    def _start(self, own: Settings, *, threads: bool, must_prove: bool) -> None:
        why = explain_fixed_malloc(self._variables)
        if why is not None:
            self._journal.write("note", message=f"malloc was not tuned: {why}")
        if threads and is_compiled():
            threads = False
            self._journal.write("note", message="threads were not raced: torch.compile would compile again")
        limits = Limits(threads=threads, malloc=why is None and own.malloc == "untouched", must_prove=must_prove)
        self._tuning = Tuning(own, self._container, self._journal.write, limits)
        self._run = self._tuning.steps()
        self._apply(next(self._run))

    def end_lap(self, lap: Lap) -> None:
        """Take a lap, and change the settings where the tuning wants to."""
        self.steps += lap.steps
        steps, seconds = self._spent.get(self._now, (0, 0.0))
        self._spent[self._now] = (steps + lap.steps, seconds + lap.wall)
        if self._run is not None:
            threads = _torch_threads()
            if threads != self._now.threads:
                self._yield_to_script(threads)
            else:
                self._apply(self._run.send(lap))
            self._note_settled(lap)
        if time.perf_counter() - self._told >= TELL_SECONDS:
            self.summarize(ended=False)

    def is_stale(self) -> bool:
        """Whether no lap has ended since the last summary was due."""
        return time.perf_counter() - self._told >= 2 * TELL_SECONDS

    def summarize(self, *, ended: bool, pending: int = 0) -> None:
        """Write where the training stands; `pending` steps are of a lap that has not ended."""
        self._told = time.perf_counter()
        if self._run is None or ended:
            self._container.look()
        seen = self._container.since_start()
        self._memory_peak = max(self._memory_peak, self._container.memory_bytes() or 0, status_sizes()["VmHWM"])
        gain = self._tuning.gains.total() if self._tuning else None
        self._journal.replace(
            "summary", ended=ended, steps=self.steps + pending, seconds=time.time() - self._began,
            settings=self._tuning.best if self._tuning else self._now,
            spent=[{"settings": each, "steps": steps, "seconds": s} for each, (steps, s) in self._spent.items()],
            gain=gain, settled=self._tuning is not None and self._tuning.settled is not None,
            others=seen.others, processors=seen.processors, stolen=seen.stolen, throttled=seen.throttled,
            noisy=seen.noisy, memory_peak=self._memory_peak, memory_limit=self._container.memory_limit,
        )  # fmt: skip
        if self._predicted is not None and ended:
            done, step_s = self._predicted
            steps = self.steps + pending - done
            self._journal.write("checked", steps=steps, predicted_s=step_s * steps, ended_at=time.time())

    def _apply(self, wanted: Settings) -> None:
        if wanted != self._now:
            self._knobs.apply(wanted)
            self._now = wanted

    def _yield_to_script(self, threads: int) -> None:
        """Take the number of threads that the script has set meanwhile as its own."""
        self._fights += 1
        self._now = Settings(threads, self._now.malloc)
        if self._fights < FIGHTS:
            self._start(self._now, threads=True, must_prove=True)
            return
        self._journal.write("note", message="nothing more was raced: the script sets its threads while it trains")
        self._run = self._tuning = None

    def _note_settled(self, lap: Lap) -> None:
        """Collect steps of the settings that won, and predict the end from them once."""
        total = self._options.steps or self._workload.total_steps
        if self._tuning is None or self._tuning.settled is None or self._predicted is not None or total is None:
            self._settled = []
            return
        if not self._settled or sum(self._settled[-1]) >= 1.0:
            self._settled.append([])
        self._settled[-1].append(lap.step)
        blocks = [block for block in self._settled if block]
        if sum(map(sum, blocks)) * lap.steps < PREDICT_SECONDS or len(blocks) < 2 or total <= self.steps:
            return
        step_s, low, high = step_interval(blocks, mean_step)
        left = total - self.steps
        self._predicted = (self.steps, step_s)
        self._journal.write(
            "prediction", done=self.steps, total=total, step_s=step_s, left_s=step_s * left, low_s=low * left,
            high_s=high * left,
        )  # fmt: skip

    def _explain_second(self) -> str | None:
        """Return why another process is tuned and not this one; None: this one is, until it ends."""
        try:
            lock = os.open(self._folder / "tuned.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return "another process of the same command trains, too"
        return None


def install(folder: Path, variables: Mapping[str, str]) -> TrainingHook:
    """Join the tuning to all optimizers of this process; torch has been imported."""
    from torch.compiler import is_compiling
    from torch.optim.optimizer import register_optimizer_step_post_hook

    hook = TrainingHook(folder, variables)
    on_step = hook.on_step

    def after_step(optimizer: "torch.optim.Optimizer", args: object, kwargs: object) -> None:
        if not is_compiling():  # a step inside torch.compile: nothing may be timed while it is traced
            on_step(optimizer, args, kwargs)

    register_optimizer_step_post_hook(after_step)
    os.register_at_fork(after_in_child=hook.forget)
    atexit.register(hook.finish)
    return hook


def _torch_threads() -> int:
    import torch

    return torch.get_num_threads()


def _set_torch_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


def _torch_interop() -> int:
    import torch

    return torch.get_num_interop_threads()


def _torch_version() -> str:
    import torch

    return str(torch.__version__)
