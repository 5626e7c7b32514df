"""How much memory a micro-batch takes here, and the largest that is safe: predicted from two sizes before any is tried.

Three phases bound what is feasible: the cap itself (1A), else doubling until a share of the budget is reached (1B), and
bisection between the last that fitted and the first that did not (1C). A size whose prediction is above the limit is
not run; one that is killed for memory all the same is a measurement.
"""

from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from calibration.measure.process_pool import Laboratory, Lost
from calibration.result import MemoryFit, MemoryProbe
from training.config.plan import Plan
from training.errors import OutOfMemory

LINE: Final = (8, 32)
"""Micro-batches that the line goes through: small enough for any container, far enough apart to see a slope."""
SAFE: Final = 0.85
"""Share of the budget above which a size is not run."""
ENOUGH: Final = 0.60
"""Share of the budget at which doubling ends."""
PRECISION: Final = 4
"""Bisection ends within a quarter: pieces of a batch are equal, so that few sizes are of use."""
MIB: Final = 1 << 20

Phase = Literal["line", "1A", "1B", "1C"]


class Suspicions(Protocol):
    """What earlier calibrations did not survive."""

    def suspect(self, plan: Plan) -> bool:
        """Whether an earlier calibration did not survive this plan."""
        ...

    def attempt(self, plan: Plan) -> None:
        """Note that the plan is about to run."""
        ...

    def survived(self, plan: Plan) -> None:
        """Note that it ran, or that its process alone was lost."""
        ...


@dataclass(slots=True, kw_only=True)
class Memory:
    """What is known of the memory that the user's plan takes."""

    plan: Plan
    """The user's plan, in smaller pieces where it would not fit."""
    note: str
    """What had to be changed; empty where nothing had."""
    step_s: float
    """Estimated seconds of a step of the effective batch."""
    batch_statistics: bool
    most_samples: int
    """Samples that fit at once, by the line: with no gradients to be kept, an evaluation takes less."""
    fit: MemoryFit

    def verified(self, peak_bytes: int) -> None:
        """Take the peak that was measured under the plan in place of its prediction."""
        probes = tuple(
            replace(probe, peak_bytes=peak_bytes, outcome="fits" if peak_bytes <= self.fit.budget_bytes else "over")
            if probe.phase == "1A" and probe.micro_batch == self.plan.micro_batch and probe.outcome == "fits"
            else probe
            for probe in self.fit.probes
        )
        self.fit = replace(self.fit, probes=probes)


@dataclass(slots=True, kw_only=True)
class Explorer:
    """The state of an exploration."""

    own: Plan
    batch_size: int
    """Effective: no larger micro-batch is of use."""
    budget_bytes: int
    lab: Laboratory
    records: Suspicions
    peaks: dict[int, int] = field(default_factory=dict)
    """Micro-batch -> bytes, of those that ran."""
    probes: list[MemoryProbe] = field(default_factory=list)
    step_s: float = 0.0
    batch_statistics: bool = False

    def explore(self) -> Memory:
        """Return what fits.

        Raises:
            OutOfMemory: not even one sample does.
            Lost, Broken: a process was lost for another reason, or the plan does not run.
        """
        for size in self._sizes():
            if not self._run("line", size):
                break
        self._see_that_one_fits()
        feasible = self._cap() or self._bisect(*self._double())
        return self._conclude(feasible)

    def killed(self, size: int) -> Memory:
        """Return what fits, now that the plan in pieces of `size` was killed, though it was predicted to fit.

        Raises:
            OutOfMemory: not even one sample does.
            Lost, Broken: a process was lost for another reason, or the plan does not run.
        """
        self.peaks = {each: peak for each, peak in self.peaks.items() if each < size}
        self.probes = [probe for probe in self.probes if probe.phase != "1A" or probe.micro_batch < size]
        self._note("1A", size, None, "killed")
        self._see_that_one_fits()
        return self._conclude(self._bisect(*self._double()))

    def _sizes(self) -> list[int]:
        """Return the sizes of the line: smaller ones where an earlier calibration did not survive such a size.

        It need not have been the memory that it died of, but that is known only when there is a line.
        """
        sizes = {min(size, self.batch_size) for size in LINE}
        every = range(2, max(sizes) + 1)
        suspect = next((size for size in every if self.records.suspect(self._in_pieces(size))), None)
        return sorted(sizes if suspect is None else {max(1, suspect // 4), max(1, suspect // 2)})

    def _in_pieces(self, size: int) -> Plan:
        """Return the user's plan with micro-batches of `size`, and without loader workers: they take seconds to start.

        What those take is seen when the plan itself is measured.
        """
        return replace(self.own, micro_batch=size, loader_workers=0, prefetch_factor=None)

    def _see_that_one_fits(self) -> None:
        if self.peaks or (all(probe.micro_batch > 1 for probe in self.probes) and self._run("line", 1)):
            return
        (one,) = [probe for probe in self.probes if probe.micro_batch == 1][-1:]
        may = f"of which {self.budget_bytes // MIB} MiB may be used"
        if one.peak_bytes is not None:  # it ran, and so may the training
            raise Lost(f"a micro-batch of one sample takes {one.peak_bytes // MIB} MiB of memory, {may}", memory=True)
        raise OutOfMemory(
            f"a micro-batch of one sample was killed for memory, {may}; give the container more memory or use a "
            "smaller model"
        )

    def _line(self) -> tuple[float, float]:
        """Return base and slope of bytes = base + slope * samples, through the smallest and the largest that ran."""
        smallest, largest = min(self.peaks), max(self.peaks)
        if smallest == largest:  # nothing is known of the slope: all of it could be
            return 0.0, self.peaks[smallest] / smallest
        slope = max(0.0, (self.peaks[largest] - self.peaks[smallest]) / (largest - smallest))
        return self.peaks[smallest] - slope * smallest, slope

    def _most(self) -> int:
        """Return the largest size that the line predicts to be safe; 0 where it predicts nothing."""
        base, slope = self._line()
        return int((SAFE * self.budget_bytes - base) / slope) if slope > 0 else 0

    def _predicted(self, size: int) -> int | None:
        if not self.peaks or (len(self.peaks) < 2 and self.batch_size > 1):
            return None
        base, slope = self._line()
        return max(0, round(base + slope * size))

    def _run(self, phase: Phase, size: int) -> bool:
        """Run one micro-batch of `size`, unless it is predicted not to fit; return whether it fits."""
        if size in self.peaks:
            return True
        plan, predicted = self._in_pieces(size), self._predicted(size)
        if predicted is not None and predicted > SAFE * self.budget_bytes:
            return self._note(phase, size, None, "refused")
        if size > 1 and self._doubtful(size):
            return self._note(phase, size, None, "killed")
        self.records.attempt(plan)
        try:
            probed = self.lab.probe(plan)
        except Lost as error:
            self.records.survived(plan)
            if not error.memory:
                raise
            return self._note(phase, size, None, "killed")
        self.records.survived(plan)
        self.batch_statistics = probed.batch_statistics
        self.step_s = probed.seconds * self.batch_size / size
        over = probed.peak_bytes > self.budget_bytes
        self._note(phase, size, probed.peak_bytes, "over" if over else "fits")
        if not over:
            self.peaks[size] = probed.peak_bytes
        return not over

    def _doubtful(self, size: int) -> bool:
        """Whether an earlier calibration did not survive a size that may well have been too large."""
        if not self.records.suspect(self._in_pieces(size)):
            return False
        base, slope = self._line() if self.peaks else (float("inf"), 0.0)  # through one size alone, an upper bound
        return base + slope * size > ENOUGH * self.budget_bytes

    def _note(
        self, phase: Phase, size: int, peak: int | None, outcome: Literal["fits", "over", "killed", "refused"]
    ) -> bool:
        predicted = self._predicted(size)
        self.probes.append(
            MemoryProbe(phase=phase, micro_batch=size, predicted_bytes=predicted, peak_bytes=peak, outcome=outcome)
        )
        return outcome == "fits"

    def _cap(self) -> int:
        """Return the effective batch where it is predicted to fit, else 0; the measurement to come verifies it."""
        predicted = self._predicted(self.batch_size)
        if self.batch_size in self.peaks:
            return self.batch_size
        known_not = any(probe.outcome in ("killed", "over") for probe in self.probes)
        unsafe = predicted is None or predicted > SAFE * self.budget_bytes
        if known_not or unsafe or self._doubtful(self.batch_size):
            self._note("1A", self.batch_size, None, "refused")
            return 0
        self._note("1A", self.batch_size, None, "fits")
        return self.batch_size

    def _double(self) -> tuple[int, int]:
        """Return the largest size that fitted, and the least that did not."""
        size = max(self.peaks)
        failed = min((probe.micro_batch for probe in self.probes if probe.outcome != "fits"), default=self.batch_size)
        while 2 * size < failed and self.peaks[size] < ENOUGH * self.budget_bytes:
            if not self._run("1B", 2 * size):
                return size, 2 * size
            size *= 2
        return size, failed

    def _bisect(self, fits: int, fails: int) -> int:
        while fails - fits > max(1, fits // PRECISION):
            line = self._most()
            middle = line if fits < line < fails else (fits + fails) // 2  # where the line says: seldom needs a second
            if self._run("1C", middle):
                fits = middle
            else:
                fails = middle
        return fits

    def _conclude(self, feasible: int) -> Memory:
        base, slope = self._line()
        fit = MemoryFit(
            probes=tuple(self.probes), base_bytes=max(0.0, base), sample_bytes=slope, budget_bytes=self.budget_bytes,
            max_feasible=feasible, capped=feasible == self.batch_size,
        )  # fmt: skip
        most = max(feasible, self._most() if slope > 0 else self.own.eval_batch)
        plan, notes = self.own, []
        if plan.micro_batch > feasible:
            need, safe = round(base + slope * plan.micro_batch) // MIB, round(SAFE * self.budget_bytes) // MIB
            plan = replace(plan, micro_batch=_piece(self.batch_size, feasible))
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
            most_samples=most, fit=fit,
        )  # fmt: skip


def _piece(batch_size: int, most: int) -> int:
    """Return the size of equal pieces of a batch, at most `most`; unequal ones where those were much smaller."""
    divisor = next(size for size in range(most, 0, -1) if batch_size % size == 0)
    return divisor if 2 * divisor >= most else most
