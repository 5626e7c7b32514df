"""Findings made by hand: possible results of a calibration, from the usual to the odd."""

from dataclasses import replace

from calibration.result import CalibrationResult, Confirmation, MemoryFit, MemoryProbe, Trial
from preflight.contract.plan import Plan
from preflight.contract.verdicts import TrialKnob
from training.prediction import Prediction

MIB = 2**20
OWN = Plan(threads=4, micro_batch=512)
OTHER = replace(OWN, allocator="tcmalloc")
TWO_THREADS = replace(OTHER, threads=2)
SMALLER = replace(TWO_THREADS, micro_batch=128)


def own_trial(plan: Plan = OWN) -> Trial:
    """Return the first trial of every search."""
    return Trial(
        knob="own", plan=plan, verdict="own", note="", at=0.0, seconds=3.4, steps=16, step_s=0.0713,
        predicted_epoch_s=8.61, fetch_share=0.021, peak_bytes=742 * MIB,
    )  # fmt: skip


def trials() -> tuple[Trial, ...]:
    """Return a search in which every verdict occurs."""
    return (
        own_trial(),
        Trial(
            knob="allocator", plan=OTHER, verdict="won", note="", at=3.4, seconds=5.2, steps=16, step_s=0.0462,
            predicted_epoch_s=5.6, ratio=1.543, low=1.511, high=1.572, fetch_share=0.03, peak_bytes=981 * MIB,
        ),
        Trial(
            knob="allocator", plan=replace(OWN, allocator="tcmalloc"), verdict="skipped",
            note="libtcmalloc is not installed", at=8.6, seconds=0.0,
        ),
        Trial(
            knob="precision", plan=replace(OTHER, precision="bfloat16", memory_format="channels_last"),
            verdict="rejected", note="gradients differ: cosine 0.982, least 0.99", at=8.6, seconds=1.9,
        ),
        Trial(
            knob="precision", plan=replace(OTHER, memory_format="channels_last"), verdict="dropped", note="", at=10.5,
            seconds=1.6, steps=6, step_s=0.0694, predicted_epoch_s=8.4, ratio=0.668, low=0.651, high=0.702,
            fetch_share=0.02, peak_bytes=1010 * MIB,
        ),
        Trial(
            knob="threads", plan=TWO_THREADS, verdict="won", note="", at=12.1, seconds=4.4, steps=16, step_s=0.0371,
            predicted_epoch_s=4.5, ratio=1.241, low=1.188, high=1.302, fetch_share=0.04, peak_bytes=975 * MIB,
            disturbed=True,
        ),
        Trial(
            knob="threads", plan=replace(OTHER, threads=3), verdict="lost", note="more threads than the quota pays for",
            at=16.5, seconds=4.9, steps=16, step_s=0.0421, predicted_epoch_s=5.1, ratio=0.884, low=0.853, high=0.912,
            fetch_share=0.03, peak_bytes=978 * MIB,
        ),
        Trial(
            knob="micro_batch", plan=replace(TWO_THREADS, micro_batch=1024), verdict="failed",
            note="killed for memory", at=21.4, seconds=2.2,
        ),
        Trial(
            knob="micro_batch", plan=SMALLER, verdict="won", note="smallest within 2 % of the best", at=23.6,
            seconds=3.8, steps=16, step_s=0.0338, predicted_epoch_s=4.12, ratio=1.092, low=1.061, high=1.127,
            fetch_share=0.04, peak_bytes=431 * MIB,
        ),
        Trial(
            knob="loader", plan=replace(SMALLER, loader_workers=2, prefetch_factor=2), verdict="level", note="",
            at=27.4, seconds=4.0, steps=16, step_s=0.0337, predicted_epoch_s=4.1, ratio=1.004, low=0.961, high=1.043,
            fetch_share=0.01, peak_bytes=440 * MIB,
        ),
        Trial(
            knob="compile", plan=replace(SMALLER, compile=True), verdict="skipped",
            note="would not pay back in 3 epochs", at=31.4, seconds=0.0,
        ),
    )  # fmt: skip


def memory_fit() -> MemoryFit:
    """Return a fit with every outcome of a probe."""
    return MemoryFit(
        probes=(
            MemoryProbe(phase="line", micro_batch=32, predicted_bytes=None, peak_bytes=331 * MIB, outcome="fits"),
            MemoryProbe(phase="line", micro_batch=128, predicted_bytes=None, peak_bytes=431 * MIB, outcome="fits"),
            MemoryProbe(
                phase="1A", micro_batch=2048, predicted_bytes=2431 * MIB, peak_bytes=None, outcome="refused"
            ),
            MemoryProbe(
                phase="1B", micro_batch=512, predicted_bytes=831 * MIB, peak_bytes=842 * MIB, outcome="fits"
            ),
            MemoryProbe(phase="1B", micro_batch=1024, predicted_bytes=1364 * MIB, peak_bytes=None, outcome="killed"),
            MemoryProbe(
                phase="1C", micro_batch=768, predicted_bytes=1098 * MIB, peak_bytes=1120 * MIB, outcome="fits"
            ),
            MemoryProbe(
                phase="1C", micro_batch=896, predicted_bytes=1231 * MIB, peak_bytes=1310 * MIB, outcome="over"
            ),
        ),
        base_bytes=297.7 * MIB, sample_bytes=1.0417 * MIB, budget_bytes=1250 * MIB, max_feasible=768, capped=False,
    )  # fmt: skip


def finding() -> CalibrationResult:
    """Return a calibration that went well."""
    return CalibrationResult(
        baseline=OWN, plan=SMALLER,
        prediction=Prediction(
            epoch_s=4.12, low_s=3.93, high_s=4.31, step_s=0.0338, validation_s=0.14, warm_s=0.62
        ),
        trials=trials(), memory=memory_fit(),
        confirmation=Confirmation(ratio=2.087, low=2.021, high=2.149, pairs=12, proven=True),
        confidence="high", why="The winner was measured again in a fresh process and held.",
        samples=16, batch_size=512, steps_per_epoch=118, budget_s=45.0, calibration_seconds=38.7, import_seconds=2.31,
    )  # fmt: skip


def nothing_beaten() -> CalibrationResult:
    """Return a calibration in which the user's own plan stays."""
    level = Trial(
        knob="allocator", plan=OTHER, verdict="level", note="", at=3.4, seconds=5.2, steps=16, step_s=0.0712,
        predicted_epoch_s=8.6, ratio=1.002, low=0.981, high=1.021,
    )  # fmt: skip
    return replace(
        finding(), plan=OWN, trials=(own_trial(), level), memory=None, confirmation=None, confidence="low",
        prediction=Prediction(epoch_s=8.61, low_s=8.2, high_s=9.1, step_s=0.0713, validation_s=0.2, warm_s=1.1),
        why="No other plan was faster.",
    )  # fmt: skip


def many_trials(count: int) -> CalibrationResult:
    """Return a search of that many trials, most of them level."""
    return replace(finding(), trials=(own_trial(), *(_level(index) for index in range(1, count))))


def _level(index: int) -> Trial:
    knobs: tuple[TrialKnob, ...] = ("threads", "micro_batch", "affinity", "interop")
    high = 0.9 + (index * 37 % 29) / 100
    return Trial(
        knob=knobs[index % 4], plan=replace(OTHER, threads=1 + index % 8, eval_batch=100 + index), verdict="level",
        note=f"candidate {index}", at=3.4 + 0.6 * index, seconds=0.6, steps=16, step_s=0.05,
        predicted_epoch_s=6 + index % 7 / 5, ratio=high - 0.05, low=high - 0.1, high=high,
    )  # fmt: skip
