"""Races: two settings take turns on a training's own steps, and the slower one is left as soon as that is clear."""

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from ..statistics import MIN_PAIRS, Comparison, compare, scatter, widened
from .laps import PAUSE, Block, Lap, block_of
from .settings import Settings
from .surroundings import ContainerView

T = TypeVar("T")
Steps = Generator[Settings, Lap, T]
"""Generator of a race: it yields the settings of the next lap, is sent that lap, and returns a T."""

BLOCK_SECONDS: Final = 0.5
"""Seconds of a turn: five periods of a CPU quota."""
LEAST_LAPS: Final = 3
LONG_LAP: Final = 0.25
"""Seconds from which on a single lap says whether settings are clearly slower."""
ENOUGH_LAP: Final = 1.0
"""Seconds from which on a lap is a block."""
SETTLE_STEPS: Final = 3
"""Steps after a switch that do not count: caches and thread pools are cold (docs/how-to/run.md). Long ones do."""
CLEAR: Final = 1.3
"""Times as slow, or as fast, as neighbouring blocks of one setting never differ on a machine that is otherwise idle."""
LEAST_GAIN: Final = 1.01
"""Least ratio that is a gain; below it a gain is rounding."""
LEVEL: Final = 1.03
"""Ratio within which both ends of an interval lie where the settings are equally fast."""
LEAST_SCATTER: Final = 0.02
"""Least standard deviation of the logarithm of two neighbouring laps, as too few laps do not show it."""
MOST_PAIRS: Final = 8
COST_SECONDS: Final = 2.0
"""Seconds that exploring may cost in a short training."""
COST_SHARE: Final = 0.01
"""Share of the time so far that it may cost in a long training."""


Pair = tuple[tuple[float, ...], tuple[float, ...]]
"""Seconds of steps of the best settings and of a challenger, measured one after the other."""


def compared(pairs: Sequence[Pair]) -> Comparison:
    """Return the comparison of a challenger; of blocks of a few laps, with an interval that allows for their scatter.

    Resampling one lap gives that lap again, as if a step always took the same.
    """
    found = compare(pairs)
    if len(pairs) >= MIN_PAIRS:
        return found
    series = [[second for pair in pairs for second in pair[side]] for side in (0, 1)]
    deviation = max(LEAST_SCATTER, scatter(series)) * math.sqrt(sum(1 / len(one) for one in series))
    low, high = widened(found.ratio, found.low, found.high, deviation)
    return replace(found, low=low, high=high)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a race ended."""

    verdict: Literal["won", "level", "lost", "dropped"]
    """Verdict on the challenger; `dropped`: left after its first steps."""
    comparison: Comparison
    """Challenger against the best settings."""
    best: Block
    challenger: Block
    """The last block of each."""
    steps: int
    """Steps of the challenger."""

    @property
    def winner(self) -> Block:
        """The last block of the settings that stay."""
        return self.challenger if self.verdict == "won" else self.best


class Racer:
    """Runs blocks and races, and counts the seconds that exploring has cost."""

    def __init__(self, around: ContainerView, now: Settings, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin with the settings `now`; `clock` gives seconds."""
        self._around = around
        self._clock = clock
        self._began = clock()
        self.now = now
        """Settings of the last lap."""
        self.spent = 0.0
        """Seconds that slower settings have cost so far."""

    def allowance(self) -> float:
        """Return the seconds that exploring may still cost."""
        return max(COST_SECONDS, COST_SHARE * (self._clock() - self._began)) - self.spent

    def block(
        self, settings: Settings, *, expected: float | None = None, seconds: float = BLOCK_SECONDS
    ) -> Steps[Block]:
        """Run laps of `settings` for some `seconds`; stop early where steps are clearly slower than `expected`."""
        settle = 0 if settings == self.now else SETTLE_STEPS
        is_heap_new = settings.malloc != self.now.malloc
        self.now = settings
        laps: list[Lap] = []
        settled = 0.0
        throttled, children = self._around.throttled_s(), self._around.children_s()
        while True:
            lap = yield settings
            if settle > 0 and (lap.wall < LONG_LAP or is_heap_new):
                settle -= lap.steps if lap.wall < LONG_LAP else SETTLE_STEPS
                settled += max(0.0, lap.wall - (expected or lap.step) * lap.steps)
                if settle <= 0:
                    throttled, children = self._around.throttled_s(), self._around.children_s()
                continue
            settle = 0
            laps.append(lap)
            stopped = expected is not None and self._is_clearly_slow(laps, expected)
            enough = len(laps) >= LEAST_LAPS or lap.wall >= ENOUGH_LAP
            if stopped or (enough and sum(lap.wall for lap in laps) >= seconds):
                break
        after = self._around.throttled_s()
        held = None if throttled is None or after is None else max(0.0, after - throttled)
        beside = max(0.0, self._around.children_s() - children)
        block = block_of(laps, self._around.quota, held, beside, stopped=stopped)
        if expected is not None:
            self.spent += settled + max(0.0, (block.step - expected) * block.steps)
        return block

    def race(self, best: Settings, challenger: Settings, base: Block, *, must_prove: bool) -> Steps[Outcome]:
        """Race a challenger against the best settings, of which `base` is a block that has just been measured.

        `must_prove`: the whole interval has to be above 1, as the user chose the best settings; else its centre.
        """
        mine, steps = base, 0
        pairs: list[Pair] = []
        while True:
            other = yield from self.block(challenger, expected=mine.step)
            steps += other.steps
            pairs.append((mine.seconds, other.seconds))
            if other.stopped:
                return Outcome("dropped", compared(pairs), mine, other, steps)
            found = self._judged(pairs, must_prove=must_prove, last=self._is_dear(mine, other))
            if found is not None:
                return Outcome(found, compared(pairs), mine, other, steps)
            other = yield from self.block(challenger, expected=mine.step)
            steps += other.steps
            mine = yield from self.block(best, expected=other.step)
            pairs.append((mine.seconds, other.seconds))
            found = self._judged(pairs, must_prove=must_prove, last=self._is_dear(mine, other))
            if found is not None:
                return Outcome(found, compared(pairs), mine, other, steps)
            mine = yield from self.block(best)

    def _is_clearly_slow(self, laps: list[Lap], expected: float) -> bool:
        least = min(lap.step for lap in laps)
        if least < CLEAR * expected:
            return False
        # One lap may hold an evaluation.
        return len(laps) > 1 or (laps[0].wall >= LONG_LAP and least < PAUSE * expected)

    def _is_dear(self, mine: Block, other: Block) -> bool:
        """Whether another turn of the slower settings would cost more than may be spent."""
        slower, faster = max(mine, other, key=lambda block: block.step), min(mine.step, other.step)
        again = max(BLOCK_SECONDS, min(ENOUGH_LAP, slower.step) if slower.step < ENOUGH_LAP else slower.step)
        return again * (1 - faster / slower.step) > self.allowance()

    @staticmethod
    def _judged(pairs: list[Pair], *, must_prove: bool, last: bool) -> Literal["won", "level", "lost"] | None:
        """Return the verdict on a challenger; None: another pair has to decide. `last`: there is none."""
        found = compared(pairs)
        enough = len(pairs) >= MIN_PAIRS
        if found.low > (LEAST_GAIN if enough else CLEAR):
            return "won"
        if found.high < (1 / LEAST_GAIN if enough else 1 / CLEAR):
            return "lost"
        level = len(pairs) > MIN_PAIRS and found.low > 1 / LEVEL and found.high < LEVEL
        if not (level or last or len(pairs) >= MOST_PAIRS):
            return None
        if not must_prove and found.ratio > LEAST_GAIN:
            return "won"
        return "lost" if found.ratio < 1 / LEVEL else "level"
