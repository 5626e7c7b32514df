"""Simulated hosts of many cores: the worker's own decisions, on recorded speeds by threads.

One at a time, packed, and an oracle that knows the best number of jobs at a time and starts them all at once.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tools.bench.record import Record
from training.prediction import Speeds
from worker.state.packing.division import Claim, divide_anyhow, joining

RECORDED: Final[Mapping[str, Speeds]] = {
    "cnn": ((1, 5099.0), (2, 5866.0), (4, 8557.0), (8, 11513.0), (16, 13459.0)),
    "resnet18": ((1, 80.0), (2, 127.0), (4, 174.0), (8, 284.0), (16, 441.0)),
    "shapes-net": ((1, 4648.0), (2, 6744.0), (4, 11967.0), (8, 16724.0), (16, 21968.0)),
}
"""Model -> samples a second by threads of the plan that calibration chose on 16 of a Xeon: medians of three turns with
0.25.0, 2026-11-28. More than 16 threads were not measured, and none are used."""
CORES: Final = (8, 16, 64)
JOBS: Final = 40
START_SECONDS: Final = 2.0
"""Seconds of a job before its first step, on one processor; no other begins while the first of a model calibrates."""
WORK_SECONDS: Final = (20.0, 400.0)
"""Least and most seconds of a job's training on one thread."""
SHARED_SPEED: Final = 0.95
"""Speed of a training while others run: caches and memory are shared."""


@dataclass(slots=True)
class Job:
    """A job of the simulation."""

    kind: str
    claim: Claim
    left: float
    """Steps that are left, in seconds on one thread."""
    starting: float = START_SECONDS


@dataclass(slots=True)
class Host:
    """A host that runs jobs, from the first to the last."""

    cores: int
    may_begin: Callable[[Sequence[Job], Job], bool]
    waiting: list[Job]
    running: list[Job] = field(default_factory=list)
    now: float = 0.0

    def run(self) -> float:
        """Return the seconds until the last job has ended."""
        while self.waiting or self.running:
            while self.waiting and (not self.running or self.may_begin(self.running, self.waiting[0])):
                self.running.append(self.waiting.pop(0))
            self._advance()
        return self.now

    def _advance(self) -> None:
        """Advance to the next moment at which a job has started or ended."""
        counts = divide_anyhow(tuple(job.claim for job in self.running), self.cores).processors
        loss = 1.0 if len(self.running) == 1 else SHARED_SPEED
        rates = [
            loss * job.claim.relative_speed(count) * job.claim.speeds[-1][1] / job.claim.speeds[0][1]
            for job, count in zip(self.running, counts, strict=True)
        ]
        ends = [job.starting or job.left / rate for job, rate in zip(self.running, rates, strict=True)]
        step = min(ends)
        self.now += step
        for job, rate, end in zip(self.running, rates, ends, strict=True):
            if job.starting:
                job.starting = 0.0 if end == step else job.starting - step
            else:
                job.left = 0.0 if end == step else job.left - step * rate
        self.running = [job for job in self.running if job.left > 0]


def simulate(record: Record) -> None:
    """Add a table of all hosts and mixes of jobs."""
    record.head("cores", "jobs", "one at a time, jobs an hour", "packed", "oracle", "packed of the oracle")
    for cores in CORES:
        for mix in (*RECORDED, "all three"):
            alone, packed, oracle = _seconds(cores, mix)
            hourly = [f"{3600 * JOBS / seconds:,.0f}" for seconds in (alone, packed, oracle)]
            gain = alone / packed
            packs = f"{hourly[1]} ({gain:.2f} times)"
            record.row(f"{cores}", mix, hourly[0], packs, hourly[2], f"{oracle / packed:.2f}")
    record.note(
        f"{JOBS} jobs of {WORK_SECONDS[0]:g} to {WORK_SECONDS[1]:g} s on one thread, {START_SECONDS:g} s to start; "
        f"shared caches take {1 - SHARED_SPEED:.0%} of the speed."
    )


def _seconds(cores: int, mix: str) -> tuple[float, float, float]:
    """Return the seconds of one at a time, packed, and the best fixed number of jobs at a time."""

    def jobs() -> list[Job]:
        drawn = random.Random(mix)  # noqa: S311 - the same jobs for each
        models = [*RECORDED] if mix == "all three" else [mix]
        found = []
        for _ in range(JOBS):
            model = drawn.choice(models)
            speeds = RECORDED[model]
            usable = tuple(pair for pair in speeds if pair[0] <= cores)
            found.append(Job(model, Claim(most=usable[-1][0], speeds=usable), drawn.uniform(*WORK_SECONDS)))
        return found

    known: set[str] = set()

    def pays(running: Sequence[Job], job: Job) -> bool:
        known.update(each.kind for each in running if not each.starting)
        starting = [each.kind for each in running if each.starting]
        if starting and not known.issuperset([job.kind, *starting]):
            return False
        return joining([each.claim for each in running], job.claim, cores, is_latency=False) is not None

    alone = Host(cores, lambda _running, _job: False, jobs()).run()
    packed = Host(cores, pays, jobs()).run()
    fixed = [Host(cores, _at_most(slots), jobs()).run() for slots in range(1, min(cores, JOBS) + 1)]
    return alone, packed, min(fixed)


def _at_most(slots: int) -> Callable[[Sequence[Job], Job], bool]:
    return lambda running, _job: len(running) < slots
