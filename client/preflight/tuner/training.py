"""A training that is tuned: it takes laps, applies the settings of the tuning, and keeps the journal."""

import fcntl
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..container.resources import status_sizes
from ..statistics import mean_step, step_interval, typical
from .journal import Journal, Options
from .laps import Lap
from .race import Steps
from .settings import Knobs, Settings, explain_fixed_malloc
from .surroundings import Container
from .tuning import Limits, Tuning
from .workload import Workload, explain_untunable, find_loader, is_compiled, look_at

if TYPE_CHECKING:
    import torch

    from .replay import Capture

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which a user chooses the number of threads."""
BINDING: Final = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables by which a user binds threads to processors."""
TELL_SECONDS: Final = 2.0
"""Seconds between two summaries in the journal: the last one is left where the process is killed."""
PREDICT_SECONDS: Final = 5.0
"""Seconds of steps with the settings that won, before the end is predicted."""
STEADY_SECONDS: Final = 5.0
"""Seconds of such steps from which on their speed is compared with that of other starts."""
MOST_GROUPS: Final = 120
"""Most seconds of steps that are kept for that."""
ARMED_LAPS: Final = 4
"""Laps after which the search for modules with the parameters ends."""
COMPARED_STEP: Final = 8
"""Step at which gradients are compared: at fresh weights the cosine is the seed's luck (docs/decisions.md)."""
FIGHTS: Final = 2
"""Times that the script sets its threads again after a change, until they are left to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """State of the process after torch's import."""

    threads: int
    interop: int
    base_bytes: int
    """Resident memory at that time."""

    @classmethod
    def look(cls) -> "Imported":
        """Return the state, right after the import."""
        import torch

        return cls(
            threads=torch.get_num_threads(), interop=torch.get_num_interop_threads(),
            base_bytes=status_sizes()["VmRSS"],
        )  # fmt: skip


class Training:
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
        self.knobs = Knobs(set_threads)
        self._own = self._now = Settings(torch_threads())
        self._tuning: Tuning | None = None
        self._run: Steps[None] | None = None
        self._fights = 0
        self._base_bytes = 0
        self._began = self._told = time.perf_counter()
        self._spent: dict[Settings, tuple[int, float]] = {}
        self._settled: list[list[float]] = []
        """Seconds of steps, by second, since the settings won."""
        self._settled_s = self._group_began = 0.0
        self._steady: list[list[float]] = []
        """The same of the last stretch that was long enough to be compared with other starts."""
        self._predicted: tuple[int, float, float] | None = None
        """Steps done when the end was predicted, the predicted seconds of a step, and the time of perf_counter."""
        self._memory_peak = 0
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        is_advised = options.advise and explain_untunable(optimizer, variables) is None
        self._capture = _prepare_advice(parameters) if is_advised else None
        self._armed = 0
        self._loader = find_loader() if is_advised else None
        self.steps = 1
        """Steps that were made so far; the first one is counted, but its beginning was not seen."""

    def begin(self, imported: Imported) -> None:
        """Begin after the first step."""
        import torch

        self._base_bytes = imported.base_bytes
        source = find_source(self._variables, self._own.threads, imported.threads)
        if self._options.exact and self._reason is None:
            self._reason = "--exact changes nothing after the first step"
        total = self._options.steps or self._workload.total_steps
        quota = self._container.quota
        self._journal.write(
            "start", pid=os.getpid(), torch=str(torch.__version__), python=platform.python_version(), own=self._own,
            threads_from=source, reason=self._reason,
            processors=self._container.processors, quota=None if quota is None else float(quota.processors),
            memory_bytes=self._container.memory_limit, workload=self._workload, total_steps=total,
            base_bytes=imported.base_bytes, interop=torch.get_num_interop_threads(), interop_at_import=imported.interop,
        )  # fmt: skip
        if self._reason is None:
            self._start(self._own, must_prove=source != "default")

    def _start(self, own: Settings, *, must_prove: bool) -> None:
        why = explain_fixed_malloc(self._variables)
        if why is not None:
            self._journal.write("note", message=f"malloc was not tuned: {why}")
        threads = not is_compiled()
        if not threads:
            self._journal.write("note", message="threads were not raced: torch.compile would compile again")
        # Processes that start later would stay on the same processors.
        is_alone = not self._workload.workers and not any(name in self._variables for name in BINDING)
        limits = Limits(
            threads=threads, malloc=why is None and own.malloc == "untouched", pinned=is_alone, must_prove=must_prove
        )
        self._tuning = Tuning(own, self._container, self._journal.write, limits)
        self._run = self._tuning.steps()
        self._apply(next(self._run))

    def end_lap(self, lap: Lap) -> None:
        """Take a lap, and change the settings where the tuning wants to."""
        self.steps += lap.steps
        if self._capture is not None and self.steps > COMPARED_STEP and not self._capture.parts:
            self._keep_sample(self._capture)
        steps, seconds = self._spent.get(self._now, (0, 0.0))
        self._spent[self._now] = (steps + lap.steps, seconds + lap.wall)
        if self._run is not None:
            threads = torch_threads()
            if threads != self._now.threads:
                self._yield_to_script(threads)
            else:
                self._apply(self._run.send(lap))
            self._note_settled(lap)
        if time.perf_counter() - self._told >= TELL_SECONDS:
            self.summarize(ended=False)

    def _keep_sample(self, capture: "Capture") -> None:
        """Keep one forward pass of the next laps, for advice at the end."""
        self._armed += 1
        if self._armed > 1 and capture.finish():
            return
        if self._armed <= ARMED_LAPS:
            capture.start()
            return
        self._capture = None
        missing = "the calls of modules that could be kept have less than 90% of the optimizer's parameters"
        self._journal.write("note", message=f"nothing was measured for advice: {missing}")

    def advise(self) -> None:
        """Measure changes that would alter the result, after the last step."""
        capture, self._capture = self._capture, None
        if capture is None or not capture.parts:
            return
        from .advice import advise

        began, steps = time.perf_counter(), sum(steps for steps, _ in self._spent.values())
        step_s = sum(seconds for _, seconds in self._spent.values()) / max(1, steps)
        used = self._container.memory_bytes() or 0
        taken = max(0, self._memory_peak - self._workload.state_bytes - self._base_bytes)
        room = self._container.memory_limit - used - 2 * taken
        for advice in advise(capture.parts, self._loader, step_s, room):
            self._journal.write("advice", **asdict(advice))
        self._journal.write("advised", seconds=time.perf_counter() - began)

    def leave(self) -> None:
        """Take the script's own settings again."""
        self._apply(self._own)

    def is_stale(self) -> bool:
        """Whether no lap has ended since the last summary was due."""
        return time.perf_counter() - self._told >= 2 * TELL_SECONDS

    def summarize(self, *, ended: bool, pending: int = 0) -> None:
        """Write a summary of the training so far; `pending` steps are of a lap that has not ended."""
        self._told = time.perf_counter()
        if self._run is None or ended:
            self._container.look()
        seen = self._container.since_start()
        self._memory_peak = max(self._memory_peak, self._container.memory_bytes() or 0, status_sizes()["VmHWM"])
        gain = self._tuning.gains.total() if self._tuning else None
        self._journal.replace(
            "summary", ended=ended, steps=self.steps + pending, seconds=self._told - self._began,
            settings=self._tuning.best if self._tuning else self._now,
            spent=[{"settings": each, "steps": steps, "seconds": s} for each, (steps, s) in self._spent.items()],
            gain=gain, settled=self._tuning is not None and self._tuning.settled is not None,
            others=seen.others, processors=seen.processors, stolen=seen.stolen, throttled=seen.throttled,
            noisy=seen.noisy, is_compiled=is_compiled(), steady=self._measure_steady() if ended else None,
            memory_peak=self._memory_peak, memory_limit=self._container.memory_limit,
        )  # fmt: skip
        if self._predicted is not None and ended:
            done, step_s, at = self._predicted
            steps = self.steps + pending - done
            self._journal.write("checked", steps=steps, predicted_s=step_s * steps, took_s=self._told - at)

    def _apply(self, wanted: Settings) -> None:
        if wanted != self._now:
            self.knobs.apply(wanted)
            self._now = wanted

    def _yield_to_script(self, threads: int) -> None:
        """Take the number of threads that the script has set meanwhile as its own."""
        self._fights += 1
        self._now = Settings(threads, self._now.malloc)
        if self._fights < FIGHTS:
            self._start(self._now, must_prove=True)
            return
        self._journal.write("note", message="nothing more was raced: the script sets its threads while it trains")
        self._run = self._tuning = None

    def _note_settled(self, lap: Lap) -> None:
        """Collect steps of the settings that won, and predict the end from them once."""
        if self._tuning is None or self._tuning.settled is None:
            self._settled, self._settled_s, self._group_began = [], 0.0, 0.0
            return
        if not self._settled or self._settled_s - self._group_began >= 1.0:
            self._group_began = self._settled_s
            self._settled = [*self._settled[-MOST_GROUPS:], []]
        self._settled[-1].append(lap.step)
        self._settled_s += lap.wall
        if self._settled_s >= STEADY_SECONDS:
            self._steady = self._settled
        total = self._options.steps or self._workload.total_steps
        if self._predicted is not None or total is None or total <= self.steps:
            return
        if self._settled_s < PREDICT_SECONDS or len(self._settled) < 2:
            return
        step_s, low, high = step_interval(self._settled, mean_step)
        left = total - self.steps
        self._predicted = (self.steps, step_s, time.perf_counter())
        self._journal.write(
            "prediction", done=self.steps, total=total, step_s=step_s, left_s=step_s * left, low_s=low * left,
            high_s=high * left,
        )  # fmt: skip

    def _measure_steady(self) -> dict[str, float] | None:
        """Return the seconds of a step with the settings that won, to compare them with those of other starts."""
        if len(self._steady) < 2:
            return None
        step_s, low, high = step_interval([[mean_step([group])] for group in self._steady if group], typical)
        return {"step_s": step_s, "low_s": low, "high_s": high}

    def _explain_second(self) -> str | None:
        """Return why another process is tuned and not this one; None: this one is, until it ends."""
        try:
            lock = os.open(self._folder / "tuned.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return "another process of the same command trains, too"
        return None


def _prepare_advice(parameters: "list[torch.Tensor]") -> "Capture":
    """Keep a forward pass for advice; import what compiling needs, as the exit of a process is too late."""
    import concurrent.futures.process
    import concurrent.futures.thread  # noqa: F401

    from .replay import Capture

    return Capture(parameters)


def find_source(variables: Mapping[str, str], threads: int, imported: int) -> str:
    """Return who set the threads: a variable, the script, or nobody (default); torch had `imported` at its import.

    OpenMP takes the first number of a list, and its default for a value that it cannot read.
    """
    if threads != imported:
        return "script"
    asked = {name: variables.get(name, "").partition(",")[0].strip() for name in THREAD_VARIABLES}
    return next((name for name, value in asked.items() if value == str(imported)), "default")


def torch_threads() -> int:
    """Return torch's intra-op threads."""
    import torch

    return torch.get_num_threads()


def set_threads(count: int) -> None:
    """Set torch's intra-op threads."""
    import torch

    torch.set_num_threads(count)
