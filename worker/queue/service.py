"""The worker service: check the environment, connect to Redis, start the worker."""

import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from preflight.container.resources import detect
from preflight.redis.retry import PERMANENT_ERRORS, retry_until_available
from training.process.child_main import set_process_name
from training.process.interrupts import STOP_SIGNALS
from training.system.requirements import explain_missing_bytecode, require_training_packages
from worker.broker.connect import RedisUnreachable, connect
from worker.config.settings import Settings
from worker.events.logging import configure
from worker.features.entries import FEATURES
from worker.jobs.stages.payloads import resources_payload
from worker.queue.processes import run_processes, share_processors
from worker.queue.worker import PreflightWorker
from worker.state.paths import require_writable
from worker.state.signals import FORWARDED
from worker.state.worker_lock import WorkerLock

COMPANION: Final = "companion"
"""Name of a companion's process in ps and top."""
DIRECTORY_VARIABLES: Final = {
    "artifact_dir": "PREFLIGHT_ARTIFACT_DIR", "state_dir": "PREFLIGHT_STATE_DIR", "cache_dir": "PREFLIGHT_CACHE_DIR",
}  # fmt: skip
"""Directories that every job writes to, and the variables that set them."""


def serve(settings: Settings, *, burst: bool = False, with_scheduler: bool = True) -> None:
    """Run jobs in one or several processes until a signal.

    With `burst`, until the queue is empty; `with_scheduler`: enqueue scheduled jobs, too.

    Raises:
        MissingPackage: the training packages, or those of an export URL, are not installed.
        ArtifactError: a directory is not writable.
        InvalidConfig: an export URL is invalid, or the container is too small for so many processes.
        RedisUnreachable: Redis did not answer, or denies access.
        ClockSkew: this host's clock and Redis's are hours apart.
    """
    configure(settings.log_format, settings.log_level, sys.stdout, settings.secrets)
    for note in settings.notes:
        structlog.get_logger("preflight").warning("settings_note", message=note)
    require_training_packages()
    for directory, variable in DIRECTORY_VARIABLES.items():
        require_writable(getattr(settings, directory), variable)
    for feature in FEATURES:
        feature.require(settings)
    processors = share_processors(detect(), settings.shares)
    connection = connect(settings)
    run = partial(_run_worker, settings, connection, burst=burst, with_scheduler=with_scheduler)
    if settings.shares == 1:
        companion = partial(_run_companion, settings, burst=burst, with_scheduler=with_scheduler)
        run(run_companion=companion if settings.processes == "auto" else None)
        return
    connection.close()  # each process opens its own
    run_processes(processors, run)


def _run_companion(settings: Settings, worker: PreflightWorker, *, burst: bool, with_scheduler: bool) -> None:
    """Run a worker in a fork of `worker`, until it is not needed any more."""
    set_process_name(COMPANION)
    signal.signal(FORWARDED, signal.getsignal(signal.SIGTERM))  # until the worker has its handlers
    _run_worker(settings, connect(settings), burst=burst, with_scheduler=with_scheduler, companion_of=worker)


def _run_worker(
    settings: Settings, connection: Redis, *, burst: bool, with_scheduler: bool,
    run_companion: Callable[[PreflightWorker], None] | None = None, companion_of: PreflightWorker | None = None,
) -> None:  # fmt: skip
    log = structlog.get_logger("preflight")
    queue = Queue(settings.queue, connection=connection, serializer=JSONSerializer)
    make = partial(
        PreflightWorker, queue, connection, settings, with_scheduler=with_scheduler, run_companion=run_companion,
        companion_of=companion_of,
    )  # fmt: skip
    worker = retry_until_available(make, "name the connection", lambda: None)
    if settings.shares > 1 or companion_of is not None:
        structlog.contextvars.bind_contextvars(worker=worker.name)  # distinguishes the processes in the log
    _log_start(settings, worker.name)
    try:
        with WorkerLock(settings.state_dir, worker.name) as lock:
            worker.run(lock, burst=burst)
    except PERMANENT_ERRORS as error:
        raise RedisUnreachable(
            f"Redis at {settings.safe_redis_url} denies access to this worker ({settings.redact(str(error))}); "
            "check the credentials and their rights"
        ) from error
    finally:
        for number in (*STOP_SIGNALS, FORWARDED):  # a late signal must not kill a worker that is about to exit
            signal.signal(number, signal.SIG_IGN)
    log.info("worker_stopped", worker=worker.name, message=f"worker {worker.name} has stopped")


def _log_start(settings: Settings, worker_name: str) -> None:
    log = structlog.get_logger("preflight")
    log.info(
        "worker_started", message=f"worker {worker_name} takes jobs from queue {settings.queue}",
        version=version("preflight-worker"), worker=worker_name, queue=settings.queue,
        redis=settings.safe_redis_url, data_dir=str(settings.data_dir), artifact_dir=str(settings.artifact_dir),
        cache_dir=str(settings.cache_dir), state_dir=str(settings.state_dir), **settings.platform(),
    )  # fmt: skip
    log.info(
        "resource_limits",
        message="these are the limits of this container",
        **resources_payload(detect(shares=settings.shares)),
    )
    if slow := explain_missing_bytecode():
        log.warning("bytecode_missing", message=slow)
    # RQ's log of successes repeats our events; its second logger has a separate level.
    for name in ("rq", "rq.worker"):
        logging.getLogger(name).setLevel("DEBUG" if settings.log_level == "debug" else "WARNING")
