"""Backend: the interface of the search to measuring processes."""

from typing import Protocol

from calibration.measure.protocol import Checked, Gauged, Measure, Measured, Probed, Validated
from preflight.contract.plan import Plan


class WorkerLost(Exception):
    """The process that measured is gone."""

    def __init__(self, message: str, *, memory: bool = False, late: bool = False) -> None:
        super().__init__(message)
        self.memory = memory
        """Whether it was killed for memory, or could not get any."""
        self.late = late
        """Whether it was ended because it did not answer before the deadline."""


class PlanFailed(Exception):
    """A plan does not run; its process continues."""


class Backend(Protocol):
    """Interface that measures plans. Every method that asks a process raises `WorkerLost` or `PlanFailed`."""

    import_seconds: float
    """Seconds spent starting processes and importing torch."""

    def now(self) -> float:
        """Return the seconds since the calibration began, without the starting of processes."""
        ...

    def limit(self, deadline: float) -> None:
        """End the process of any request that is unanswered at `deadline` (as `now` counts)."""
        ...

    def measure(self, order: Measure) -> Measured:
        """Time steps of a plan."""
        ...

    def probe(self, plan: Plan) -> Probed:
        """Measure the memory of a micro-batch."""
        ...

    def validate(self, plan: Plan, samples: int) -> Validated:
        """Time an evaluation."""
        ...

    def check(self, plan: Plan, reference: Plan, *, steps: int, samples: int) -> Checked:
        """Compare gradients after some steps of `samples` samples."""
        ...

    def gauge(self, plan: Plan) -> Gauged:
        """Time a piece of work that is the same on any machine and under any plan."""
        ...

    def isolate(self, plan: Plan) -> None:
        """Forget the warm models of the plan's process, and end the processes of other settings."""
        ...

    def restart(self, plan: Plan) -> None:
        """End the process of the plan's setting, so that its next measurement is made in a new one."""
        ...
