"""Task of a calibration: the workload, its limits, the container."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from calibration.cache.plan_cache import PlanCache
from calibration.cache.signature import has_bfloat16
from calibration.result import CalibrationResult
from calibration.space import DEFAULT_SECONDS, Space, thread_counts
from preflight.container.resources import Resources
from preflight.contract.plan import KNOBS, KnobName, Plan
from preflight.contract.spec import MAX_BATCH, TrainSpec
from training.data.dataset_info import DatasetInfo
from training.data.split import split
from training.process.fork_server.client import ForkServer
from training.process.launch import find_tcmalloc
from training.process.oom import reserve
from training.system.requirements import shared_memory_bytes

TIERS: Final = ((1 << 30, 8), (2 << 30, 12), (4 << 30, 16))
"""Memory below this many bytes -> steps measured of each plan; from 4 GiB on, `MAX_SAMPLES`."""
MAX_SAMPLES: Final = 32
FLOAT32_BYTES: Final = 4
COMPILERS: Final = ("g++", "clang++", "c++")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Workload and limits of one calibration."""

    own: Plan
    """The user's own configuration."""
    batch_size: int
    """Effective batch size."""
    steps_per_epoch: int
    validation: int
    """Samples of a validation; 0: none."""
    epochs: float
    """Epochs of the training, with a fraction where `max_steps` ends it within one."""
    space: Space
    memory_bytes: int
    """Bytes of memory that a training process may have."""
    samples: int
    """Steps measured of each plan."""
    exact: bool
    """Whether the user asked for that many steps; else a quick model gets more, because they cost nothing."""
    seconds: float
    """Longest time in seconds, without the start of processes."""
    thorough: bool = False
    """Whether the finding serves later trainings: then all of `seconds` may be spent, however short this one is."""
    largest_batch: int = MAX_BATCH
    """Largest effective batch that an epoch has samples for."""
    sample_bytes: int = 0
    """Bytes of a sample as float32."""
    advice: Literal["off", "auto", "asked"] = "off"
    """Whether larger batches are measured: `auto`, where the training is long; `asked`, always."""
    shares: bool = False
    """Whether other trainings may take some of the processors: then the plan is timed on fewer threads, too."""
    knobs: frozenset[KnobName] = frozenset(KNOBS)
    unsteadiness: float = 0.0
    """Standard deviation of the logarithm of the machine's speed over days (calibration/cache/gauge_history.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a calibration."""

    calibrate: bool = True
    """Whether to calibrate; False: the user's own plan is used unmeasured."""
    force: bool = False
    """Measure again, whatever is cached."""
    samples: int | None = None
    """Steps measured of each plan; None: by memory tier."""
    seconds: float = DEFAULT_SECONDS
    """Longest time in seconds, without the start of processes."""
    explicit_seconds: bool = False
    """Whether `seconds` was asked for by the job, and is no default."""
    knobs: tuple[KnobName, ...] | None = None
    """Knobs that may change; None: all."""
    thorough: bool = False
    """True: the finding is for later jobs, so that all of `seconds` may be spent, however short this training is."""
    shares: bool = False
    """Whether the worker runs several jobs at a time."""
    advise: bool = False
    """Measure larger batches however short the training is."""

    @property
    def turned(self) -> tuple[KnobName, ...]:
        """Knobs that may change: all where `knobs` is None."""
        return KNOBS if self.knobs is None else self.knobs

    def met_by(self, finding: CalibrationResult) -> bool:
        """Whether a cached finding was measured with at least what is asked for.

        More time is of use only to a finding that was cut short, and that was allowed less.
        """
        advice = finding.advice
        in_time = not self.explicit_seconds or not finding.cut_short or self.seconds <= finding.budget_s
        told = not self.advise or (advice is not None and (advice.asked or advice.complete))
        return (self.samples or 0) <= finding.samples and in_time and told


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationContext:
    """Container, data set and cache of a calibration."""

    resources: Resources
    store: DatasetInfo
    cache: PlanCache
    directory: Path
    """An existing directory for the child's files."""
    environment: Mapping[str, str]
    """The child's environment variables."""
    server: ForkServer | None = None
    """Server that forks the children; None: they are fresh interpreters."""


def task_of(spec: TrainSpec, own: Plan, context: CalibrationContext, options: Options) -> Task:
    """Return the task of a job in this container."""
    parts = split(spec, context.store)
    resources, path = context.resources, context.environment.get("PATH", "")
    return Task(
        own=own, batch_size=spec.batch_size, steps_per_epoch=parts.steps, validation=parts.validation,
        epochs=parts.total_steps / parts.steps, memory_bytes=memory_for_training(resources),
        samples=options.samples or samples_for(resources.memory_bytes), exact=options.samples is not None,
        seconds=options.seconds, thorough=options.thorough, shares=options.shares,
        knobs=frozenset(options.turned), advice="asked" if options.advise else "auto",
        largest_batch=min(MAX_BATCH, parts.train, spec.epoch_samples or parts.train),
        sample_bytes=sample_bytes(context.store),
        space=Space(
            threads=thread_counts(resources), processors=max(1, len(resources.affinity)), bfloat16=has_bfloat16(),
            tcmalloc=find_tcmalloc() is not None, compiler=any(shutil.which(name, path=path) for name in COMPILERS),
            shared_bytes=shared_memory_bytes(),
        ),
    )  # fmt: skip


def sample_bytes(store: DatasetInfo) -> int:
    """Return the bytes of a sample as float32."""
    return FLOAT32_BYTES * math.prod(store.shape)


def memory_for_training(resources: Resources) -> int:
    """Return the bytes that a training process may have: those not in use, less the supervisor's reserve."""
    return max(1, resources.headroom_bytes - reserve(resources.memory_bytes))


def samples_for(memory_bytes: int) -> int:
    """Return the steps to measure of each plan in a container with this memory budget."""
    return next((samples for below, samples in TIERS if memory_bytes < below), MAX_SAMPLES)
