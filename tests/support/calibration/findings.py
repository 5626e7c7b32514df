"""A finding made by hand, with every kind of trial, for tests of its record, its text and its charts."""

from dataclasses import replace
from typing import Final

from calibration.result import BatchAdvice, BatchTrial, CalibrationResult, Confirmation, MemoryFit, MemoryProbe, Trial
from preflight.contract.plan import Plan
from preflight.contract.verdicts import Confidence
from training.prediction import Prediction

MIB: Final = 1 << 20
OWN: Final = Plan(threads=2, micro_batch=128)
TCMALLOC: Final = replace(OWN, allocator="tcmalloc")
FASTEST: Final = replace(TCMALLOC, precision="bfloat16", memory_format="channels_last")

TRIALS: Final = (
    Trial(knob="own", plan=OWN, verdict="own", note="", at=0.0, seconds=2.0, steps=16, step_s=0.02,
          predicted_epoch_s=8.6, fetch_share=0.04, peak_bytes=400 * MIB),
    Trial(knob="allocator", plan=TCMALLOC, verdict="won", note="", at=2.0, seconds=2.5, steps=16, step_s=0.0125,
          predicted_epoch_s=5.375, ratio=1.6, low=1.55, high=1.66, fetch_share=0.05, peak_bytes=420 * MIB),
    Trial(knob="precision", plan=FASTEST, verdict="won", note="", at=4.5, seconds=2.0, steps=16, step_s=0.01,
          predicted_epoch_s=4.3, ratio=1.25, low=1.2, high=1.3, peak_bytes=380 * MIB),
    Trial(knob="threads", plan=replace(FASTEST, threads=1), verdict="dropped", note="", at=6.5, seconds=0.6, steps=3,
          step_s=0.017, predicted_epoch_s=7.3, ratio=0.59, low=0.55, high=0.64),
    Trial(knob="micro_batch", plan=replace(FASTEST, micro_batch=64), verdict="level", note="", at=7.1, seconds=2.0,
          steps=16, step_s=0.0099, predicted_epoch_s=4.26, ratio=1.01, low=0.98, high=1.04, disturbed=True, kept=True),
    Trial(knob="compile", plan=replace(FASTEST, compile=True), verdict="skipped", note="no compiler is installed",
          at=9.1, seconds=0.0),
)  # fmt: skip

MEMORY: Final = MemoryFit(
    probes=(
        MemoryProbe(phase="line", micro_batch=16, predicted_bytes=None, peak_bytes=250 * MIB, outcome="fits"),
        MemoryProbe(phase="line", micro_batch=32, predicted_bytes=None, peak_bytes=270 * MIB, outcome="fits"),
        MemoryProbe(phase="1A", micro_batch=128, predicted_bytes=390 * MIB, peak_bytes=380 * MIB, outcome="fits"),
    ),
    base_bytes=230.0 * MIB, sample_bytes=1.25 * MIB, budget_bytes=1024 * MIB, max_feasible=128, capped=True,
)  # fmt: skip

ADVICE: Final = BatchAdvice(
    trials=(
        BatchTrial(batch_size=128, micro_batch=128, outcome="own", peak_bytes=310 * MIB, samples_per_s=12_800.0,
                   epoch_s=4.3),
        BatchTrial(batch_size=256, micro_batch=256, outcome="measured", predicted_bytes=470 * MIB,
                   peak_bytes=350 * MIB, ratio=1.41, low=1.38, high=1.45, samples_per_s=18_048.0, epoch_s=3.1),
        BatchTrial(batch_size=512, micro_batch=512, outcome="measured", predicted_bytes=430 * MIB,
                   peak_bytes=410 * MIB, ratio=1.7, low=1.62, high=1.74, samples_per_s=21_760.0, epoch_s=2.6),
        BatchTrial(batch_size=1024, micro_batch=1024, outcome="refused", predicted_bytes=890 * MIB,
                   note="predicted to take 890 MiB, above 85% of 1,024"),
    ),
    advised=512, budget_bytes=1024 * MIB, disturbed=False, asked=True, seconds=4.0,
)  # fmt: skip

FINDING: Final = CalibrationResult(
    baseline=OWN, plan=FASTEST,
    prediction=Prediction(epoch_s=4.3, low_s=4.1, high_s=4.5, step_s=0.01, validation_s=0.1, warm_s=0.4),
    trials=TRIALS, memory=MEMORY,
    confirmation=Confirmation(ratio=2.02, low=1.93, high=2.11, pairs=8, proven=True),
    confidence="high", why="bfloat16 with channels_last and tcmalloc is 2.02 times as fast",
    samples=16, batch_size=128, steps_per_epoch=430, budget_s=45.0, calibration_seconds=18.2, import_seconds=1.3,
    advice=ADVICE,
)  # fmt: skip


def doubtful(confidence: Confidence = "low") -> CalibrationResult:
    """Return the finding of a search that was cut short before it could confirm anything."""
    return replace(FINDING, plan=OWN, confirmation=None, memory=None, confidence=confidence, why="time ran out")
