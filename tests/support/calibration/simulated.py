"""A laboratory in which nothing runs and time passes as the plans say, for tests of decisions on measurements."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from random import Random

from calibration.measure.backend import WorkerLost
from calibration.measure.protocol import Checked, Gauged, Measure, Measured, Probed, Validated
from calibration.result import Trial
from preflight.container.resources import Quota
from preflight.container.work_clock import Timed, sustained
from preflight.contract.plan import Plan
from support.calibration.bandwidth import Bandwidth
from training.process.launch import ProcessConfig, process_config

MIB = 1 << 20
OWN = Plan(threads=2, micro_batch=128)
AT_ONCE = 2
"""Plans that stay warm in a process."""
GAUGE = 0.004
"""Seconds of the fixed piece of work."""

Speeds = Callable[[Plan], float]


def usual(plan: Plan) -> float:
    """Return the seconds of a step on a machine like those that were measured."""
    seconds = 0.020 / {"default": 1.0, "tcmalloc": 1.2}[plan.allocator]
    seconds /= 1.8 if plan.precision == "bfloat16" else 1.0
    seconds /= 1.2 if plan.memory_format == "channels_last" else 1.0
    seconds *= 1.0 if plan.threads == 2 else 1.7
    seconds *= 1.5 if plan.loader_workers else 1.0
    return seconds * (1.02 if plan.compile else 1.0) * (1 + 0.2 * (128 / plan.micro_batch - 1) / 8)


def even(plan: Plan) -> float:  # noqa: ARG001 - the signature of every machine
    """Return the seconds of a step where no plan is faster than another."""
    return 0.020


@dataclass
class Simulated:
    """A laboratory in which time passes as the plans say."""

    speed: Speeds = usual
    memory: Callable[[Plan], int] = lambda plan: 300 * MIB + plan.micro_batch * MIB // 3
    allowed: int = 1 << 62
    cosine: float = 0.999
    noise: float = 0.0
    statistics: bool = True
    wide: bool = False
    """Whether there are convolutions whose weights' gradients may be quicker as matrix products."""
    fails: Callable[[Plan], Exception | None] = lambda _: None
    fetch_share: float = 0.01
    sample: Callable[[Plan], float] = lambda plan: usual(plan) / 128 / 3
    """Seconds of validating a sample."""
    disturbed: Callable[[float], bool] = lambda _: False
    compiling: float = 0.0
    """Seconds that the first step of a compiled plan takes in a process."""
    random: Random = field(default_factory=lambda: Random(1))  # noqa: S311 - dice
    starting: float = 0.0
    """Seconds that each process takes to start."""
    import_seconds: float = 0.0
    processes: set[ProcessConfig] = field(default_factory=set)
    clock: float = 0.0
    ran: list[Plan] = field(default_factory=list)
    """Plans of all runs, in this order."""
    asked: list[tuple[Plan, int]] = field(default_factory=list)
    """Steps that were measured, in this order."""
    samples: list[tuple[Plan, int]] = field(default_factory=list)
    """Samples of the steps that were measured, in this order."""
    checked: list[Plan] = field(default_factory=list)
    renewed: list[Plan] = field(default_factory=list)
    warm: list[Plan] = field(default_factory=list)
    deadline: float = math.inf
    part: float = 1.0
    """Size of the measured steps, relative to steps of 128 samples."""

    def now(self) -> float:
        return self.clock

    def limit(self, deadline: float) -> None:
        self.deadline = deadline

    def _begin(self, plan: Plan) -> None:
        self.ran.append(plan)
        if process_config(plan) not in self.processes:
            self.processes.add(process_config(plan))
            self.import_seconds += self.starting
        failure = self.fails(plan)
        if failure is not None:
            raise failure
        if self.memory(plan) > self.allowed:
            raise WorkerLost("killed for memory", memory=True)

    def _wait(self, seconds: float) -> None:
        """Let time pass, as a process that answers too late is ended."""
        self.clock += seconds
        if self.clock > self.deadline:
            self.clock = self.deadline
            self.processes.clear()
            raise WorkerLost("did not answer in time", late=True)

    def _step(self, plan: Plan) -> float:
        seconds = self.part * self.speed(plan) * math.exp(self.random.gauss(0, self.noise))
        self._wait(seconds)
        return seconds

    def _warm_up(self, plan: Plan, steps: int) -> tuple[float, ...]:
        beside = [one for one in self.warm if process_config(one) == process_config(plan) and one != plan]
        for one in beside[: max(0, len(beside) + 1 - AT_ONCE)]:
            self.warm.remove(one)
        if plan in self.warm:
            self.warm.remove(plan)
            steps = 0
        self.warm.append(plan)
        seconds = [2 * self._step(plan) for _ in range(steps)]
        if plan.compile and seconds:
            self._wait(self.compiling)
            seconds[0] += self.compiling
        return tuple(seconds)

    def measure(self, order: Measure) -> Measured:
        plan = order.plan
        self._begin(plan)
        disturbed = self.disturbed(self.clock)
        self.part = (order.samples or 128) / 128
        warm = self._warm_up(plan, order.warm_up)
        seconds: list[float] = []
        while len(seconds) < order.steps and not sum(seconds) >= (order.most_s or math.inf):
            seconds.append(self._step(plan))
        self.asked.append((plan, len(seconds)))
        self.samples.append((plan, order.samples or 128))
        return Measured(
            start_s=0.0,
            seconds=tuple(seconds), fetch_s=self.fetch_share * sum(seconds), warm=warm, peak_bytes=self.memory(plan),
            batch_statistics=self.statistics, disturbed="a neighbour" if disturbed else "",
        )  # fmt: skip

    def probe(self, plan: Plan) -> Probed:
        self._begin(plan)
        self.warm.clear()
        seconds = self.speed(plan) * plan.micro_batch / 128
        self._wait(2 * seconds)
        return Probed(
            peak_bytes=self.memory(plan),
            seconds=seconds,
            batch_statistics=self.statistics,
            slow_weight_gradients=self.wide,
        )

    def validate(self, plan: Plan, samples: int) -> Validated:
        self._begin(plan)
        self._wait(2 * samples * self.sample(plan))
        return Validated(sample_s=self.sample(plan))

    def check(self, plan: Plan, reference: Plan, *, steps: int, samples: int) -> Checked:
        self._begin(plan)
        self.checked.append(plan)
        self._wait(steps * samples / 128 * self.speed(reference))
        return Checked(cosine=self.cosine)

    def gauge(self, plan: Plan) -> Gauged:
        self._begin(plan)
        self._wait(10 * GAUGE)
        return Gauged(seconds=GAUGE)

    def isolate(self, plan: Plan) -> None:
        self.warm = [one for one in self.warm if one == plan]
        self.processes &= {process_config(plan)}

    def restart(self, plan: Plan) -> None:
        self.renewed.append(plan)
        self.processes.discard(process_config(plan))
        self.warm = [one for one in self.warm if process_config(one) != process_config(plan)]

    def blocks(self, plan: Plan) -> int:
        """Return how often steps of a plan were measured."""
        return sum(one == plan for one, _ in self.asked)


@dataclass
class Throttled(Simulated):
    """A laboratory under a CPU quota, whose plans keep all their threads busy; its clock is that of the periods."""

    quota: Bandwidth = field(default_factory=lambda: Bandwidth(0.5))
    counted: bool = True
    """Whether cpu.stat can be read."""

    def _step(self, plan: Plan) -> float:
        wall_s, _ = self._throttled(plan, self.part * self.speed(plan))
        return wall_s

    def _throttled(self, plan: Plan, full_s: float) -> tuple[float, float]:
        """Let work pass that takes `full_s` at full speed; return its wall and CPU seconds."""
        full_s *= math.exp(self.random.gauss(0, self.noise))
        self.quota.clock = max(self.quota.clock, self.clock)
        wall_s = self.quota.work(full_s, plan.threads * full_s)
        self._wait(self.quota.clock - self.clock)
        return wall_s, plan.threads * full_s

    def _timed(self, plan: Plan, full_s: float, pieces: int) -> Timed:
        """Time pieces of work, as a measuring process does."""
        before = self.quota.throttled_s
        walls, cpus = zip(*(self._throttled(plan, full_s) for _ in range(pieces)), strict=True)
        quota = Quota(Fraction(self.quota.processors), Path("cpu.max"), self.quota.period_s)
        return sustained(walls, cpus, quota, self.quota.throttled_s - before if self.counted else None)

    def measure(self, order: Measure) -> Measured:
        unmeasured = super().measure(replace(order, steps=0))
        timed = self._timed(order.plan, self.part * self.speed(order.plan), order.steps)
        self.asked[-1] = order.plan, order.steps
        return replace(unmeasured, seconds=tuple(timed.seconds), period_s=timed.period_s)

    def validate(self, plan: Plan, samples: int) -> Validated:
        self._begin(plan)
        return Validated(sample_s=self._timed(plan, samples * self.sample(plan), 2).seconds[0] / samples)


@dataclass
class Memoryless:
    """Records of a first calibration."""

    attempted: list[Plan] = field(default_factory=list)
    survivors: list[Plan] = field(default_factory=list)
    suspects: set[Plan] = field(default_factory=set)
    known: dict[tuple[Plan, Plan], Trial] = field(default_factory=dict)
    """Trials of an earlier calibration: (best, plan) -> trial."""

    def crashed_before(self, plan: Plan) -> bool:
        return plan in self.suspects

    def lookup(self, best: Plan, plan: Plan) -> Trial | None:
        return self.known.get((best, plan))

    def attempt(self, plan: Plan) -> None:
        self.attempted.append(plan)

    def mark_ok(self, plan: Plan) -> None:
        self.survivors.append(plan)

    def record(self, trial: Trial, best: Plan | None) -> None:
        if best is not None:
            self.known[best, trial.plan] = trial
        self.survivors.append(trial.plan)
