"""Memory search: the largest micro-batch that is safe, predicted from two sizes before any is run.

Three phases bound the feasible sizes: the effective batch itself (1A), else doubling until a share of the budget is
reached (1B), and bisection between the last size that fitted and the first that did not (1C). A size that is predicted
to take more than is safe is not run; one that is killed for memory all the same is a measurement. Above the safe share
the kernel may discard the pages of the program's own code again and again before it kills, so that only the first size
that ran is kept there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from calibration.measure.backend import Backend, WorkerLost
from calibration.memory.model import SAFE, Memory, MemoryModel, equal_piece
from calibration.result import MemoryFit, MemoryProbe
from preflight.contract.plan import Plan
from preflight.contract.verdicts import ProbeOutcome, ProbePhase
from preflight.errors import OutOfMemory
from preflight.numbers import MIB

LINE: Final = (8, 32)
"""Micro-batches that the line goes through: small enough for any container, far enough apart to see a slope."""
SLOW: Final = 0.5
"""Seconds of a step above which plans are compared on steps of fewer samples (calibration/races/baseline.py)."""
SURELY_FITS: Final = 0.75
"""Share of the budget up to which a predicted size is not run: predictions are off by a quarter at most."""
ENOUGH: Final = 0.60
"""Share of the budget at which doubling ends."""
PRECISION: Final = 4
"""Bisection ends within a quarter, or where no equal piece of the batch lies between."""


def _tell_nobody(probe: MemoryProbe) -> None:
    """Report no probe."""


class CrashHistory(Protocol):
    """Plans under which earlier calibrations crashed."""

    def crashed_before(self, plan: Plan) -> bool:
        """Whether an earlier calibration crashed under this plan."""
        ...

    def attempt(self, plan: Plan) -> None:
        """Note that the plan is about to run."""
        ...

    def mark_ok(self, plan: Plan) -> None:
        """Note that the plan ran, or that its process alone was lost."""
        ...


@dataclass(slots=True, kw_only=True)
class MemoryProber:
    """Search for the largest micro-batch that fits."""

    own: Plan
    """The user's plan, for which the micro-batch is searched."""
    threads: int
    """Most threads of a probe: more than there are free processors would take seconds for a step."""
    model: MemoryModel
    backend: Backend
    records: CrashHistory
    tell: Callable[[MemoryProbe], None] = _tell_nobody
    """Called with each probe as it is made."""
    probes: list[MemoryProbe] = field(default_factory=list)
    step_s: float = 0.0
    batch_statistics: bool = False
    slow_weight_gradients: bool = False
    free: int | None = None
    """Processors that others left free while the first size was probed; None: unknown."""

    def explore(self) -> Memory:
        """Return the largest micro-batch that fits, and what it takes.

        Raises:
            OutOfMemory: not even one sample fits.
            WorkerLost, PlanFailed: a process was lost for another reason, or the plan does not run.
        """
        for size in self._sizes():
            if not self._run("line", size):
                break
        self._require_one_sample()
        feasible = self._cap() or self._bisect(*self._double())
        return self._conclude(feasible)

    def killed(self, size: int) -> Memory:
        """Return the same, after the plan in pieces of `size` was killed although it was predicted to fit.

        Raises:
            OutOfMemory: not even one sample fits.
            WorkerLost, PlanFailed: a process was lost for another reason, or the plan does not run.
        """
        self.model.peaks = {each: peak for each, peak in self.model.peaks.items() if each < size}
        self.probes = [probe for probe in self.probes if probe.phase != "1A" or probe.micro_batch < size]
        self._note("1A", size, None, "killed")
        self._require_one_sample()
        return self._conclude(self._bisect(*self._double()))

    def _sizes(self) -> list[int]:
        """Return the sizes of the line: smaller ones where an earlier calibration did not survive such a size.

        Memory need not have been the reason, but that is known only when there is a line.
        """
        sizes = {min(size, self.model.batch_size) for size in LINE}
        every = range(2, max(sizes) + 1)
        crashed_before = next((size for size in every if self.records.crashed_before(self._in_pieces(size))), None)
        return sorted(sizes if crashed_before is None else {max(1, crashed_before // 4), max(1, crashed_before // 2)})

    def _in_pieces(self, size: int) -> Plan:
        """Return the user's plan with micro-batches of `size`, without loader workers: they take seconds to start.

        Their memory is seen when the plan itself is measured.
        """
        threads = min(self.threads, self.own.threads)
        return replace(self.own, threads=threads, micro_batch=size, loader_workers=0, prefetch_factor=None)

    def _require_one_sample(self) -> None:
        if self.model.peaks or (all(probe.micro_batch > 1 for probe in self.probes) and self._run("line", 1)):
            return
        (one,) = [probe for probe in self.probes if probe.micro_batch == 1][-1:]
        may = f"of which {self.model.budget_bytes // MIB} MiB may be used"
        if one.peak_bytes is not None:  # it ran, and so may the training
            raise WorkerLost(
                f"a micro-batch of one sample takes {one.peak_bytes // MIB} MiB of memory, {may}", memory=True
            )
        raise OutOfMemory(
            f"a micro-batch of one sample was killed for memory, {may}; give the container more memory or use a "
            "smaller model"
        )

    def _run(self, phase: ProbePhase, size: int) -> bool:
        """Run one micro-batch of `size`, unless it is predicted not to fit; return whether it fits."""
        if size in self.model.peaks:
            return True
        plan, safe_bytes = self._in_pieces(size), SAFE * self.model.budget_bytes
        if (self.model.predict(size) or self.model.at_least(size)) > safe_bytes:
            return self._note(phase, size, None, "refused")
        if size > 1 and self._doubtful(size):
            return self._note(phase, size, None, "killed")
        self.records.attempt(plan)
        try:
            probed = self.backend.probe(plan)
        except WorkerLost as error:
            self.records.mark_ok(plan)
            if not error.memory:
                raise
            return self._note(phase, size, None, "killed")
        self.records.mark_ok(plan)
        if self.free is None and probed.free is not None:
            self.free, self.threads = probed.free, max(1, min(self.threads, probed.free))
        self.batch_statistics = probed.batch_statistics
        self.slow_weight_gradients = probed.slow_weight_gradients
        self.step_s = probed.seconds * self.model.batch_size / size
        over = probed.peak_bytes > (safe_bytes if self.model.peaks else self.model.budget_bytes)
        self._note(phase, size, probed.peak_bytes, "over" if over else "fits")
        if not over:
            self.model.peaks[size] = probed.peak_bytes
        return not over

    def _doubtful(self, size: int) -> bool:
        """Whether an earlier calibration did not survive a size that may well have been too large."""
        if not self.records.crashed_before(self._in_pieces(size)):
            return False
        base, slope = (
            self.model.line() if self.model.peaks else (float("inf"), 0.0)
        )  # through one size alone, an upper bound
        return base + slope * size > ENOUGH * self.model.budget_bytes

    def _note(self, phase: ProbePhase, size: int, peak: int | None, outcome: ProbeOutcome) -> bool:
        predicted = self.model.predict(size)
        probe = MemoryProbe(phase=phase, micro_batch=size, predicted_bytes=predicted, peak_bytes=peak, outcome=outcome)
        self.probes.append(probe)
        self.tell(probe)
        return outcome == "fits"

    def _cap(self) -> int:
        """Return the effective batch where it is predicted to fit, else 0.

        The measurement to come verifies it; but where that is on parts of a batch, what may not fit is run here.
        """
        predicted = self.model.predict(self.model.batch_size)
        if self.model.batch_size in self.model.peaks:
            return self.model.batch_size
        known_not = any(probe.outcome in ("killed", "over") for probe in self.probes)
        unsafe = predicted is not None and predicted > SAFE * self.model.budget_bytes
        if known_not or predicted is None or unsafe or self._doubtful(self.model.batch_size):
            self._note("1A", self.model.batch_size, None, "refused")
            return 0
        if self.step_s > SLOW and predicted > SURELY_FITS * self.model.budget_bytes:
            return self.model.batch_size if self._run("1A", self.model.batch_size) else 0
        self._note("1A", self.model.batch_size, None, "fits")
        return self.model.batch_size

    def _double(self) -> tuple[int, int]:
        """Return the largest size that fitted, and the least that did not."""
        size = max(self.model.peaks)
        failed = min(
            (probe.micro_batch for probe in self.probes if probe.outcome != "fits"), default=self.model.batch_size
        )
        while 2 * size < failed and self.model.peaks[size] < ENOUGH * self.model.budget_bytes:
            if not self._run("1B", 2 * size):
                return size, 2 * size
            size *= 2
        return size, failed

    def _bisect(self, fits: int, fails: int) -> int:
        batch_size = self.model.batch_size
        while fails - fits > max(1, fits // PRECISION):
            own = equal_piece(batch_size, fits)
            least = next((size for size in range(fits + 1, fails) if equal_piece(batch_size, size) > own), None)
            if least is None:
                break
            line = self.model.safe_samples()
            middle = line if fits < line < fails else (fits + fails) // 2  # where the line says: seldom needs a second
            middle = equal_piece(batch_size, max(least, middle))
            if self._run("1C", middle):
                fits = middle
            else:
                fails = middle
        return fits

    def _conclude(self, feasible: int) -> Memory:
        base, slope = self.model.line()
        fit = MemoryFit(
            probes=tuple(self.probes), base_bytes=max(0.0, base), sample_bytes=slope,
            budget_bytes=self.model.budget_bytes, max_feasible=feasible, capped=feasible == self.model.batch_size,
        )  # fmt: skip
        most = max(feasible, self.model.safe_samples() if slope > 0 else self.own.eval_batch)
        plan, notes = self.own, []
        if plan.micro_batch > feasible:
            need, safe = round(base + slope * plan.micro_batch) // MIB, round(SAFE * self.model.budget_bytes) // MIB
            plan = replace(plan, micro_batch=equal_piece(self.model.batch_size, feasible))
            notes.append(
                f"a micro-batch of {self.own.micro_batch} needs about {need} MiB, but {safe} MiB are safe to use, "
                f"so that {plan.micro_batch} are taken at a time"
                + ("; batch norms see only those" if self.batch_statistics else "")
            )
        if plan.eval_batch > most:
            plan = replace(plan, eval_batch=most)
            notes.append(f"an evaluation takes at most {most} samples at a time")
        return Memory(
            plan=plan, note="; ".join(notes), step_s=self.step_s, batch_statistics=self.batch_statistics,
            slow_weight_gradients=self.slow_weight_gradients, most_samples=most, fit=fit,
        )  # fmt: skip
