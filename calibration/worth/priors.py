"""Priors: how probably a change of the plan wins, and what it gains then, before this calibration has measured it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from preflight.contract.plan import PARTS, Plan
from preflight.contract.verdicts import TrialKnob

NEIGHBOURING: Final = 1.5
"""Gain assumed of threads for cores, where the user's plan has more or fewer: twice as many cores are 1.7x here."""

Change = str
"""Kind of change that a trial makes, whose chances are alike: one of `PRIORS`, else a knob."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Chances of a kind of change."""

    probability: float
    """Probability of winning."""
    gain: float
    """Speed after the change, if it wins, relative to that before."""


PRIORS: Final[Mapping[Change, Prior]] = {
    "default": Prior(0.9, NEIGHBOURING),
    # 1.8x to 2.3x for cnn, 1.9x to 3.7x for resnet18 (docs/decisions.md).
    "bfloat16": Prior(0.9, 1.8),
    "channels_last": Prior(0.7, 1.2),  # 1.17x to 1.36x (FORMAT_GAIN in calibration/search/mutations.py)
    "bfloat16_alone": Prior(0.2, 1.3),
    # 1.19x to 2.05x, median 1.4x, for the network of deploy/examples/own_task in 25 of 25 races (matrix).
    "bfloat16_without_batch_norms": Prior(0.9, 1.4),
    # 0.4x to 1.0x with group norms (matrix); layers without any norm may gain as those with batch norms.
    "channels_last_without_batch_norms": Prior(0.1, 1.2),
    "float32": Prior(0.5, 1.5),
    # With a fractional quota, one more thread used up the fraction in half of the containers (issue 23).
    "quota_threads": Prior(0.5, 1.15),
    "cores_threads": Prior(0.8, NEIGHBOURING),
    "fewer_threads": Prior(0.1, 1.1),
    # 3.8x to 144x next to one busy process in 30 of 30 turns (0.23.4, docs/decisions.md).
    "fewer_threads_disturbed": Prior(0.9, 4.0),
    "whole_batch": Prior(0.6, 1.2),
    "smaller_micro_batch": Prior(0.25, 1.05),  # what it saves for certain is memory
    "no_loader": Prior(0.9, 1.3),  # workers reach less than half of the data path in the process (docs/decisions.md)
    "loader": Prior(0.3, 1.2),
    "compile": Prior(0.4, 1.12),  # 1.2x is the most it ever gained (COMPILE_GAIN)
    "no_compile": Prior(0.5, 1.1),
}
"""Chances by kind of change: measured on two vCPUs (Zen 5, avx512_bf16) where a source is named; else cautious."""


def change_of(knob: TrialKnob, plan: Plan, cores: int, *, disturbed: bool) -> Change | None:
    """Return the kind of change that a trial makes in a container with `cores` whole cores; None: the user's plan.

    `disturbed`: whether something else used the processors meanwhile.
    """
    match knob:
        case "own":
            return None
        case "precision" if plan.precision == "bfloat16":
            return "bfloat16" if plan.memory_format == "channels_last" else "bfloat16_alone"
        case "precision":
            return "channels_last" if plan.memory_format == "channels_last" else "float32"
        case "threads" if plan.threads == cores:
            return "cores_threads"
        case "threads":
            fewer = "fewer_threads_disturbed" if disturbed else "fewer_threads"
            return "quota_threads" if plan.threads > cores else fewer
        case "micro_batch":
            return "smaller_micro_batch"
        case "loader":
            return "loader" if plan.loader_workers else "no_loader"
        case "compile":
            return "compile" if plan.compile else "no_compile"
        case _:
            return knob


def prior_of(change: Change) -> Prior:
    """Return the chances of a change; of a knob whose changes are all of one kind, from the table of plan's fields."""
    if change in PRIORS:
        return PRIORS[change]
    knob = next(iter(PARTS[change].values()))
    return Prior(knob.chance, knob.gain)
