"""Replay: a backend in which time passes as it did in a recording, and the score of the plan that a search chose."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from calibration.measure.backend import WorkerLost
from calibration.measure.protocol import Checked, Gauged, Measure, Measured, Probed, Validated
from calibration.result import CalibrationResult, Trial
from calibration.search.search import search
from calibration.space import DEFAULT_SECONDS, Space
from calibration.task import Task, samples_for
from preflight.contract.plan import Plan
from tools.ablation.recording import RecordedPlan, Recording
from training.process.launch import ProcessConfig, process_config

AT_ONCE: Final = 2
"""Plans that stay warm in a process (calibration/measure/benchmark.py)."""
PASSES: Final = 3
"""Passes of a validation: the first builds primitives."""
GRID: Final = ("threads", "precision", "memory_format", "weight_gradients")
"""Fields whose combinations are recorded."""


@dataclass
class Replay:
    """A backend that answers from a recording; blocks are drawn by chance, and their steps are taken in their order."""

    recording: Recording
    random: Random
    clock: float = 0.0
    import_seconds: float = 0.0
    deadline: float = math.inf
    processes: set[ProcessConfig] = field(default_factory=set)
    warm: list[Plan] = field(default_factory=list)

    def now(self) -> float:
        """Return the seconds since the search began."""
        return self.clock

    def limit(self, deadline: float) -> None:
        """Set the time at which longer work is ended."""
        self.deadline = deadline

    def measure(self, order: Measure) -> Measured:
        """Draw a block of the plan, and let its time pass."""
        self._begin(order.plan)
        whole = (order.samples or self.recording.batch_size) / self.recording.samples
        near = nearest(self.recording, order.plan)
        factor = whole * factor_of(self.recording, order.plan)
        block = self.random.choice(near.blocks)
        steps = _endless(block.seconds, self.random)
        warm: list[float] = []
        if order.plan not in self.warm:
            warm = [factor * each for each in block.warm[: order.warm_up]] or [factor * next(steps)] * order.warm_up
        self._keep_warm(order.plan)
        for seconds in warm:
            self._wait(seconds)
        taken: list[float] = []
        while len(taken) < order.steps and not sum(taken) >= (order.most_s or math.inf):
            taken.append(factor * next(steps))
            self._wait(taken[-1])
        share = block.fetch_s / max(1e-9, sum(block.seconds))
        return Measured(
            seconds=tuple(taken), fetch_s=share * sum(taken), once_s=0.0, warm=tuple(warm), start_s=0.0,
            peak_bytes=block.peak_bytes, batch_statistics=block.batch_statistics, disturbed=block.disturbed,
            period_s=block.period_s,
        )  # fmt: skip

    def probe(self, plan: Plan) -> Probed:
        """Return memory by the line through the recorded probes."""
        self._begin(plan)
        self.warm.clear()
        (small, least), (large, most) = sorted(self.recording.probes.items())
        slope = (most.peak_bytes - least.peak_bytes) / (large - small)
        seconds = most.seconds * plan.micro_batch / large
        self._wait(2 * seconds)
        return replace(most, peak_bytes=round(least.peak_bytes + slope * (plan.micro_batch - small)), seconds=seconds)

    def validate(self, plan: Plan, samples: int) -> Validated:
        """Return the recorded seconds."""
        self._begin(plan)
        sample_s = validation_seconds(self.recording, plan)
        self._wait(PASSES * samples * sample_s)
        return Validated(sample_s=sample_s)

    def check(self, plan: Plan, reference: Plan, *, steps: int, samples: int) -> Checked:
        """Return the recorded cosine."""
        self._begin(plan)
        step_s = mean_step(self.recording, reference)
        self._wait((steps + 2) * step_s * samples / self.recording.batch_size)
        return Checked(cosine=nearest(self.recording, plan).cosine)

    def gauge(self, plan: Plan) -> Gauged:
        """Return the recorded seconds."""
        self._begin(plan)
        self._wait(10 * self.recording.gauge_s)
        return Gauged(seconds=self.recording.gauge_s)

    def isolate(self, plan: Plan) -> None:
        """Forget other plans and processes."""
        self.warm = []
        self.processes &= {process_config(plan)}

    def restart(self, plan: Plan) -> None:
        """Forget the process."""
        self.processes.discard(process_config(plan))
        self.warm = [one for one in self.warm if process_config(one) != process_config(plan)]

    def _begin(self, plan: Plan) -> None:
        if process_config(plan) not in self.processes:
            self.processes.add(process_config(plan))
            self.import_seconds += self.recording.start_s

    def _keep_warm(self, plan: Plan) -> None:
        alike = [one for one in self.warm if one != plan and process_config(one) == process_config(plan)]
        for one in alike[: max(0, len(alike) + 1 - AT_ONCE)]:
            self.warm.remove(one)
        self.warm = [*(one for one in self.warm if one != plan), plan]

    def _wait(self, seconds: float) -> None:
        self.clock += seconds
        if self.clock > self.deadline:
            self.clock = self.deadline
            self.processes.clear()
            self.warm.clear()
            raise WorkerLost("did not answer in time", late=True)


class NoRecords:
    """Records of a first calibration."""

    def crashed_before(self, plan: Plan) -> bool:  # noqa: ARG002 - the interface of records
        """Return False: nothing crashed."""
        return False

    def lookup(self, best: Plan, plan: Plan) -> Trial | None:  # noqa: ARG002
        """Return None: nothing is known."""
        return None

    def attempt(self, plan: Plan) -> None:
        """Ignore the attempt."""

    def mark_ok(self, plan: Plan) -> None:
        """Ignore the plan."""

    def record(self, trial: Trial, best: Plan | None) -> None:
        """Ignore the trial."""


def _endless(seconds: tuple[float, ...], random: Random) -> Iterator[float]:
    """Yield steps in their order from a random one on, and again from the first."""
    at = random.randrange(len(seconds))
    while True:
        yield seconds[at % len(seconds)]
        at += 1


def nearest(recording: Recording, plan: Plan) -> RecordedPlan:
    """Return the recorded plan of the grid with the same `GRID` fields; the user's own where there is none."""
    own = recording.plans[0]
    wanted = replace(own.plan, **{name: getattr(plan, name) for name in GRID})
    return next((one for one in recording.plans if one.plan == wanted), own)


def factor_of(recording: Recording, plan: Plan) -> float:
    """Return the factor that single changes, which the grid does not have, apply to the seconds of a step."""
    own, factor = recording.plans[0], 1.0
    for one in recording.plans:
        changed = [
            name
            for name in ("micro_batch", "loader_workers", "interop", "affinity")
            if _differ(one.plan, own.plan, name)
        ]
        if len(changed) == 1 and not _differ(one.plan, plan, changed[0]):
            factor *= _mean(one) / _mean(own)
    return factor


def _differ(one: Plan, other: Plan, name: str) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


def _mean(one: RecordedPlan) -> float:
    return statistics.fmean(second for block in one.blocks for second in block.seconds)


def mean_step(recording: Recording, plan: Plan) -> float:
    """Return the mean seconds of a whole step over all rounds, as in a training."""
    whole = recording.batch_size / recording.samples
    return whole * factor_of(recording, plan) * _mean(nearest(recording, plan))


def validation_seconds(recording: Recording, plan: Plan) -> float:
    """Return the seconds of validating a sample."""
    own = recording.plans[0]
    larger = next(one for one in recording.plans if one.plan.eval_batch != own.plan.eval_batch)
    factor = larger.sample_s / own.sample_s if plan.eval_batch > own.plan.eval_batch else 1.0
    return factor * nearest(recording, plan).sample_s


def epoch_seconds(recording: Recording, plan: Plan) -> float:
    """Return the seconds of an epoch under a plan."""
    steps = recording.steps_per_epoch * mean_step(recording, plan)
    return steps + recording.validation * validation_seconds(recording, plan)


def task_of(recording: Recording, epochs: float, own: Plan | None = None) -> Task:
    """Return the task of a job with `epochs` in the recorded container."""
    return Task(
        own=own or recording.plans[0].plan, batch_size=recording.batch_size,
        steps_per_epoch=recording.steps_per_epoch, validation=recording.validation, epochs=epochs,
        space=Space(
            threads=recording.threads, processors=recording.affinity, bfloat16=recording.bfloat16, tcmalloc=False,
            compiler=False,
        ),
        memory_bytes=recording.memory_bytes, samples=samples_for(recording.memory_bytes), exact=False,
        seconds=DEFAULT_SECONDS,
    )  # fmt: skip


def replayed(recording: Recording, task: Task, seed: int) -> CalibrationResult:
    """Search once; the same seed draws the same blocks as long as the same is asked."""
    return search(task, Replay(recording, Random(seed)), NoRecords(), lambda _: None)  # noqa: S311 - dice
