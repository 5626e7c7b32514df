"""The search for the fastest plan that is safe: what is measured, in which order, and what counts as faster.

It decides and measures nothing itself (calibration/measure/process_pool.py does), so that all of it can be tried on
simulated machines.

The objective is the wall time of an epoch: its real steps and its validation. The constraint is the memory that a
training process may have; the effective batch never changes. The user's own plan is measured first, so that there is
an answer from then on; the winner is measured again in a fresh process against it, and without a proven gain it stays.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from calibration.measure.process_pool import Broken, Laboratory, Lost
from calibration.measure.protocol import Measured
from calibration.memory.prober import ENOUGH, Explorer, Memory
from calibration.result import Confidence, Confirmation, Finding, Knob, MemoryFit, Trial, Verdict
from calibration.search.mutations import COMPILE_SECONDS, KNOBS, MAIN, TURNS, Known, Skipped, Space
from calibration.statistics import Comparison, compare, slowest, step_interval, typical
from training.config.plan import Plan
from training.loop.prediction import Prediction

SHARE: Final = 0.05
"""Share of the predicted training time that a calibration may take."""
LEAST_SECONDS: Final = 5.0
"""Even a short training gets this much: the plan is kept for those that follow."""
CONFIRMING: Final = 0.25
"""Share of the budget that the pairs of the confirmation may take."""
CLOSING: Final = 0.10
"""Share of it that is kept for what surrounds them: warming up, a validation, whole batches."""
SLICES: Final = 8
"""Races that the rest of the budget is meant for."""
PAIRS: Final = 4
"""Blocks that the steps of a race are measured in, so that two plans can take turns."""
LEAST_PAIRS: Final = 3
"""A plan is not given up before so many."""
CONFIRMING_PAIRS: Final = 7
"""With six, a single pair that was hit decides how low the gain may be."""
SURE: Final = 1.15
"""Above this even the low end of a gain is so far from no gain that no more pairs are needed to prove it."""
BLOCK_SECONDS: Final = 0.2
"""A block of less is at the mercy of the scheduler; a slow model's single step is longer."""
MOST_WARM_UP: Final = 3
"""Steps of a plan that is new in its process that do not count: they build primitives and fill caches."""
WARM_UP_SECONDS: Final = 0.5
"""A slow model warms up in fewer."""
SETTLING: Final = 0.05
"""Seconds of a step below which the first one of a block does not count: another plan has filled the caches."""
DROP_BELOW: Final = 0.85
"""A challenger that is surely this much slower than the best is not measured further."""
GAIN: Final = 1.03
"""What is a proven gain: less is within the noise of a shared machine."""
LIKELY: Final = 1.01
"""What a challenger must gain where nothing but speed is at stake: to miss a gain costs as much as to imagine one, and
what was imagined does not outlive the confirmation against the user's own plan."""
LEVEL: Final = 0.98
"""A smaller micro-batch within this of the best is taken: it saves memory. So is the tuned allocator, and even below
this where it is not surely slower: glibc's own takes seconds of training to become as fast (bench/allocator.py)."""
COSINE: Final = 0.99
"""Least cosine between the gradients of a reduced precision and those of float32."""
EVAL_SAMPLES: Final = 2000
"""Samples that the cost of a validation is measured on; fewer where a model takes long for them."""
EVAL_SECONDS: Final = 0.4
"""What that may take, by the seconds of a training step."""
SLOW: Final = 0.5
"""Seconds of a step above which plans are compared on steps of fewer samples: some pairs of short steps tell them apart
more surely than one pair of long ones, where there is time for one at all."""
LEAST_SAMPLES: Final = 32
"""Of such a step: with fewer, what every layer costs by itself counts for too much."""
STEADY_SECONDS: Final = 0.4
"""For which the plan that is kept runs at last, alone and on whole batches: as it will in training."""
STEADY_STEPS: Final = 2
"""Least steps of that, of a slow model."""
MARGIN: Final = 0.04
"""Share of the budget that is left then: asking and answering take time, too."""
STEADY_BLOCKS: Final = 4
"""Blocks that they are told in, so that a disturbance within them does not outweigh the blocks of the confirmation."""
AGREEING: Final = 0.10
"""By how much more than this both may not differ, or the machine was another one in one of them."""
AGAIN: Final = 2
"""Disturbed pairs of a race that are measured again."""
RESTARTS: Final = 2
"""Processes that may be lost before the search ends with what it has."""
OVERDUE: Final = 10.0
"""Seconds beyond the budget, where the longest time allows them, after which a measurement is taken for hung."""
GRACE: Final = 15.0
"""Seconds beyond the longest time for which the user's own plan is waited: without its figure there is none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be calibrated, and within what."""

    own: Plan
    """The user's own configuration."""
    batch_size: int
    """Effective."""
    steps_per_epoch: int
    validation: int
    """Samples of a validation; 0: none."""
    epochs: int
    space: Space
    memory_bytes: int
    """What a training process may have."""
    samples: int
    """Steps measured of each plan."""
    exact: bool
    """Whether the user asked for so many; else a quick model gets more, because they cost nothing."""
    seconds: float
    """Longest time, the starting of processes apart."""
    knobs: frozenset[Knob] = frozenset(KNOBS)


Pair = tuple[Sequence[float], Sequence[float]]
"""Seconds of steps of the best plan, and of the challenger right before or after."""


class Records(Protocol):
    """What earlier calibrations of the same workload in the same surroundings left behind."""

    def suspect(self, plan: Plan) -> bool:
        """Whether an earlier calibration did not survive this plan."""
        ...

    def raced(self, best: Plan, plan: Plan) -> Trial | None:
        """Return how the plan did against the best one before."""
        ...

    def attempt(self, plan: Plan) -> None:
        """Note that the plan is about to run."""
        ...

    def survived(self, plan: Plan) -> None:
        """Note that it ran, or that its process alone was lost."""
        ...

    def ended(self, trial: Trial, best: Plan | None) -> None:
        """Note what came of it."""
        ...


@dataclass(slots=True)
class Evidence:
    """What is known of the speed of a plan."""

    step_s: float
    blocks: list[Sequence[float]]
    """Seconds of its steps, as they were measured together."""
    warm_s: float = 0.0
    """What its first steps took beyond the others."""
    fetch_share: float = 0.0
    peak_bytes: int = 0
    sample_s: float | None = None
    """Seconds of validating a sample."""
    gauges: list[float] = field(default_factory=list)
    """Seconds of the fixed piece of work, right before and after its steps."""
    disturbed: str = ""
    """What else used the processors while it was last measured."""

    def forget_last(self) -> None:
        """Leave out the last block, unless there is no other."""
        if len(self.blocks) > 1:
            self.blocks.pop()
            self._settle()

    def _settle(self) -> None:
        self.step_s = statistics.median([step for block in self.blocks for step in block])

    def add(self, measured: Measured) -> None:
        """Take what was measured."""
        self.blocks.append(measured.seconds)
        self._settle()
        self.fetch_share = min(1.0, measured.fetch_s / max(1e-9, sum(measured.seconds)))
        self.peak_bytes = max(self.peak_bytes, measured.peak_bytes)
        self.disturbed = measured.disturbed
        if measured.warm:
            self.warm_s = max(0.0, sum(measured.warm) - len(measured.warm) * self.step_s)


def search(task: Task, lab: Laboratory, records: Records, tell: Callable[[Trial], None]) -> Finding:
    """Return the finding; `tell` hears every trial as it ends.

    Raises:
        OutOfMemory: even a micro-batch of one sample was killed for memory.
        NothingMeasured: not even the user's own plan could be measured.
    """
    return _Search(task, lab, records, tell).run()


class NothingMeasured(Exception):
    """There is no figure at all; the sentence says why."""

    def __init__(self, message: str, plan: Plan) -> None:
        super().__init__(message)
        self.plan = plan
        """The user's own plan, in smaller pieces where memory is known to demand it."""


def _plan_of(candidate: Plan | Skipped) -> Plan:
    return candidate.plan if isinstance(candidate, Skipped) else candidate


def _shares(steps: int, blocks: int) -> list[int]:
    """Return how many steps each block has; none has none."""
    counts = [steps * (turn + 1) // blocks - steps * turn // blocks for turn in range(blocks)]
    return [count for count in counts if count]


class _Search:
    def __init__(self, task: Task, lab: Laboratory, records: Records, tell: Callable[[Trial], None]) -> None:
        self.task = task
        self.lab = lab
        self.records = records
        self.tell = tell
        self.trials: list[Trial] = []
        self.evidence: dict[Plan, Evidence] = {}
        self.gained: dict[Plan, float] = {}
        """Plans that won: how much faster each was than the one before it."""
        self.failures = 0
        self.complete = True
        self.disturbed = False
        self.noise = ""
        """What disturbed the last race; empty where nothing did."""
        self.budget = task.seconds
        self.batch_statistics = False
        self.own = task.own
        """The user's plan, in smaller pieces where memory demands it."""
        self.cut = task.batch_size
        """Samples of a step on which plans are compared. All seconds of steps are told for whole batches."""
        self.explorer = Explorer(
            own=task.own, batch_size=task.batch_size, budget_bytes=task.memory_bytes, lab=lab, records=records
        )
        self.paid = 1.0
        """What smaller micro-batches have cost: speed against the fastest of them."""
        self.unconfirmed = ""
        """Why the winner could not be confirmed; empty where it could."""

    # --- the way through

    def run(self) -> Finding:
        self.lab.limit(self.task.seconds + GRACE)
        best, memory = self._own(self._explored(self.explorer.explore))
        for knob in self._order():
            best = self._turn(knob, best, memory)
        confirmation, best = self._confirm(best)
        self._run_steadily(best, memory)
        return self._finding(best, confirmation, memory.fit)

    def _explored(self, explore: Callable[[], Memory]) -> Memory:
        """Find out what fits, and in which pieces the user's plan does; a process that is lost gives way to another."""
        while True:
            try:
                memory = explore()
            except Lost as error:
                self._bear(error)
            except Broken as error:
                raise NothingMeasured(str(error), self.own) from error
            else:
                self.batch_statistics = memory.batch_statistics
                self.own = memory.plan
                return memory

    def _bear(self, error: Lost) -> None:
        """Count a process that was lost before there is any figure; raises `NothingMeasured` where it is the last."""
        self.failures += 1
        if self.failures > RESTARTS or self.lab.now() >= self.task.seconds:
            raise NothingMeasured(str(error), self.own) from error

    def _own(self, memory: Memory) -> tuple[Plan, Memory]:
        """Measure the user's own plan, in smaller pieces where memory proves less than predicted, and fit the budget.

        Returns:
            The plan, and what is known of its memory then.
        """
        began = self.lab.now()
        while True:
            self.budget = self._budget(memory.step_s)
            self.cut = self._samples_of_a_step(memory)
            self.records.attempt(self.own)
            try:
                self._measure(self.own, self._steps(memory.step_s), like_s=memory.step_s)
                self._validate(self.own)
                self._gauge(self.own)
                break
            except Lost as error:
                self.records.survived(self.own)
                self._bear(error)
                if error.memory:
                    if self.own.micro_batch == 1:
                        raise NothingMeasured(str(error), self.own) from error
                    memory = self._explored(partial(self.explorer.killed, self.own.micro_batch))
            except Broken as error:
                raise NothingMeasured(str(error), self.own) from error
        plan = self.own
        self.noise = self.evidence[plan].disturbed
        self.budget = self._budget(self.evidence[plan].step_s)
        self.lab.limit(max(1.2 * self.budget, min(self.task.seconds, self.budget + OVERDUE)))
        notes = [memory.note] if memory.note else []
        if self.cut < self.task.batch_size:
            notes.append(f"plans are compared on steps of {self.cut} samples, as whole ones take {memory.step_s:.1f} s")
        self._tell(self._trial("own", plan, "own", "; ".join(notes), began), None)
        self._verify(plan, memory)
        return plan, memory

    def _samples_of_a_step(self, memory: Memory) -> int:
        """Return on how many samples plans are compared: the whole batch, unless its step takes long.

        Where it takes much of the memory, too, that it fits is verified before all else.
        """
        fit, cut = memory.fit, self.task.batch_size
        needed = fit.base_bytes + fit.sample_bytes * memory.plan.micro_batch
        if needed > ENOUGH * fit.budget_bytes:
            return cut
        while cut // 2 >= LEAST_SAMPLES and memory.step_s * cut / self.task.batch_size > SLOW:
            cut //= 2
        return cut

    def _verify(self, plan: Plan, memory: Memory) -> None:
        """Take down what the user's plan took of memory, where whole batches were measured."""
        if self.cut == self.task.batch_size and plan == self.own:
            memory.verified(self.evidence[plan].peak_bytes)

    def _order(self) -> list[Knob]:
        """Return the knobs to turn, the usual order but for two larger effects.

        Beside a busy neighbour threads wait for each other, and loader workers take the processors from the training.
        """
        first: list[Knob] = ["loader"] if self.own.loader_workers else []
        first += ["threads"] if self.evidence[self.own].disturbed else []
        return [knob for knob in dict.fromkeys((*first, *KNOBS)) if knob in self.task.knobs]

    def _turn(self, knob: Knob, best: Plan, memory: Memory) -> Plan:
        """Turn one knob as long as it gains; return the best plan then."""
        if knob == "micro_batch":  # of which a part of a batch says nothing
            part, self.cut = self.cut, self.task.batch_size
            best = self._turn_on_this_part(knob, best, memory)
            self.cut = part
            return best
        return self._turn_on_this_part(knob, best, memory)

    def _turn_on_this_part(self, knob: Knob, best: Plan, memory: Memory) -> Plan:
        tried, start = {best}, best
        while True:
            # What was just found out may make the next plan needless; only halving goes on from what it found.
            origin = best if knob == "micro_batch" else start
            turned = TURNS[knob](origin, self.task.space, self._known(best, memory))
            candidate = next((each for each in turned if _plan_of(each) not in tried), None)
            if candidate is None:
                return best
            plan = _plan_of(candidate)
            tried.add(plan)
            if isinstance(candidate, Skipped):
                self._skip(knob, plan, candidate.why)
            elif self.failures > RESTARTS:
                self._miss(knob, plan, "too many processes were lost before it")
            elif self.lab.now() + self._race_s(best, plan) > self._deadline(best):
                self._miss(knob, plan, "the time was over")
            elif self._try(knob, best, plan):
                best = plan

    def _try(self, knob: Knob, best: Plan, plan: Plan) -> bool:
        """Measure a plan against the best one; return whether it takes its place."""
        began, self.noise = self.lab.now(), ""
        if self.records.suspect(plan):
            return self._end(knob, plan, "failed", "an earlier calibration did not survive it", began, best)
        # What compiling costs is charged to the whole training, and that may have been another one's length.
        kept = None if knob == "compile" else self.records.raced(best, plan)
        if kept is not None:
            return self._adopt(kept, best)
        self.records.attempt(plan)
        try:
            if plan.precision != "float32" and plan.precision != best.precision:
                if not self._side_by_side(best, plan):
                    self.lab.alone(plan)  # comparing gradients takes a second model
                cosine = self.lab.check(plan, best).cosine
                if not cosine > COSINE:
                    note = (
                        f"its gradients differ from those of {best.precision}: cosine {cosine:.3f}, at least {COSINE}"
                    )
                    return self._end(knob, plan, "rejected", note, began, best)
            comparison = self._race_validation(best, plan) if knob == "eval_batch" else self._race(best, plan)
        except Broken as error:
            return self._end(knob, plan, "failed", str(error), began, best)
        except Lost as error:
            self.failures += 1
            return self._end(knob, plan, "failed", str(error), began, best)
        verdict, note = self._judge(knob, best, plan, comparison)
        return self._end(knob, plan, verdict, note, began, best, comparison)

    def _judge(self, knob: Knob, best: Plan, plan: Plan, comparison: Comparison) -> tuple[Verdict, str]:
        """Decide what a comparison means for the plan."""
        ratio = comparison.ratio
        if knob == "compile" and plan.compile:
            ratio = self._training_s(self.evidence[best].step_s) / (
                self._training_s(self.evidence[plan].step_s) + self.evidence[plan].warm_s
            )
            note = f"{ratio:.2f}x with its {self.evidence[plan].warm_s:.0f} s of compiling over the whole training"
            return ("won" if ratio >= GAIN else "lost"), note
        if knob == "micro_batch" and plan.micro_batch < best.micro_batch:
            paid = min(1.0, self.paid * ratio)
            if paid >= LEVEL:
                self.paid = paid
                return "won", "as fast in less memory"
        if knob == "allocator" and plan.allocator == "tuned" and best != self.own and ratio < LIKELY:
            if ratio >= LEVEL:
                return "won", "as fast, and so from its first steps on"
            if ratio >= DROP_BELOW and comparison.high >= 1:
                return "won", "not surely slower, and fast from its first steps on"
        if comparison.high < DROP_BELOW and LEAST_PAIRS <= comparison.pairs < PAIRS:
            return "dropped", f"surely slower after {comparison.pairs} pairs"
        if ratio >= GAIN and comparison.low > 1:
            return "won", ""
        if ratio >= LIKELY and knob in MAIN and plan.precision == best.precision:
            return "won", "likely, not proven"
        return ("level" if ratio > 1 or comparison.high > 1 else "lost"), ""

    # --- measuring

    def _deadline(self, best: Plan) -> float:
        """Return when the races end, so that the best plan can be confirmed; a large gain is confirmed quickly."""
        large = self.evidence[self.own].step_s > SURE**2 * self.evidence[best].step_s
        return self.budget * (1 - CONFIRMING / (1 + large) - CLOSING)

    def _steps(self, step_s: float, share: float = 1 / SLICES) -> int:
        """Return how many steps of a plan are measured in a race: what was asked for, within a slice of the time."""
        step_s *= self._part
        wanted = self.task.samples
        if not self.task.exact:
            wanted = max(wanted, math.ceil(PAIRS * BLOCK_SECONDS / step_s))
        # Who says how many may have them out of the longest time; a short training's share would be too little.
        budget = self.task.seconds if self.task.exact else self.budget
        return max(min(2, self.task.samples), min(wanted, int(budget * share / 2 / step_s)))

    def _race_s(self, best: Plan, plan: Plan) -> float:
        """Return about how many seconds a race against the best plan takes, and what its confirmation would add."""
        step_s = self.evidence[best].step_s
        compilings = 2 - best.compile if plan.compile else 0  # in this process, and in the fresh one
        steps = self._steps(step_s) + self._warm_up(step_s)
        return 2 * steps * step_s * self._part + compilings * COMPILE_SECONDS

    def _measure(self, plan: Plan, steps: int, *, settle: int = 0, like_s: float) -> Sequence[float]:
        """Time `steps` steps of a plan, one of which takes about `like_s`; return the seconds of whole ones."""
        measured = self.lab.measure(
            plan, steps, settle=settle, warm_up=self._warm_up(like_s), samples=self.cut
        )  # fmt: skip
        measured = measured.times(1 / self._part)
        self.evidence.setdefault(plan, Evidence(1.0, [])).add(measured)
        return measured.seconds

    def _warm_up(self, step_s: float) -> int:
        """Return how many steps of a plan that is new in its process do not count."""
        return max(1, min(MOST_WARM_UP, int(WARM_UP_SECONDS / (step_s * self._part))))

    @property
    def _part(self) -> float:
        """Return what the steps that are measured are of whole ones."""
        return self.cut / self.task.batch_size

    def _race(self, best: Plan, plan: Plan) -> Comparison:
        """Measure both in turns, and compare pair by pair; by whole epochs where the allocator is not the same.

        glibc's own may give back and fault in anew what a validation needs, and then takes several times as long.
        """
        steps = compare(self._pairs(best, plan, PAIRS, 1 / SLICES))
        if plan.allocator == best.allocator or steps.high < DROP_BELOW:
            return steps
        for one in (best, plan):
            if self.evidence[one].sample_s is None:
                self._validate(one, EVAL_SECONDS / 3)
        return self._of_epochs(best, plan, steps)

    def _pairs(self, best: Plan, plan: Plan, pairs: int, share: float) -> list[Pair]:
        """Measure both in turns (A B, B A, ...) within a share of the budget; return the seconds pair by pair.

        A pair during which something else used the processors is measured again; where that does not end, the trial
        is a disturbed one. Where both cannot be kept ready, one is measured after the other instead.
        """
        self.noise = ""
        step_s = self.evidence[best].step_s
        steps = self._steps(step_s, share)
        if not self._side_by_side(best, plan):
            if not self.evidence[best].blocks:  # its trial was kept
                self.lab.alone(best)
                self._measure(best, steps, like_s=step_s)
            self.lab.alone(plan)
            return [(self.evidence[best].blocks[-1], self._measure(plan, steps, like_s=step_s))]
        settle = 1 if step_s * self._part < SETTLING else 0
        taken: list[Pair] = []
        again = 0
        counts = _shares(steps, pairs)
        while len(taken) < len(counts):
            order = (plan, best) if len(taken) % 2 else (best, plan)
            blocks = {one: self._measure(one, counts[len(taken)], settle=settle, like_s=step_s) for one in order}
            noise = self.evidence[best].disturbed or self.evidence[plan].disturbed
            if noise and again < AGAIN and self.lab.now() < self.budget:
                again += 1
                for one in order:
                    self.evidence[one].forget_last()
                continue
            self.noise = self.noise or noise
            taken.append((blocks[best], blocks[plan]))
            if len(taken) >= LEAST_PAIRS and compare(taken).high < DROP_BELOW:
                break
            if len(taken) >= PAIRS < pairs and compare(taken).low > SURE:
                break
        return taken

    def _race_validation(self, best: Plan, plan: Plan) -> Comparison:
        """Compare two evaluation batches by what a whole epoch gains."""
        self._validate(plan, like=best)
        mine, theirs = self._epoch_s(plan), self._epoch_s(best)
        return Comparison(theirs / mine, theirs / mine, theirs / mine, 1)

    def _validate(self, plan: Plan, seconds: float = EVAL_SECONDS, like: Plan | None = None) -> None:
        """Measure the cost of a validation, for some `seconds`; `like` is the plan whose steps this one shares."""
        if like is not None:
            self.evidence[plan] = replace(self.evidence[like], blocks=list(self.evidence[like].blocks), sample_s=None)
        if not self.task.validation:
            self.evidence[plan].sample_s = 0.0
            return
        sample_s = self.evidence[plan].step_s / self.task.batch_size  # an upper bound: forward alone is less
        samples = min(self.task.validation, EVAL_SAMPLES, max(64, int(seconds / 3 / sample_s)))
        self.evidence[plan].sample_s = self.lab.validate(plan, samples).sample_s

    def _gauge(self, plan: Plan) -> None:
        """Take the machine's own speed down beside that of the plan."""
        self.evidence[plan].gauges.append(self.lab.gauge(plan).seconds)

    def _side_by_side(self, best: Plan, plan: Plan) -> bool:
        """Whether both can be kept ready: memory suffices, and no loader of one works while the other is timed."""
        idle = best.loader_workers == plan.loader_workers == 0
        return idle and 2 * self.evidence[best].peak_bytes <= self.task.memory_bytes

    # --- what follows from it

    def _budget(self, step_s: float) -> float:
        """Return the seconds that a calibration may take, where the user's plan takes `step_s` for a step."""
        return min(self.task.seconds, max(LEAST_SECONDS, SHARE * self._training_s(step_s)))

    def _training_s(self, step_s: float) -> float:
        return self.task.epochs * self.task.steps_per_epoch * step_s

    def _epoch_s(self, plan: Plan) -> float:
        """Return the predicted seconds of an epoch; a validation that was not timed is scaled from the user's plan."""
        known, own = self.evidence[plan], self.evidence[self.own]
        sample_s = known.sample_s
        if sample_s is None:
            sample_s = (own.sample_s or 0.0) * known.step_s / own.step_s
        return self.task.steps_per_epoch * known.step_s + self.task.validation * sample_s

    def _known(self, best: Plan, memory: Memory) -> Known:
        epoch_s = self._epoch_s(best)
        return Known(
            batch_size=self.task.batch_size, batch_statistics=self.batch_statistics,
            fetch_share=self.evidence[best].fetch_share,
            validation_share=1 - self.task.steps_per_epoch * self.evidence[best].step_s / epoch_s,
            training_s=self.task.epochs * epoch_s,
            room_bytes=self.task.memory_bytes - max(
                self.evidence[best].peak_bytes, memory.fit.base_bytes + memory.fit.sample_bytes * best.micro_batch
            ),
            process_bytes=memory.fit.base_bytes,
            most_samples=memory.most_samples,
            gained=self.gained,
        )  # fmt: skip

    def _confirm(self, best: Plan) -> tuple[Confirmation | None, Plan]:
        """Measure the winner in a fresh process against the user's own plan; return which of them stays."""
        if best == self.own:
            return None, best
        suspect = self.evidence[best]
        try:
            self.lab.renew(best)
            self.evidence[best] = Evidence(suspect.step_s, [])  # the best of many was lucky, too
            taken = self._pairs(self.own, best, CONFIRMING_PAIRS, CONFIRMING)
            comparison, noise = compare(taken), self.noise
            left = min(CONFIRMING, 1 - MARGIN - self.lab.now() / self.budget)
            if comparison.low <= GAIN < comparison.ratio and left > 0:
                taken += self._pairs(self.own, best, CONFIRMING_PAIRS, left)  # it is probable, and not proven
                comparison, noise = compare(taken), noise or self.noise
            self._gauge(best)
            self._validate(best)
            if best.eval_batch != self.own.eval_batch:
                self._validate(self.own)
                comparison = self._of_epochs(self.own, best, comparison)
            self.disturbed = bool(noise)
        except (Lost, Broken) as error:
            self.complete = False
            self.unconfirmed = f"the winner could not be confirmed: {error}"
            self.evidence[best] = suspect
            return None, self.own
        proven = comparison.low > GAIN
        confirmation = Confirmation(
            ratio=comparison.ratio, low=comparison.low, high=comparison.high, pairs=comparison.pairs, proven=proven
        )
        return confirmation, best if proven else self.own

    def _run_steadily(self, plan: Plan, memory: Memory) -> None:
        """Time the plan that is kept as it will train: by itself, on whole batches, for longer than a block.

        Left out where there is no time for it. What goes wrong costs nothing but confidence.
        """
        known, whole = self.evidence[plan], self.cut == self.task.batch_size
        step_s, blocks = known.step_s, len(known.blocks)
        left_s = (1 - MARGIN) * self.budget - self.lab.now()
        affordable = int(left_s / step_s) - (not whole)  # a step that warms up
        steps = min(affordable, max(STEADY_STEPS, int(STEADY_SECONDS / step_s)))
        if steps < STEADY_STEPS:
            self.complete &= whole
            return
        self.cut = self.task.batch_size
        try:
            if not whole:
                self.lab.alone(plan)
                self.evidence[plan] = replace(known, blocks=[])
            for count in _shares(steps, STEADY_BLOCKS):
                self._measure(plan, count, like_s=step_s)
        except (Lost, Broken):
            self.complete, self.evidence[plan] = False, known
            return
        self._verify(plan, memory)
        if whole and abs(math.log(typical(self.evidence[plan].blocks[blocks:]) / step_s)) > AGREEING:
            self.disturbed = True

    def _of_epochs(self, one: Plan, other: Plan, steps: Comparison) -> Comparison:
        """Return what a comparison of the steps of two plans means for whole epochs, validation included."""
        steps_s = self.task.steps_per_epoch * self.evidence[one].step_s
        mine_s, others_s = (self.task.validation * (self.evidence[plan].sample_s or 0.0) for plan in (one, other))

        def of_epochs(ratio: float) -> float:
            return (steps_s + mine_s) / (steps_s / ratio + others_s)

        return Comparison(of_epochs(steps.ratio), of_epochs(steps.low), of_epochs(steps.high), steps.pairs)

    def _finding(self, plan: Plan, confirmation: Confirmation | None, fit: MemoryFit | None) -> Finding:
        known = self.evidence[plan]
        step_s, low, high = step_interval(known.blocks)
        validation_s = self.task.validation * (known.sample_s or 0.0)
        steps = self.task.steps_per_epoch
        prediction = Prediction(
            epoch_s=steps * step_s + validation_s, low_s=steps * low + validation_s, high_s=steps * high + validation_s,
            step_s=step_s, validation_s=validation_s, warm_s=known.warm_s,
            gauge_s=statistics.median(known.gauges) if known.gauges else None,
        )  # fmt: skip
        confidence: Confidence = "high" if self.complete and not self.disturbed else "low"
        return Finding(
            baseline=self.task.own, plan=plan, prediction=prediction, trials=tuple(self.trials), memory=fit,
            confirmation=confirmation, confidence=confidence, why=self._why(confirmation),
            samples=self.task.samples, batch_size=self.task.batch_size, steps_per_epoch=steps, budget_s=self.budget,
            calibration_seconds=self.lab.now(), import_seconds=self.lab.import_seconds,
        )  # fmt: skip

    def _why(self, confirmation: Confirmation | None) -> str:
        measured = len({trial.plan for trial in self.trials if trial.step_s is not None})
        if self.unconfirmed:
            return self.unconfirmed
        if confirmation is None:
            return "no other plan was faster" if measured > 1 else "no other plan was measured"
        if not confirmation.proven:
            return f"no improvement was proven ({confirmation.ratio:.2f}x, but it may be {confirmation.low:.2f}x)"
        return f"{confirmation.ratio:.2f}x as fast as your own plan, the fastest of {measured} measured"

    # --- telling

    def _trial(
        self, knob: Knob, plan: Plan, verdict: Verdict, note: str, began: float, comparison: Comparison | None = None
    ) -> Trial:
        known = self.evidence.get(plan)
        steps = [step for block in known.blocks for step in block] if known else []
        return Trial(
            knob=knob, plan=plan, verdict=verdict, note=note, at=began, seconds=max(0.0, self.lab.now() - began),
            steps=len(steps), step_s=known.step_s if known else None,
            predicted_epoch_s=self._epoch_s(plan) if known else None,
            slowest_s=slowest(steps) if steps else None,
            ratio=comparison.ratio if comparison else None, low=comparison.low if comparison else None,
            high=comparison.high if comparison else None,
            fetch_share=known.fetch_share if known else None, peak_bytes=known.peak_bytes if known else None,
            disturbed=bool(self.noise),
        )  # fmt: skip

    def _end(
        self, knob: Knob, plan: Plan, verdict: Verdict, note: str, began: float, best: Plan,
        comparison: Comparison | None = None,
    ) -> bool:  # fmt: skip
        """Record what came of a plan; return whether it won."""
        won = verdict == "won"
        if won and comparison:
            self.gained[plan] = comparison.ratio
        self._tell(self._trial(knob, plan, verdict, note, began, comparison), best)
        return won

    def _tell(self, trial: Trial, best: Plan | None) -> None:
        self.records.ended(trial, best)
        self._note(trial)

    def _note(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.tell(trial)

    def _adopt(self, kept: Trial, best: Plan) -> bool:
        """Take an earlier calibration's word for how a plan did against the best one."""
        if kept.verdict == "won" and kept.ratio:
            self.gained[kept.plan] = kept.ratio
            known, step_s, sample_s = self.evidence[best], self.evidence[best].step_s / kept.ratio, None
            if kept.knob == "eval_batch":  # there the steps stay as they are, and the ratio is that of an epoch
                step_s = known.step_s
                rest_s = self._epoch_s(best) / kept.ratio - self.task.steps_per_epoch * step_s
                sample_s = max(0.0, rest_s) / max(1, self.task.validation)
            self.evidence[kept.plan] = replace(known, step_s=step_s, sample_s=sample_s, blocks=[])
        self._note(replace(kept, at=self.lab.now(), seconds=0.0, kept=True))
        return kept.verdict == "won"

    def _skip(self, knob: Knob, plan: Plan, why: str) -> None:
        self._note(Trial(knob=knob, plan=plan, verdict="skipped", note=why, at=self.lab.now(), seconds=0.0))

    def _miss(self, knob: Knob, plan: Plan, why: str) -> None:
        """Leave out a plan that was worth a measurement."""
        self.complete &= knob not in MAIN
        self._skip(knob, plan, why)
