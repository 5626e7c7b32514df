"""Data set stage: find the prepared data set, or prepare it in a child process."""

import os
import time
from contextlib import suppress
from pathlib import Path

from preflight.contract.registry import DATASETS, find
from preflight.files.locks import share
from preflight.wire import TrainJob
from training.catalog.names import pin, stored_dataset, stored_path
from training.data import prepare_child
from training.data.augmentation.suitability import flip_warning, require_suitable
from training.data.class_balance import require_every_class
from training.data.dataset_info import DatasetInfo, read_info
from training.data.datasets import UnreadableFolder
from training.data.prepare import explain_absence
from training.data.prepare_child import PrepareRequest
from worker.admission.limits import default_batch_of, require_samples_within_limit
from worker.config.settings import export_environment
from worker.jobs.context import JobContext
from worker.jobs.stages import fetch_child
from worker.jobs.stages.child_runner import run_job_child
from worker.jobs.stages.dataset_pin import DatasetPin
from worker.jobs.stages.fetch_child import FetchRequest


def pin_dataset(context: JobContext, job: TrainJob) -> TrainJob:
    """Return the job with the version of its imported data set that its first attempt found.

    Raises:
        InvalidConfig: there is no such data set.
    """
    if find(DATASETS, job.dataset) is not None:
        return job
    store = context.pin or DatasetPin(context.paths.job)
    kept = store.get() if context.attempt > 1 else None
    reference = _fetch(context, kept or job.dataset) or kept or pin(job.dataset, context.settings.data_dir)
    if kept is None:
        store.put(reference)
    info = stored_dataset(reference, context.settings.data_dir, context.settings.cache_dir)
    if info is not None:
        _hold(context, info.path)
    return job.settled(reference, default_batch_of(job, info))


def _fetch(context: JobContext, name: str) -> str | None:
    """Return the version that a name stands for, its store fetched; None: there is no object store to fetch from."""
    settings = context.settings
    if settings.dataset_url is None:
        return None
    if "@" in name and stored_path(name, settings.data_dir) is not None:
        return name
    body = fetch_child.REQUEST.dump_json(FetchRequest(dataset=name))
    environment = export_environment(settings, "dataset_url", "data_dir", "dataset_cache_gb")
    done = run_job_child(context, "data fetch", fetch_child.MODULE, body, environment, fresh=True)
    return str(done["dataset"])


def _hold(context: JobContext, path: Path) -> None:
    """Keep a store from being removed while the job needs it."""
    held = share(path)
    if held is not None:
        context.held.append(held)
        with suppress(OSError):
            os.utime(path)


def prepare_dataset(context: JobContext, job: TrainJob) -> DatasetInfo:
    """Return the prepared data set, preparing it first where necessary.

    Raises:
        DatasetError: it is not available.
        InvalidConfig: the job would see more samples than the service allows, or does not suit the data set.
    """
    began, settings = time.perf_counter(), context.settings
    is_registered = find(DATASETS, job.dataset) is not None
    instead = _instead(job.dataset, settings.data_dir) if is_registered else None
    found = stored_dataset(job.dataset, settings.data_dir, settings.cache_dir)
    info = found or _prepare(context, job.dataset)
    if instead is not None:
        context.warn(f"{instead}; {'a copy prepared earlier is used' if found else 'it was downloaded'}")
    context.emit(
        "dataset_ready",
        {
            "dataset": info.name,
            "train_samples": info.train_count,
            "test_samples": info.test_count,
            "took_s": time.perf_counter() - began,
            "classes": info.classes,
            "dataset_sha256": info.sha256,
        },
    )
    require_samples_within_limit(job.spec(), info.train_count, settings)
    spec = job.spec()
    require_every_class(spec, info)
    require_suitable(spec.augmentation, info)
    doubt = flip_warning(spec.augmentation, info)
    if doubt is not None:
        context.warn(doubt)
    return info


def _instead(name: str, data_dir: Path) -> str | None:
    """Return what the data directory holds instead of the data set, or why it is unreadable; None: nothing."""
    try:
        return explain_absence(name, data_dir)
    except UnreadableFolder as error:
        return error.message


def _prepare(context: JobContext, name: str) -> DatasetInfo:
    settings = context.settings
    request = PrepareRequest(dataset=name, data_dir=settings.data_dir, cache_dir=settings.cache_dir, download=True)
    done = run_job_child(
        context, "data preparation", prepare_child.MODULE, prepare_child.REQUEST.dump_json(request), fresh=True
    )
    return read_info(Path(str(done["path"])))
