"""The search on simulated machines, whose every plan has a known speed and a known memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from calibration.finding import Finding, Trial
from calibration.lab import Lost
from calibration.orders import Checked, Measured, Probed, Validated
from calibration.search import Task, search
from calibration.space import Space
from training.plan import Plan

MIB = 1 << 20
OWN = Plan(threads=2, micro_batch=128)
SPACE = Space(threads=(2, 1), processors=2, bfloat16=True, tcmalloc=True, compiler=True)
TASK = Task(
    own=OWN, batch_size=128, steps_per_epoch=430, validation=5000, epochs=1, space=SPACE, memory_bytes=4096 * MIB,
    samples=16, exact=False, seconds=45.0,
)  # fmt: skip

Speeds = Callable[[Plan], float]


def usual(plan: Plan) -> float:
    """Return the seconds of a step on a machine like those that were measured."""
    seconds = 0.020 / {"default": 1.0, "tuned": 1.15, "tcmalloc": 1.2}[plan.allocator]
    seconds /= 1.8 if plan.precision == "bfloat16" else 1.0
    seconds /= 1.2 if plan.memory_format == "channels_last" else 1.0
    seconds *= 1.0 if plan.threads == 2 else 1.7
    seconds *= 1.5 if plan.loader_workers else 1.0
    return seconds * (1.02 if plan.compile else 1.0) * (1 + 0.2 * (128 / plan.micro_batch - 1) / 8)


@dataclass
class Simulated:
    """A laboratory in which time passes as the plans say."""

    speed: Speeds = usual
    memory: Callable[[Plan], int] = lambda plan: 300 * MIB + plan.micro_batch * MIB // 3
    allowed: int = 1 << 62
    cosine: float = 0.999
    noise: float = 0.0
    statistics: bool = True
    fails: Callable[[Plan], Exception | None] = lambda plan: None
    fetch_share: float = 0.01
    disturbed: Callable[[float], bool] = lambda now: False
    random: Random = field(default_factory=lambda: Random(1))  # noqa: S311 - dice
    import_seconds: float = 0.0
    clock: float = 0.0
    ran: list[Plan] = field(default_factory=list)
    renewed: list[Plan] = field(default_factory=list)
    deadline: float = math.inf

    def now(self) -> float:
        return self.clock

    def limit(self, deadline: float) -> None:
        self.deadline = deadline

    def _begin(self, plan: Plan) -> None:
        self.ran.append(plan)
        failure = self.fails(plan)
        if failure is not None:
            raise failure
        if self.memory(plan) > self.allowed:
            raise Lost("killed for memory", memory=True)

    def _step(self, plan: Plan) -> float:
        seconds = self.speed(plan) * math.exp(self.random.gauss(0, self.noise))
        self.clock += seconds
        return seconds

    def measure(self, plan: Plan, steps: int, *, settle: int, warm_up: int) -> Measured:
        self._begin(plan)
        disturbed = self.disturbed(self.clock)
        warm = tuple(2 * self._step(plan) for _ in range(warm_up)) if plan not in self.ran[:-1] else ()
        for _ in range(settle):
            self._step(plan)
        seconds = tuple(self._step(plan) for _ in range(steps))
        return Measured(
            seconds=seconds, fetch_s=self.fetch_share * sum(seconds), warm=warm, peak_bytes=self.memory(plan),
            batch_statistics=self.statistics, disturbed="a neighbour" if disturbed else "",
        )  # fmt: skip

    def probe(self, plan: Plan) -> Probed:
        self._begin(plan)
        seconds = self.speed(plan) * plan.micro_batch / 128
        self.clock += 2 * seconds
        return Probed(peak_bytes=self.memory(plan), seconds=seconds, batch_statistics=self.statistics)

    def validate(self, plan: Plan, samples: int) -> Validated:
        self._begin(plan)
        self.clock += 2 * samples * self.speed(plan) / 128 / 3
        return Validated(sample_s=self.speed(plan) / 128 / 3)

    def check(self, plan: Plan, reference: Plan) -> Checked:
        self.clock += 8 * self.speed(reference) / 4
        return Checked(cosine=self.cosine)

    def alone(self, plan: Plan) -> None:
        pass

    def renew(self, plan: Plan) -> None:
        self.renewed.append(plan)


@dataclass
class Memoryless:
    """Records of a first calibration."""

    attempted: list[Plan] = field(default_factory=list)
    survivors: list[Plan] = field(default_factory=list)
    suspects: set[Plan] = field(default_factory=set)

    def suspect(self, plan: Plan) -> bool:
        return plan in self.suspects

    def raced(self, best: Plan, plan: Plan) -> Trial | None:
        return None

    def attempt(self, plan: Plan) -> None:
        self.attempted.append(plan)

    def survived(self, plan: Plan) -> None:
        self.survivors.append(plan)

    def ended(self, trial: Trial, best: Plan | None) -> None:
        self.survivors.append(trial.plan)


def found(lab: Simulated, task: Task = TASK, records: Memoryless | None = None) -> Finding:
    """Search, and return what was found."""
    return search(task, lab, records or Memoryless(), lambda trial: None)
