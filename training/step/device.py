"""Device of a training, and the settings that follow from it. Torch-free, to be decided and tested anywhere.

CUDA: CI has no GPU; tests/integration/training/loop/test_cuda.py is for a machine that has one.
"""

from dataclasses import dataclass
from typing import Final, Literal

from preflight.contract.plan import Plan, Precision
from preflight.errors import InvalidConfig

MEMORY_FRACTION: Final = 0.95
"""Share of a GPU's memory that a training may take: beyond it, it fails by itself, and no neighbour does."""
BFLOAT16_SINCE: Final = (8, 0)
"""Compute capability from which on a GPU computes in bfloat16 (NVIDIA's CUDA C++ Programming Guide, Ampere)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Facts of CUDA's first device."""

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """Settings for the computation on a device."""

    dtype: Precision | Literal["float16"]
    """Precision of forward and backward; weights and optimizer state are float32."""
    scaled: bool = False
    """Whether gradients are scaled, as those of float16 underflow."""
    benchmark: bool = False
    """Whether cuDNN tries its algorithms; all batches have one shape, and another algorithm gives other last bits."""
    memory_fraction: float | None = None


def decide(plan: Plan, gpu: Gpu | None, *, deterministic: bool) -> Computing:
    """Return how to compute under `plan`; `gpu` is None where there is none.

    A GPU without bfloat16 computes in float16 with scaled gradients, but for a deterministic job in float32: the scale
    is no part of a checkpoint.

    Raises:
        InvalidConfig: the plan asks for CUDA, and there is none.
    """
    if plan.device == "cpu":
        return Computing(dtype=plan.precision)
    if gpu is None:
        raise InvalidConfig(
            "plan.device is 'cuda', but torch finds no CUDA device here; leave it out, or use a machine with a GPU, "
            "its driver and a CUDA build of torch",
            field="plan.device",
        )
    half = plan.precision == "bfloat16" and gpu.capability < BFLOAT16_SINCE
    return Computing(
        dtype=plan.precision if not half else "float32" if deterministic else "float16",
        scaled=half and not deterministic,
        benchmark=not deterministic,
        memory_fraction=MEMORY_FRACTION,
    )
