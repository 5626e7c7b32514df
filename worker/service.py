"""The RQ worker: what it accepts, how it starts, how it waits for Redis."""

import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Final

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry
from rq import Queue, Worker
from rq.exceptions import DeserializationError
from rq.job import Job
from rq.serializers import JSONSerializer

from training.errors import ChildFailed, InvalidConfig, PreflightError
from training.installed import require_training_packages
from training.process import die_with_parent
from training.resources import detect
from worker import jobs, logs
from worker.publish import publish
from worker.run import limits
from worker.settings import Settings
from worker.sinks import LogSink
from worker.wire import FUNCTION, JobFailed, is_job_id

ALLOWED: Final[Mapping[str, Callable[..., object]]] = MappingProxyType({FUNCTION: jobs.train})
"""Everything a queue may name; nothing is imported by a name from Redis."""
WORKER_TTL: Final = 45
"""Seconds after which a silent worker is taken for dead; RQ's own default is 420."""
MONITOR_EVERY: Final = 5
"""Seconds between two signs of life while a job runs."""
MAINTAIN_EVERY: Final = 30
"""Seconds between two looks for jobs whose worker died."""
CONNECT_TIMEOUT: Final = 5
"""Seconds for a connection to be made."""
LONGEST_PAUSE: Final = 5.0
"""Seconds between two tries to reach Redis at start, once the pauses have grown."""


class RedisUnreachable(PreflightError):
    """Redis did not answer while the worker started."""

    reason = "redis_unreachable"


class SafeJob(Job):
    """A job whose function comes from an allow-list, and that calls and imports nothing else from Redis."""

    @property
    def func(self) -> Callable[..., object]:
        """The allowed function that this job names.

        Raises:
            InvalidConfig: it names another one.
        """
        name = self.func_name
        if name is None or name not in ALLOWED:
            self.retries_left = 0
            raise InvalidConfig(
                f"function {ascii(name)[:80]} is not allowed on this queue; enqueue {FUNCTION!r}",
                field="function",
            )
        return ALLOWED[name]

    @property
    def instance(self) -> None:
        """Nothing: methods of objects from Redis are not called."""
        return

    @instance.setter
    def instance(self, value: object) -> None:
        """Ignore an object from Redis."""

    @property
    def success_callback(self) -> None:
        """Nothing: callbacks from Redis are not imported."""
        return

    @property
    def failure_callback(self) -> None:
        """Nothing: callbacks from Redis are not imported."""
        return

    @property
    def stopped_callback(self) -> None:
        """Nothing: callbacks from Redis are not imported."""
        return

    def send_webhooks(self, status: object, *, exc_string: str | None = None) -> None:
        """Send nothing: URLs from Redis are not called."""


class PreflightWorker(Worker):
    """RQ's worker that also tells watchers when the supervisor of a job died without a word."""

    def __init__(self, queue: Queue, connection: Redis, settings: Settings) -> None:
        # A name of its own at every boot: that of a killed predecessor stays registered for a while.
        name = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
        super().__init__(
            [queue],
            name=name,
            connection=connection,
            job_class=SafeJob,
            serializer=JSONSerializer,
            worker_ttl=WORKER_TTL,
            job_monitoring_interval=MONITOR_EVERY,
            maintenance_interval=MAINTAIN_EVERY,
            log_job_description=False,
            work_horse_killed_handler=self._say_killed,
        )
        self._settings = settings
        self._own_pid = os.getpid()

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """Be the supervisor of `job`, and die with the worker: its children die with it in turn."""
        die_with_parent(self._own_pid)
        super().main_work_horse(job, queue)

    def handle_exception(self, job: Job, *exc_info: object) -> None:
        """Log an exception with its traceback, or a named failure in one line unless that has been said."""
        error = next((part for part in exc_info if isinstance(part, PreflightError)), None)
        if error is None:
            super().handle_exception(job, *exc_info)
        elif not error.told:
            self._say_failed(job, error)

    def _say_killed(self, job: Job, pid: int | None, status: int | None, usage: object) -> None:  # noqa: ARG002 - RQ's
        how = f"signal {os.WTERMSIG(status)}" if status is not None and os.WIFSIGNALED(status) else f"status {status}"
        self._say_failed(job, ChildFailed(f"the supervisor of the job ended without a word ({how}); enqueue it again"))

    def _say_failed(self, job: Job, error: PreflightError) -> None:
        """Tell log and watchers of a failure that no run could tell them, under the best id there is."""
        try:
            job_id = jobs.effective_id(tuple(job.args or ()), job.id)
        except (InvalidConfig, DeserializationError):
            job_id = job.id if is_job_id(job.id) else "unnamed"
        event = JobFailed(
            seq=0, job_id=job_id, attempt=0, ts=time.time(), reason=error.reason, field=error.field,
            message=error.message,
        )  # fmt: skip
        LogSink(job_id, 0).emit(event)
        publish(self.connection, event, ttl=self._settings.state_ttl)


def connect(settings: Settings) -> Redis:
    """Return a connection on which Redis has answered, trying again with growing pauses.

    Raises:
        RedisUnreachable: it did not answer within `redis_wait` seconds, or refused the password.
    """
    log = structlog.get_logger("preflight")
    # Without redis-py's own retries: they would stretch each try, and try a refused password again.
    probe = Redis.from_url(settings.redis_url, socket_connect_timeout=CONNECT_TIMEOUT, retry=Retry(NoBackoff(), 0))
    deadline, pause = time.monotonic() + settings.redis_wait, 0.1
    while True:
        try:
            probe.ping()
            return Redis.from_url(settings.redis_url, socket_connect_timeout=CONNECT_TIMEOUT)
        except RedisError as error:
            refused = isinstance(error, AuthenticationError)
            if refused or time.monotonic() + pause > deadline:
                raise RedisUnreachable(
                    f"Redis at {settings.safe_redis_url} "
                    f"{'refused the credentials' if refused else f'did not answer for {settings.redis_wait:g} s'}"
                    f" ({settings.scrubbed(str(error))}); set REDIS_URL or start Redis"
                ) from error
            log.warning("redis_unreachable", url=settings.safe_redis_url, retry_in_s=pause)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def serve(settings: Settings, *, burst: bool = False) -> None:
    """Take jobs until a signal says otherwise; with `burst`, until the queue is empty.

    Raises:
        MissingPackage: the training packages are not installed, so every job would fail.
        RedisUnreachable: Redis did not answer.
    """
    logs.configure(settings.log_format, settings.log_level, sys.stdout)
    log = structlog.get_logger("preflight")
    require_training_packages()
    connection = connect(settings)
    queue = Queue(settings.queue, connection=connection, job_class=SafeJob, serializer=JSONSerializer)
    worker = PreflightWorker(queue, connection, settings)
    log.info(
        "worker_started",
        version=version("preflight-worker"),
        worker=worker.name,
        queue=settings.queue,
        redis=settings.safe_redis_url,
        data_dir=str(settings.data_dir),
        artifact_dir=str(settings.artifact_dir),
        cache_dir=str(settings.cache_dir),
        **settings.platform(),
    )
    log.info("resource_limits", **limits(detect()))
    # RQ's own account of what goes well repeats our events, and every registry it cleans.
    quiet = "DEBUG" if settings.log_level == "debug" else "WARNING"
    logging.getLogger("rq").setLevel(quiet)
    worker.work(burst=burst, logging_level=quiet)
