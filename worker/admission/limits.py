"""Limits of this worker on what a job may ask for."""

import json
from collections.abc import Mapping
from typing import Final

from preflight.contract.lengths import LEAST_SHARE
from preflight.contract.registry import DATASETS, find
from preflight.contract.spec import TrainSpec
from preflight.errors import InvalidConfig
from preflight.wire import TrainJob
from training.data.dataset_info import DatasetInfo
from training.data.split import default_batch
from worker.config.settings import Settings

UNLIMITED: Final = -1
"""RQ's timeout of a job that may run for ever."""
LIMITS: Final = (
    "max_epochs", "max_batch_size", "max_samples", "max_calibration_seconds", "max_loader_workers", "max_threads",
    "max_job_timeout",
)  # fmt: skip
"""Settings that a worker publishes, so that a form can refuse what the worker would."""
MAX_LIMITS_BYTES: Final = 1024


def limits_of(settings: Settings) -> str:
    """Return the limits of these settings as JSON; those that are not set are left out."""
    found = settings.model_dump(mode="json", include={*LIMITS}, exclude_none=True)
    return json.dumps(found)


def limited_by(settings: Settings, published: Mapping[str, float]) -> Settings:
    """Return the settings with the limits that a worker has published, in place of their own."""
    return settings.model_copy(update={name: published.get(name) for name in LIMITS})


def require_within_limits(job: TrainJob, timeout: int, settings: Settings, *, repeats: int = 0) -> None:
    """Raise `InvalidConfig` where a job exceeds this worker's limits; `timeout` and `repeats` are RQ's values."""
    spec, plan, largest = job.spec(), job.plan.model_dump(), settings.max_batch_size
    asked: tuple[tuple[str, float | None, float | None, str], ...] = (
        ("epochs", spec.epochs, settings.max_epochs, "PREFLIGHT_MAX_EPOCHS"),
        ("batch_size", spec.batch_size, largest, "PREFLIGHT_MAX_BATCH_SIZE"),
        ("plan.micro_batch", plan["micro_batch"], largest, "PREFLIGHT_MAX_BATCH_SIZE"),
        ("plan.eval_batch", plan["eval_batch"], largest, "PREFLIGHT_MAX_BATCH_SIZE"),
        ("plan.threads", plan["threads"], settings.max_threads, "PREFLIGHT_MAX_THREADS"),
        ("plan.interop", plan["interop"], settings.max_threads, "PREFLIGHT_MAX_THREADS"),
        ("plan.loader_workers", plan["loader_workers"], settings.max_loader_workers, "PREFLIGHT_MAX_LOADER_WORKERS"),
        (
            "calibration_seconds", job.calibration_seconds, settings.max_calibration_seconds,
            "PREFLIGHT_MAX_CALIBRATION_SECONDS",
        ),
        ("job_timeout", timeout, settings.max_job_timeout, "PREFLIGHT_MAX_JOB_TIMEOUT"),
        ("repeat", repeats, settings.max_repeats, "PREFLIGHT_MAX_REPEATS"),
    )  # fmt: skip
    for field, value, most, variable in asked:
        never = field == "job_timeout" and value == UNLIMITED
        if value is not None and most is not None and (never or value > most):
            raise InvalidConfig(
                f"{field} is {value}{' (never)' if never else ''}, but this worker takes at most {most} "
                f"({variable}); ask for less",
                field=field,
            )


def require_samples_within_limit(spec: TrainSpec, train_samples: int, settings: Settings) -> None:
    """Raise `InvalidConfig` where all epochs exceed this worker's limit; a pass has `train_samples` samples."""
    train_samples = spec.epoch_samples or spec.train_samples or train_samples
    most, asked = settings.max_samples, spec.epochs * train_samples
    if spec.max_steps is not None:
        asked = min(asked, spec.max_steps * spec.batch_size)
    if most is not None and asked > most:
        raise InvalidConfig(
            f"epochs is {spec.epochs}, which makes {asked} samples of {train_samples} an epoch, but this worker trains "
            f"on at most {most} (PREFLIGHT_MAX_SAMPLES); ask for fewer epochs, a lower max_steps or a smaller data set",
            field="epochs",
        )


def default_batch_of(job: TrainJob, info: DatasetInfo | None) -> int | None:
    """Return the batch of a job that leaves it open, for the size of its imported data set; None: as it is.

    A recipe's batch is larger than some data sets: there it is the whole set.
    """
    if info is None or "batch_size" in job.model_fields_set or find(DATASETS, job.dataset) is not None:
        return None
    if job.recipe is None:
        return max(default_batch(info, job.batch_size), LEAST_SHARE * job.group.max)
    spec = job.spec()
    samples = min(info.train_count - (spec.validation_samples or 0), spec.train_samples or info.train_count)
    return max(samples, LEAST_SHARE * job.group.max) if 0 < samples < spec.batch_size else None
