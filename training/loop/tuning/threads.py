"""Thread tuning: how many threads a training runs on, from the speed of its windows.

Where other processes are busy, fewer threads are often faster, because all wait for the one without a processor. A
change stays only when it is measured to be faster, and each failed trial makes the wait for the next one longer.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from training.loop.tuning.change import Change
from training.loop.tuning.limit_watch import ProcessorChange

SLOW: Final = 0.75
"""Share of the predicted speed below which a window is slow."""
WINDOWS: Final = 3
"""Slow windows in a row before a trial."""
SETTLE: Final = 1
"""Windows ignored at the beginning and after a change: caches and thread pools are cold."""
TRIAL: Final = 2
"""Windows of a trial."""
FASTER: Final = 1.05
"""Speed-up that a trial must reach: windows of an undisturbed training differ by less."""
FIRST_WAIT: Final = 10.0
"""Seconds between two trials of one kind; doubled after each failed trial. A window may be one long step."""
LONGEST_WAIT: Final = 60.0
"""Upper bound: a neighbour that left is noticed, and failed trials cost a few percent at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """A window of steps."""

    steps: int
    seconds: float


class TrialBackoff:
    """Counts seconds down to the next trial of one kind."""

    def __init__(self) -> None:
        self._left = 0.0
        self._next = FIRST_WAIT

    @property
    def is_over(self) -> bool:
        """Whether the next trial may begin."""
        return self._left <= 0

    def pass_time(self, seconds: float) -> None:
        """Count a window of so many seconds."""
        self._left -= seconds

    def begin(self) -> None:
        """Wait for as long as at first."""
        self._left = self._next = FIRST_WAIT

    def lengthen(self) -> None:
        """Wait, and the next time for twice as long."""
        self._left, self._next = self._next, min(2 * self._next, LONGEST_WAIT)


@dataclass(frozen=True, slots=True)
class ThreadTrial:
    """Number of threads before the trial, and their samples per second."""

    threads: int
    rate: float


class ThreadTuner:
    """Decides how many threads a training runs on, from the speed of its windows and the processors left free."""

    def __init__(self, planned: int, batch_size: int, step_s: float, most: int = 1) -> None:
        """Begin with `planned` threads, which should take `step_s` seconds for a step of `batch_size` samples.

        Up to `most` are tried where others leave processors for them, and fewer where they do not.
        """
        self._planned = self._now = planned
        self._most = max(planned, most)
        self._batch_size = batch_size
        self._expected = batch_size / step_s
        self._settle = SETTLE
        self._recent: deque[Throughput] = deque(maxlen=WINDOWS)
        self._trial: ThreadTrial | None = None
        self._lowest = planned
        """Fewest threads of a failed trial; the next one tries fewer."""
        self._crowded = 0
        """Windows in a row in which others held processors that the threads need."""
        self._fewer = TrialBackoff()
        self._more = TrialBackoff()

    def observe(self, pace: Throughput, seen: Callable[[], str], free: int | None) -> Change | None:
        """Observe a window and return the change to make.

        `seen` describes the machine meanwhile, as a clause; `free` is how many processors others left, None where the
        kernel does not tell.
        """
        if self._settle:
            self._settle -= 1
            return None
        self._recent.append(pace)
        self._crowded = self._crowded + 1 if free is not None and free < self._now else 0
        if self._trial is not None:
            return self._judged(self._trial) if len(self._recent) == TRIAL else None
        self._fewer.pass_time(pace.seconds)
        self._more.pass_time(pace.seconds)
        if len(self._recent) < WINDOWS:
            return None
        if self._now > 1 and self._fewer.is_over:
            if self._crowded >= WINDOWS and free is not None:
                fewer = max(1, min(free, self._lowest - 1))
                left = f"{free} free processor{'s' * (free != 1)}"
                return self._try(fewer, f"others leave {left} for {_threads(self._now)}; trying {_threads(fewer)}")
            if all(self.slow(pace) for pace in self._recent):
                fewer = self._lowest - max(1, self._lowest // 4)
                share, before = self._mean() / self._expected, f"the {self._expected:,.0f} samples/s measured before"
                slow = f"{WINDOWS} windows at {share:.0%} of {before}: {seen()}"
                return self._try(fewer, f"{slow}; trying {_threads(fewer)}")
        if self._now < self._most and self._more.is_over and (free is None or free >= self._most):
            return self._try(self._most, f"trying whether {_threads(self._most)} are faster now")
        return None

    def limit(self, change: ProcessorChange) -> float:
        """Take a changed CPU limit; return how many times as long a step takes from now on.

        Threads that lost their processor are given up at once, unless there were more of them before, on purpose;
        whether more threads are faster is tried soon.
        """
        within = max(1, math.ceil(change.after))
        if change.shared is not None:
            self._now = self._most = within
        elif change.after > change.before:
            self._most = max(self._most, within)
        elif self._now <= math.ceil(change.before):
            self._now, self._most = min(self._now, within), min(self._most, within)
        factor = change.slowdown(self._planned, self._now)
        self._expected /= factor
        self._planned = self._lowest = self._now
        self._trial = None
        self._fewer, self._more = TrialBackoff(), TrialBackoff()
        self.settle()
        return factor

    @property
    def now(self) -> int:
        """The threads that are decided on."""
        return self._now

    def watches(self, pace: Throughput) -> bool:
        """Whether the next decision may depend on the processors that others leave free after this window."""
        return self._crowded > 0 or self._now < self._most or self.slow(pace)

    def slow(self, pace: Throughput) -> bool:
        """Whether a window was much slower than predicted."""
        return pace.steps * self._batch_size / pace.seconds < SLOW * self._expected

    def settle(self) -> None:
        """Discard the windows before and right after another change."""
        self._settle = SETTLE
        self._recent.clear()
        self._crowded = 0

    def _try(self, threads: int, reason: str) -> Change:
        self._trial = ThreadTrial(self._now, self._mean())
        return self._changed(threads, reason)

    def _judged(self, trial: ThreadTrial) -> Change:
        """End a trial: its threads stay when they were faster."""
        rate, tried = self._mean(), self._now
        faster = rate > FASTER * trial.rate
        mine, other = self._fewer, self._more
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
