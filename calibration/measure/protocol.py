"""Messages of a measuring process: requests, line by line on its standard input, and answers, in its journal."""

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
    """Plan with the setting (see training/process/launch.py) that all plans measured there share."""
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
    warm_up: Count = 3
    """Steps before all others, of a plan that is new in the process: they build primitives."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Effective batch of these steps; None: the training's own."""
    most_s: Seconds | None = None
    """Seconds after which no further step begins, where one was measured; None: all steps are measured."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Probe:
    """Measure the memory of a micro-batch of the plan's size; warm models are forgotten."""

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
    """Steps that the reference is trained before, since at fresh weights the cosine is the luck of the seed."""
    samples: Annotated[int, Field(ge=1)]
    """Largest effective batch of those steps."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Gauge:
    """Time the reference workload of training/system/reference_workload.py on a plan's threads."""

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
    """Seconds of each step in the long run (client/preflight/container/work_clock.py), fetching its batch included."""
    fetch_s: Seconds
    """Sum of the seconds spent waiting for batches."""
    once_s: Seconds = 0.0
    """Sum of the seconds that each step spends once, whatever its samples: on updating the weights."""
    warm: tuple[Seconds, ...]
    """Seconds of the first steps of a plan that was new; empty for one that was warm."""
    start_s: Seconds
    """Seconds until the loader workers of a plan that was new had started."""
    peak_bytes: Count
    """Most bytes of memory during the steps, mapped files left out."""
    batch_statistics: bool
    """Whether the model has batch norms: then the micro-batch changes more than the speed."""
    disturbed: str
    """Description of other load on the processors during the steps; empty where there was none."""
    period_s: Seconds | None = None
    """Period of the CPU quota that set the pace; None: no quota did."""

    def whole(self, part: float) -> "Measured":
        """Return the same for whole steps, of whose samples the measured ones had the share `part`."""
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
    """Seconds of training on it, once warm."""
    batch_statistics: bool
    slow_weight_gradients: bool
    """Whether the model has convolutions whose weights' gradients may be quicker as matrix products."""
    free: Count | None = None
    """Processors that others have left free since the process began; None: that was too short, or is unknown."""


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
    """Time of the reference workload."""

    seconds: Seconds


Answer = Measured | Probed | Validated | Checked | Gauged

BENCH = TypeAdapter(Bench)
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
