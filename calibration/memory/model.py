"""Linear model of memory: bytes = base + slope * samples of a micro-batch."""

from dataclasses import dataclass, field, replace
from typing import Final

from calibration.result import MemoryFit
from preflight.contract.plan import Plan
from preflight.contract.spec import MAX_BATCH

SAFE: Final = 0.85
"""Share of the budget above which a size is not run."""
CNN_BYTES, CNN_SAMPLE_BYTES = 322_000_000, 324_000
"""Bytes that a process training `cnn` in float32 takes, and bytes of each sample of MNIST: the line of two probes, of 8
and of 32 samples (`memory_probe` of `preflight calibrate --dataset mnist`, 0.28.0)."""


def cnn_samples(budget_bytes: int) -> int:
    """Return the samples of `cnn` that a training with so much memory holds at once; 0: not even one."""
    return max(0, min(MAX_BATCH, int(SAFE * budget_bytes - CNN_BYTES) // CNN_SAMPLE_BYTES))


@dataclass(slots=True, kw_only=True)
class Memory:
    """Measured and predicted memory of the user's plan."""

    plan: Plan
    """The user's plan, in smaller pieces where it would not fit."""
    note: str
    """Note on changes for lack of memory; empty where there were none."""
    step_s: float
    """Estimated seconds of a step of the effective batch."""
    batch_statistics: bool
    slow_weight_gradients: bool
    """Whether the model has convolutions whose weights' gradients may be quicker as matrix products."""
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
class MemoryModel:
    """The line through the smallest and the largest micro-batch that ran."""

    batch_size: int
    """Effective batch: no larger micro-batch is of use."""
    budget_bytes: int
    peaks: dict[int, int] = field(default_factory=dict)
    """Peak bytes by micro-batch, for those that ran."""

    def line(self) -> tuple[float, float]:
        """Return base and slope of bytes = base + slope * samples, through the smallest and the largest that ran."""
        smallest, largest = min(self.peaks), max(self.peaks)
        if smallest == largest:  # nothing is known of the slope: all of it could be
            return 0.0, self.peaks[smallest] / smallest
        slope = max(0.0, (self.peaks[largest] - self.peaks[smallest]) / (largest - smallest))
        return self.peaks[smallest] - slope * smallest, slope

    def safe_samples(self) -> int:
        """Return the largest size that the line predicts to be safe; 0 where it predicts nothing."""
        base, slope = self.line()
        return int((SAFE * self.budget_bytes - base) / slope) if slope > 0 else 0

    def predict(self, size: int) -> int | None:
        """Return the predicted bytes of a micro-batch; None before there is a line."""
        if not self.peaks or (len(self.peaks) < 2 and self.batch_size > 1):
            return None
        base, slope = self.line()
        return max(0, round(base + slope * size))

    def at_least(self, size: int) -> int:
        """Return the bytes that a micro-batch takes at least: the peak of a smaller one, 0 where none ran."""
        return max((peak for each, peak in self.peaks.items() if each <= size), default=0)


def equal_piece(batch_size: int, most: int) -> int:
    """Return the size of equal pieces of a batch, at most `most`; unequal ones where those were much smaller."""
    divisor = next(size for size in range(most, 0, -1) if batch_size % size == 0)
    return divisor if 2 * divisor >= most else most
