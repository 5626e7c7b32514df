"""What a running training changes about its plan, and why; decided from windows of steps, applied between two.

Threads: where others are at work, fewer are often faster, because all wait for the one without a processor. Whether
they are is tried, never believed: a change stays only when it is measured to be faster, and each vain try makes the
wait for the next one longer. Micro-batch: smaller while memory is short; the effective batch stays.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from training.config.plan import Plan
from training.loop.prediction import Prediction
from training.process.journal import Report
from training.system.interference import Machine, Snapshot

if TYPE_CHECKING:
    from training.loop.train_step import TrainStep

SLOW: Final = 0.75
"""Share of the predicted speed below which a window is slow."""
WINDOWS: Final = 3
"""Slow windows in a row before anything is tried."""
SETTLE: Final = 1
"""Windows that do not count after a change, nor at the beginning: caches and thread pools are cold."""
TRIAL: Final = 2
"""Windows that a trial is measured for."""
FASTER: Final = 1.05
"""What a trial must win by: windows of an undisturbed training differ by less."""
FIRST_WAIT: Final = 20
"""Windows from a trial to the next of its kind; twice as many after each vain one."""
LONGEST_WAIT: Final = 120
"""The most, a minute: within it, a neighbour that left is noticed, and trials in vain cost a few percent at most."""
LEAST_SECONDS: Final = 0.4
"""What counts as a window; shorter ones, at the ends of epochs, are added to the next."""

SHORT: Final = 0.85
"""Share of the memory limit above which the micro-batch is halved; the rest is for evaluation and checkpoints."""
AMPLE: Final = 0.50
"""Share below which it is doubled again, up to the plan's."""
QUIET_STEPS: Final = 10
"""Steps below `AMPLE` before that; twice as many each time that it had to be halved again."""
HELPED: Final = 0.02
"""Share of the limit by which halving must lower what is in use; else it is not the batch that takes the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting of the plan that changes, or that stays changed after a trial."""

    field: Literal["threads", "micro_batch"]
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A window of steps."""

    steps: int
    seconds: float


class Wait:
    """Counts windows down to the next trial of one kind."""

    def __init__(self, left: int = 0) -> None:
        self._left = left
        self._next = FIRST_WAIT

    @property
    def over(self) -> bool:
        """Whether the next trial may begin."""
        return self._left <= 0

    def pass_window(self) -> None:
        """Count one window."""
        self._left -= 1

    def begin(self) -> None:
        """Wait for as long as at first."""
        self._left = self._next = FIRST_WAIT

    def lengthen(self) -> None:
        """Wait, and the next time for twice as long."""
        self._left, self._next = self._next, min(2 * self._next, LONGEST_WAIT)


@dataclass(frozen=True, slots=True)
class Trial:
    """What is being tried: how many threads there were, and how fast they were."""

    threads: int
    rate: float


class Threads:
    """Decides how many threads a training runs on, from the speed of its windows."""

    def __init__(self, planned: int, batch_size: int, step_s: float) -> None:
        """Begin with `planned` threads, for which `step_s` seconds a step of `batch_size` samples were predicted."""
        self._planned = self._now = planned
        self._batch_size = batch_size
        self._expected = batch_size / step_s
        self._settle = SETTLE
        self._recent: deque[Pace] = deque(maxlen=WINDOWS)
        self._trial: Trial | None = None
        self._lowest = planned
        """The fewest threads that were tried in vain; next time still fewer are."""
        self._fewer = Wait()
        self._planned_again = Wait()

    def heard(self, pace: Pace, seen: Callable[[], str]) -> Change | None:
        """Hear of a window, and return what to do; `seen` says, as a clause, what the machine did meanwhile."""
        if self._settle:
            self._settle -= 1
            return None
        self._recent.append(pace)
        if self._trial is not None:
            return self._judged(self._trial) if len(self._recent) == TRIAL else None
        self._fewer.pass_window()
        self._planned_again.pass_window()
        if len(self._recent) < WINDOWS:
            return None
        if self._now > 1 and self._fewer.over and all(self.slow(pace) for pace in self._recent):
            fewer = self._lowest - max(1, self._lowest // 4)
            slow = f"{WINDOWS} windows at {self._mean() / self._expected:.0%} of the predicted {self._expected:,.0f}"
            return self._try(fewer, f"{slow} samples/s: {seen()}; trying {_threads(fewer)}")
        if self._now < self._planned and self._planned_again.over:
            return self._try(self._planned, f"trying whether the planned {_threads(self._planned)} are faster again")
        return None

    def slow(self, pace: Pace) -> bool:
        """Whether a window was much slower than predicted."""
        return pace.steps * self._batch_size / pace.seconds < SLOW * self._expected

    def settle(self) -> None:
        """Hear that something else has changed: the windows before and right after it say nothing."""
        self._settle = SETTLE
        self._recent.clear()

    def _try(self, threads: int, reason: str) -> Change:
        self._trial = Trial(self._now, self._mean())
        return self._changed(threads, reason)

    def _judged(self, trial: Trial) -> Change:
        """End a trial: its threads stay when they were faster."""
        rate, tried = self._mean(), self._now
        faster = rate > FASTER * trial.rate
        mine, other = self._fewer, self._planned_again
        if tried > trial.threads:
            mine, other = other, mine
        figures = f"{_threads(tried)} did {rate:,.0f} samples/s and {_threads(trial.threads)} {trial.rate:,.0f}"
        self._trial = None
        if not faster:
            mine.lengthen()
            if tried < trial.threads:
                self._lowest = tried if tried > 1 else trial.threads
            return self._changed(trial.threads, f"{figures}; going back")
        other.begin()
        self._lowest = tried
        return replace(self._changed(tried, f"{figures}; staying"), before=trial.threads)

    def _changed(self, threads: int, reason: str) -> Change:
        change = Change(field="threads", before=self._now, after=threads, reason=reason)
        if threads != self._now:
            self.settle()
        self._now = threads
        return change

    def _mean(self) -> float:
        steps, seconds = sum(pace.steps for pace in self._recent), sum(pace.seconds for pace in self._recent)
        return steps * self._batch_size / seconds


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


class MicroBatches:
    """Decides in how large pieces effective batches go through, from the share of the memory limit in use."""

    def __init__(self, planned: int, batch_size: int, *, batch_statistics: bool) -> None:
        """Begin with `planned` samples; `batch_statistics`: the model's depend on how many there are."""
        self._planned = self._now = planned
        self._batch_size = batch_size
        self._batch_statistics = batch_statistics
        self._quiet = 0
        self._enough = QUIET_STEPS
        self._grown = False
        self._halved_at: float | None = None
        """Share at which it was halved last, while memory is still short."""

    def heard(self, steps: int, share: float) -> Change | None:
        """Hear that `share` of the memory limit is in use after `steps` more steps, and return what to do."""
        self._quiet = self._quiet + steps if share < AMPLE else 0
        if share <= SHORT:
            self._halved_at = None
            return self._larger(share) if self._quiet >= self._enough else None
        samples = min(self._now, self._batch_size)
        if samples == 1 or (self._halved_at is not None and abs(share - self._halved_at) < HELPED):
            return None
        self._halved_at = share
        if self._grown:
            self._grown, self._enough = False, 2 * self._enough
        fate = (
            f"; its batch statistics are those of {samples // 2} samples from now on" if self._batch_statistics else ""
        )
        return self._changed(samples // 2, f"{share:.0%} of the memory limit are in use, more than {SHORT:.0%}{fate}")

    def _larger(self, share: float) -> Change | None:
        # Memory does not forbid the present one, and another would mean other batch statistics.
        if self._batch_statistics or self._now == self._planned:
            return None
        self._grown = True
        reason = f"{share:.0%} of the memory limit are in use, less than {AMPLE:.0%} for {self._quiet} steps"
        return self._changed(min(2 * self._now, self._planned), reason)

    def _changed(self, samples: int, reason: str) -> Change:
        change = Change(field="micro_batch", before=self._now, after=samples, reason=reason)
        self._now, self._quiet = samples, 0
        return change


class Adapter:
    """Changes the plan of a training that runs, and records `adapted`; a deterministic one is never changed."""

    def __init__(self, step: "TrainStep", report: Report, prediction: Prediction | None, machine: Machine) -> None:
        """Look after `step`, whose speed under its present plan is predicted; without that its threads stay."""
        spec, plan = step.spec, step.plan
        self._step = step
        self._report = report
        self._machine = machine
        self._slow_since: Snapshot | None = None
        """What the kernel had counted when the first of the present slow windows was over."""
        self._steps, self._seconds = 0, 0.0
        self._threads: Threads | None = None
        self._micro: MicroBatches | None = None
        if spec.deterministic:
            return
        self._micro = MicroBatches(plan.micro_batch, spec.batch_size, batch_statistics=step.batch_statistics)
        # Compiled code keeps the number of threads that it was compiled for.
        if prediction is not None and prediction.step_s > 0 and not plan.compile:
            self._threads = Threads(plan.threads, spec.batch_size, prediction.step_s)

    def window(self, steps: int, seconds: float, share: float | None) -> Plan | None:
        """Hear of the next `steps` steps, which took `seconds`; returns the plan from now on where it is another.

        `share` of the memory limit is in use; None: not known.
        """
        self._steps += steps
        self._seconds += seconds
        if self._micro is None or self._seconds < LEAST_SECONDS:
            return None
        pace = Pace(steps=self._steps, seconds=self._seconds)
        self._steps, self._seconds = 0, 0.0
        smaller = self._micro.heard(pace.steps, share) if share is not None else None
        if smaller is not None:
            if self._threads is not None:
                self._threads.settle()
            return self._adopted(smaller, replace(self._step.plan, micro_batch=smaller.after))
        other = self._threads.heard(pace, self._seen) if self._threads is not None else None
        self._watch(pace)
        return self._adopted(other, replace(self._step.plan, threads=other.after)) if other is not None else None

    def _watch(self, pace: Pace) -> None:
        """Look at the machine where the training has become slow: a look reads a dozen files."""
        if self._threads is None or not self._threads.slow(pace):
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = self._machine.look()

    def _seen(self) -> str:
        before = self._slow_since
        return self._machine.look().since(before).describe() if before else "the machine was not looked at"

    def _adopted(self, change: Change, plan: Plan) -> Plan:
        self._report.write("adapted", asdict(change))
        self._step.adopt(plan)
        return plan
