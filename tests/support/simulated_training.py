"""A training on a simulated machine: a function gives the seconds of its steps, on a simulated clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from random import Random

from preflight.container.interference import Interference
from preflight.container.resources import Quota
from preflight.tuner.laps import LAP_SECONDS, Lap
from preflight.tuner.settings import Settings
from preflight.tuner.tuning import Known, Limits, Tuning

StepSeconds = Callable[[Settings, float], float]
"""Settings and the time -> seconds of a step."""


@dataclass
class SimulatedTraining:
    """Runs a tuning; steps scatter by `noise`."""

    step_s: StepSeconds
    others: Callable[[float], float] = lambda _: 0.0
    """Time -> processors that others use."""
    processors: int = 2
    cpus: float | None = None
    """Processors of the quota; None: there is no quota."""
    noise: float = 0.03
    memory: float = 0.2
    growth: float = 0.0
    """Growth of `memory` in a second of tuned malloc."""
    now: float = 0.0
    records: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    laps: list[tuple[float, Settings, Lap]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.quota = None if self.cpus is None else Quota(Fraction(self.cpus), Path("/none/cpu.max"), 0.1)
        self._random = Random(1)  # noqa: S311 - dice
        self._looked = 0.0

    def look(self) -> Interference:
        others = self.others(self.now)
        since, self._looked = max(self.now - self._looked, 1e-9), self.now
        return Interference(
            seconds=since, processors=self.processors, own=self.processors - others, others=others, stolen=0.0,
            waited=others / 2, pressure=None, throttled=0.0, quota=self.cpus, lowered=False, switches=0.0, reread=0.0,
        )  # fmt: skip

    def throttled_s(self) -> float | None:
        return None if self.quota is None else 0.0

    def children_s(self) -> float:
        return 0.0

    def memory_share(self) -> float | None:
        tuned = sum(lap.wall for _, settings, lap in self.laps if settings.malloc == "tuned")
        return self.memory + self.growth * tuned

    def run(
        self, own: Settings, seconds: float, limits: Limits | None = None, known: Known | None = None
    ) -> Tuning:  # fmt: skip
        """Train for `seconds`, from the beginning, or in a training that a calibration has measured."""

        def record(what: str, **fields: object) -> None:
            self.records.append((what, fields))

        tuning = Tuning(own, self, record, limits or Limits(), clock=lambda: self.now)
        steps = tuning.steps() if known is None else tuning.resume(known)
        wanted = next(steps)
        while self.now < seconds:
            step_s = self.step_s(wanted, self.now) * self._random.lognormvariate(0, self.noise)
            count = max(1, int(LAP_SECONDS / step_s))
            lap = Lap(count, step_s * count, step_s * count)
            self.now += lap.wall
            self.laps.append((self.now, wanted, lap))
            wanted = steps.send(lap)
        return tuning

    def lost(self, best: Callable[[float], float]) -> float:
        """Return the seconds beyond those that steps would take by `best`, which gives them for each time."""
        return sum(lap.wall - best(at) * lap.steps for at, _, lap in self.laps)

    def trials(self) -> list[tuple[str, int, str]]:
        """Return knob, threads and verdict of each trial."""
        found = []
        for what, fields in self.records:
            settings = fields.get("settings")
            if what == "trial" and isinstance(settings, Settings):
                found.append((str(fields["knob"]), settings.threads, str(fields["verdict"])))
        return found
