"""What is asked of a measuring process, line by line on its standard input, and what it answers in its journal."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.contract.plan import Plan
from preflight.contract.spec import STRICT, TrainSpec

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Bench:
    """The request of a measuring process."""

    spec: TrainSpec
    plan: Plan
    """Its setting (see training/process/launch.py) is that of every plan that is measured there."""
    store: Path
    """The prepared data set."""
    shares: int = 1
    """Workers among which the container is divided."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Measure:
    """Time steps of a plan, warmed up."""

    do: Literal["measure"] = "measure"
    plan: Plan
    steps: Count
    settle: Count = 0
    """Steps before them that do not count: another plan may have filled the caches."""
    warm_up: Count = 3
    """Steps before those, of a plan that is new in the process: they build primitives."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Effective batch of these steps; None: the training's own."""
    most_s: Seconds | None = None
    """Seconds after which no further step begins, where one was measured; None: all steps are measured."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Probe:
    """Look at the memory that a micro-batch of the plan's size takes; forgets what was warm."""

    do: Literal["probe"] = "probe"
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Validate:
    """Time an evaluation under a plan."""

    do: Literal["validate"] = "validate"
    plan: Plan
    samples: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Check:
    """Compare the gradients under a plan with those under another."""

    do: Literal["check"] = "check"
    plan: Plan
    reference: Plan
    steps: Annotated[int, Field(ge=0)]
    """That the reference is trained before, since at fresh weights the cosine is the luck of the seed."""
    samples: Annotated[int, Field(ge=1)]
    """Effective batch of those steps, at most."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Gauge:
    """Time the fixed piece of work of training/system/reference_workload.py on a plan's threads."""

    do: Literal["gauge"] = "gauge"
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Clear:
    """Forget every model that is kept warm."""

    do: Literal["clear"] = "clear"


Request = Annotated[Measure | Probe | Validate | Check | Gauge | Clear, Field(discriminator="do")]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Measured:
    """Steps that were timed."""

    seconds: tuple[Seconds, ...]
    """Of each step in the long run (client/preflight/container/work_clock.py), fetching its batch included."""
    fetch_s: Seconds
    """Sum of the seconds spent waiting for batches."""
    once_s: Seconds = 0.0
    """Sum of the seconds that each step spends once, whatever its samples: on updating the weights."""
    warm: tuple[Seconds, ...]
    """Seconds of the first steps of a plan that was new; empty for one that was warm."""
    start_s: Seconds
    """Until the loader workers of a plan that was new had started."""
    peak_bytes: Count
    """Most memory meanwhile, mapped files left out."""
    batch_statistics: bool
    """Whether the model has batch norms: then the micro-batch is no mere matter of speed."""
    disturbed: str
    """What else was at work on the processors meanwhile; empty where nothing was."""
    period_s: Seconds | None = None
    """Period of the CPU quota that set the pace; None: no quota did."""

    def whole(self, part: float) -> "Measured":
        """Return the same of whole steps, of whose samples these had a `part`."""
        if part == 1:
            return self
        once_s = self.once_s / max(1, len(self.seconds))

        def scaled(step_s: float) -> float:
            return step_s + max(0.0, step_s - once_s) * (1 / part - 1)

        return replace(
            self, seconds=tuple(map(scaled, self.seconds)), fetch_s=self.fetch_s / part,
            warm=tuple(map(scaled, self.warm)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Probed:
    """The memory that a micro-batch took."""

    peak_bytes: Count
    seconds: Seconds
    """Of its training, once warm."""
    batch_statistics: bool
    slow_weight_gradients: bool
    """Whether the model has convolutions whose weights' gradients may be quicker as matrix products."""
    free: Count | None = None
    """Processors that others have left free since the process began; None: that was too short, or is not told."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Validated:
    """An evaluation that was timed."""

    sample_s: Seconds
    """Seconds per sample."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Checked:
    """Two gradients that were compared."""

    cosine: Annotated[float, Field(ge=-1.01, le=1.01)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Gauged:
    """The fixed piece of work, timed."""

    seconds: Seconds


Answer = Measured | Probed | Validated | Checked | Gauged

BENCH = TypeAdapter(Bench)
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
