"""Tuning: the races on a running training, their order, and when they are repeated."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from ..container.interference import Interference
from ..container.resources import SHORT
from ..statistics import Comparison
from .laps import Block, Lap, without_pauses
from .race import BLOCK_SECONDS, COST_SECONDS, ENOUGH_LAP, LEAST_GAIN, LONG_LAP, Outcome, Racer, Steps, compared
from .settings import Settings
from .surroundings import ContainerView

WARM_SECONDS: Final = 3.0
"""Seconds after which a training counts as warm even where its steps still differ."""
STEADY: Final = 1.3
"""Ratio of two laps in a row within which the warm-up is over."""
LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the kernel's counters, each of half a millisecond."""
LEAST_LOOK_SECONDS: Final = 0.2
"""Least seconds between two looks, twenty ticks of the kernel's clock: less shows neighbours that are not there."""
SLOW: Final = 1.25
"""Ratio of a step to the one that was measured last, from which on the container has changed."""
FAST: Final = 0.8
"""The same ratio, below which it has changed, too."""
LEAST_WAIT: Final = 5.0
"""Seconds between two races, whatever the counters show."""
WINDOWS: Final = 3
"""Looks in a row that have to agree."""
FIRST_WAIT: Final = 10.0
"""Seconds until steps that are slower without a reason are raced again; doubled where that changes nothing."""
LONGEST_WAIT: Final = 300.0
RELEASED: Final = 0.5
"""Processors that others must have taken or given back for a race before that."""
AMPLE: Final = 0.7
"""Share of the memory limit above which malloc is not tuned: then it no longer gives memory back."""
MALLOC_RISK: Final = 1.2
"""Times as slow as a step has been with tuned malloc, at most."""


TrialVerdict = Literal["own", "won", "level", "lost", "dropped", "skipped"]


class Report(Protocol):
    """Takes the findings of the tuning."""

    def __call__(self, what: str, **fields: object) -> None:
        """Record one finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings that the tuning may change."""

    threads: bool = True
    malloc: bool = True
    pinned: bool = False
    must_prove: bool = False
    """Whether the user set the number of threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Findings of a calibration about a training's own settings, before its first step."""

    step_s: float | None
    """Seconds of a step; None: they are measured first."""
    others: float = 0.0
    """Processors in use by others when they were raced."""
    limit: float | None = None
    """Processors that the container had then; None: as many as now."""


@dataclass(slots=True)
class Gains:
    """Speed of the present settings relative to the script's own, one comparison for each knob that was changed."""

    by_knob: dict[str, Comparison] = field(default_factory=dict)

    def total(self) -> Comparison | None:
        """Return the product; None: nothing was changed."""
        found: Comparison | None = None
        for gain in self.by_knob.values():
            found = gain if found is None else found.times(gain)
        return found


class Tuning:
    """Decides on the settings of a training, lap by lap."""

    def __init__(
        self, own: Settings, around: ContainerView, report: Report, limits: Limits,
        *, clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        """Begin with the script's `own` settings."""
        self._own = own
        self._around = around
        self._report = report
        self._limits = limits
        self._racer = Racer(around, own, clock=clock)
        self._clock = clock
        self._looked = clock()
        self.seen = around.look()
        """Interference at the last look."""
        self.best = own
        self.gains = Gains()
        self.settled: Block | None = None
        """Steps of the best settings; None: still racing."""

    def steps(self) -> Steps[None]:
        """Yield the settings of the next lap for as long as the training lasts."""
        base = yield from self._measure_own()
        self._report_trial("own", "own", self._own, base)
        if self._limits.threads:
            base = yield from self._race_threads(base)
        if self._limits.malloc:
            base = yield from self._race_malloc(base)
        base = yield from self._race_affinity(base)
        self._settle(base, "raced on the first steps")
        yield from self._follow(base, Known(step_s=base.step, others=self.seen.others), FIRST_WAIT)

    def resume(self, known: Known) -> Steps[None]:
        """Yield the settings as `steps` does, of a training whose own settings were raced before it began."""
        if known.step_s is None:
            base = yield from self._measure_own()
        else:
            base = Block((known.step_s,), 1, known.step_s)
        self.settled = base
        yield from self._follow(base, known, 0.0)

    def _follow(self, base: Block, known: Known, wait: float) -> Steps[None]:
        """Race again for each change of the container, `wait` seconds after the last race."""
        while True:
            why, base, is_explained = yield from self._watch(base, known, wait)
            self.settled, before = None, self.best
            self._report("race", why=why)
            if self.best.pinned:  # to processors that others may have taken
                self.best = replace(self.best, pinned=False)
                self.gains.by_knob.pop("affinity", None)
                base = yield from self._racer.block(self.best)
            if self._limits.threads:
                base = yield from self._race_threads(base)
            base = yield from self._race_affinity(base)
            wait = FIRST_WAIT if self.best != before or is_explained else min(2 * wait, LONGEST_WAIT)
            if self.best != before:
                self._report("adapted", before=before.threads, after=self.best.threads, reason=why)
            self._settle(base, why)
            known = Known(step_s=base.step, others=self.seen.others)

    def _settle(self, base: Block, why: str) -> None:
        self.settled = base
        self._report("winner", settings=self.best, step_s=base.step, gain=self.gains.total(), why=why)

    def _look(self) -> Interference:
        if self._clock() - self._looked < LEAST_LOOK_SECONDS:
            return self.seen
        self._looked = self._clock()
        self.seen = self._around.look()
        return self.seen

    def _measure_own(self) -> Steps[Block]:
        """Run the script's own settings; one long lap on a crowded machine is enough, as another may cost seconds."""
        last = yield from self._warm_up()
        if last.wall >= ENOUGH_LAP and self._is_crowded(self._own.threads):
            return Block((last.step,), last.steps, last.wall)
        seconds = 0.0 if last.wall >= LONG_LAP else BLOCK_SECONDS
        return (yield from self._racer.block(self._own, seconds=seconds))

    def _warm_up(self) -> Steps[Lap]:
        """Run the first laps, which compile, allocate and fill caches; return the last one."""
        wall, before = 0.0, 0.0
        while True:
            lap = yield self._own
            wall += lap.wall
            steady = before > 0 and max(lap.step / before, before / lap.step) < STEADY
            if wall >= ENOUGH_LAP and self._clock() - self._looked >= LOOK_SECONDS:
                self._look()
            is_late = wall >= WARM_SECONDS or (wall >= ENOUGH_LAP and self._is_crowded(self._own.threads))
            if is_late or (steady and wall >= BLOCK_SECONDS / 2):
                self._look()
                return lap
            before = lap.step

    def _granted(self) -> float:
        """Return the processors that others and the quota leave to this process."""
        free = self._around.processors if self.seen.free is None else self.seen.free
        quota = math.inf if self._around.quota is None else float(self._around.quota.processors)
        return max(min(1.0, quota), min(quota, free))

    def _next_threads(self, tried: set[int]) -> int | None:
        """Return the number of threads to race next; None: no other one is likely to be faster."""
        now, granted = self.best.threads, self._granted()
        fitting = max(1, math.ceil(granted))
        wanted = [fitting] if fitting != now else []
        if self._is_crowded(now):
            wanted = [1, *wanted]  # all threads of a layer wait for the one without a processor
        wanted.append(max(1, now // 2))
        if 2 * now <= granted:
            wanted.append(2 * now)
        lost_below = max((count for count in tried if count < now), default=0)
        lost_above = min((count for count in tried if count > now), default=1 << 30)
        return next((each for each in wanted if each not in tried and lost_below < each < lost_above), None)

    def _is_crowded(self, threads: int) -> bool:
        return self.seen.noisy or (self.seen.free is not None and self.seen.free < threads)

    def _race_threads(self, base: Block) -> Steps[Block]:
        tried = {self.best.threads}
        while (threads := self._next_threads(tried)) is not None:
            tried.add(threads)
            base = yield from self._race(replace(self.best, threads=threads), "threads", base)
            self._look()
        return base

    def _race_affinity(self, base: Block) -> Steps[Block]:
        """Pin threads to processors where some are left over, and nobody else is on them."""
        if not self._limits.pinned or self.best.threads >= self._around.processors or self.seen.noisy:
            return base
        return (yield from self._race(replace(self.best, pinned=True), "affinity", base))

    def _race(self, challenger: Settings, knob: str, base: Block) -> Steps[Block]:
        """Race a challenger as soon as exploring may cost the seconds that its steps lose where it is slower."""
        best = self.best
        base = yield from self._until_paid(challenger, base)
        must_prove = knob == "affinity" or (self._limits.must_prove and best.threads == self._own.threads)
        outcome: Outcome = yield from self._racer.race(best, challenger, base, must_prove=must_prove)
        found = {"ratio": outcome.comparison, "steps": outcome.steps}
        self._report_trial(knob, outcome.verdict, challenger, outcome.challenger, **found)
        if outcome.verdict == "won":
            self._adopt(challenger, knob, outcome.comparison)
        return outcome.winner

    def _adopt(self, challenger: Settings, knob: str, gain: Comparison) -> None:
        before, self.best = self.best, challenger
        if knob == "threads":
            known = self.gains.by_knob.pop("threads", None)
            if challenger.threads != self._own.threads:
                is_from_own = known is None or before.threads == self._own.threads
                self.gains.by_knob["threads"] = gain if known is None or is_from_own else known.times(gain)
        else:
            self.gains.by_knob[knob] = gain

    def _until_paid(self, challenger: Settings, base: Block) -> Steps[Block]:
        """Wait while one step of the challenger may cost more than exploring may."""
        while True:
            granted = self._granted()
            most, least = min(self.best.threads, granted), min(challenger.threads, granted)
            risk = max(most / least, MALLOC_RISK if challenger.malloc != self.best.malloc else 1.0) - 1
            if risk * max(base.step, LONG_LAP) <= max(self._racer.allowance(), COST_SECONDS / 4):
                return base
            base = yield from self._racer.block(self.best)
            if self._clock() - self._looked >= LOOK_SECONDS:
                self._look()

    def _race_malloc(self, base: Block) -> Steps[Block]:
        """Tune malloc, then race that against explicit defaults: the state before the first mallopt cannot be restored.

        The gain is that over the block before, also that of the defaults: explicit ones are as large as glibc lets its
        own grow, so that tensors stay in the heap which that state maps and page-faults again at each step.
        """
        share = self._around.memory_share()
        if share is not None and share > AMPLE:
            note = f"{share:.0%} of the memory limit are in use, more than {AMPLE:.0%}"
            self._report_trial("allocator", "skipped", replace(self.best, malloc="tuned"), None, note=note)
            return base
        tuned, defaults = replace(self.best, malloc="tuned"), replace(self.best, malloc="default")
        base = yield from self._until_paid(tuned, base)
        before = yield from self._racer.block(self.best)
        after = yield from self._racer.block(tuned, expected=before.step)
        outcome: Outcome = yield from self._racer.race(tuned, defaults, after, must_prove=True)
        share = self._around.memory_share()
        is_slower = outcome.verdict == "won" or (share is not None and share > SHORT)
        gain = compared([(before.seconds, after.seconds)])
        self._report_trial("allocator", "lost" if is_slower else "won", tuned, after, ratio=gain)
        self.best = tuned
        if is_slower:
            self.best, gain = defaults, compared([(before.seconds, outcome.challenger.seconds)])
        if gain.ratio > LEAST_GAIN:
            self.gains.by_knob["allocator"] = gain
        return outcome.challenger if is_slower else outcome.best

    def _watch(self, base: Block, known: Known, wait: float) -> Steps[tuple[str, Block, bool]]:
        """Run until there is a reason for another race; return it, recent laps, and whether the counters show it."""
        began = self._clock()
        limit = self._granted_by_quota() if known.limit is None else known.limit
        laps: list[Lap] = []
        slow = changed = 0
        while True:
            laps.append((yield self.best))
            if self._clock() - self._looked < LOOK_SECONDS:
                continue
            self._keep_memory_free()
            seen, kept = self._look(), without_pauses(laps)
            step = sum(lap.wall for lap in kept) / sum(lap.steps for lap in kept)
            wall = sum(lap.wall for lap in laps)
            block = Block(tuple(lap.step for lap in kept), sum(lap.steps for lap in laps), wall)
            laps = []
            if self._granted_by_quota() != limit:
                return f"the container's CPU limit changed to {self._granted_by_quota():.3g}", block, True
            changed = changed + 1 if self._has_changed(seen, known.others) else 0
            slow = slow + 1 if not FAST < step / base.step < SLOW else 0
            is_early = self._clock() - began < min(wait, LEAST_WAIT)
            # Two signs that agree need no second look.
            agreed = changed > 0 and seen.others > known.others and step / base.step >= SLOW
            if (agreed or changed >= WINDOWS - 1) and not is_early:
                return _describe_change(seen, known.others), block, True
            if slow >= WINDOWS and self._clock() - began >= wait:
                return f"steps take {step / base.step:.2g} times as long as before", block, False

    def _keep_memory_free(self) -> None:
        """Go back to malloc's defaults once memory is short: a tuned malloc keeps freed memory.

        Before glibc 2.38 it keeps several times as much, as freed blocks that torch had aligned are not always used
        again (its bug 14581).
        """
        if self.best.malloc != "tuned":
            return
        share = self._around.memory_share()
        if share is None or share <= SHORT:
            return
        note = f"{share:.0%} of the memory limit are in use, more than {SHORT:.0%}"
        self._report_trial("allocator", "lost", self.best, None, note=note)
        self.best = replace(self.best, malloc="default")
        self.gains.by_knob.pop("allocator", None)
        if self.settled is not None:
            self._settle(self.settled, note)

    def _granted_by_quota(self) -> float:
        quota = self._around.quota
        return min(float(self._around.processors), math.inf if quota is None else float(quota.processors))

    def _has_changed(self, seen: Interference, before: float) -> bool:
        """Whether others took processors that the threads need, or gave back some that more threads could use."""
        if seen.free is None:
            return False
        if seen.others - before >= RELEASED:
            return self.best.pinned or (self.best.threads > 1 and self._is_crowded(self.best.threads))
        return before - seen.others >= RELEASED and seen.free > self.best.threads

    def _report_trial(
        self, knob: str, verdict: TrialVerdict, settings: Settings, block: Block | None, **more: object
    ) -> None:
        measured = {"step_s": block.step, "steps": block.steps} if block else {"steps": 0}
        fields = {**measured, "disturbed": self.seen.noisy, **more}
        self._report("trial", knob=knob, verdict=verdict, settings=settings, **fields)


def _describe_change(seen: Interference, before: float) -> str:
    verb = "took" if seen.others > before else "gave back"
    count = abs(seen.others - before)
    return f"other processes {verb} {count:.1f} of {seen.processors} processors"
