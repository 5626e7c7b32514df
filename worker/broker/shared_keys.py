"""Keys that all jobs share: those of a wrong type are renamed, so that the queue keeps working."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import structlog
from pydantic import TypeAdapter
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue

from preflight.redis import keys
from preflight.redis.lua import run_script
from preflight.redis.retry import is_wrong_type, retry_until_available

T = TypeVar("T")

RENAMED = TypeAdapter(list[str])


def shared_keys(queue: Queue, worker_name: str) -> Mapping[str, str]:
    """Return the keys that a worker shares with all jobs of its queue, each with its type."""
    registries = (
        queue.started_job_registry, queue.finished_job_registry, queue.failed_job_registry, queue.canceled_job_registry,
        queue.scheduled_job_registry, queue.deferred_job_registry,
    )  # fmt: skip
    return {
        queue.key: "list",
        queue.intermediate_queue_key: "list",
        **{registry.key: "zset" for registry in registries},
        keys.rq_ready(queue.name): "zset",
        keys.rq_scheduler_lock(queue.name): "string",
        keys.ended(queue.name): "hash",
        keys.RQ_RATE_LIMITS: "set",
        "rq:queues": "set",  # producers need it
        "rq:workers": "set",
        f"rq:workers:{queue.name}": "set",
        keys.rq_worker(worker_name): "hash",
        keys.rq_worker_executions(worker_name): "set",
        keys.datasets(queue.name): "hash",
        keys.catalog(queue.name): "hash",
        keys.deletions(queue.name): "hash",
        keys.DELETED: "zset",
        keys.offers(queue.name): "hash",
        keys.imports(queue.name): "hash",
        keys.idle_workers(queue.name): "zset",
        keys.QUARANTINE: "hash",
        keys.TOTALS: "hash",
    }


@dataclass(frozen=True, slots=True)
class RedisRetry:
    """Repeats Redis operations of one process until they succeed; renames shared keys of a wrong type."""

    connection: Redis
    expected: Mapping[str, str]
    """Shared keys and their types."""
    on_retry: Callable[[], None]
    """Called between two tries; an exception of it ends the wait."""

    def __call__(self, action: Callable[[], T], what: str, *, wrong_types: bool = False) -> T:
        """Return what `action` returns; as `retry_until_available`."""
        return retry_until_available(lambda: self.repair(action), what, self.on_retry, wrong_types=wrong_types)

    def repair(self, action: Callable[[], T]) -> T:
        """Return what `action` returns, at the second try where a shared key had a wrong type; raises as it does."""
        try:
            return action()
        except RedisError as error:
            if not is_wrong_type(error):
                raise
            self.rename_wrong_types()  # another worker may have done so a moment ago
            return action()

    def rename_wrong_types(self) -> None:
        """Rename the shared keys of a wrong type; raises `redis.exceptions.RedisError`."""
        suffix = f":wrong-type:{time.time():.6f}"
        renamed = run_script(
            self.connection, "maintenance/rename_wrong_types", RENAMED,
            keys=list(self.expected), args=[suffix, *self.expected.values()],
        )  # fmt: skip
        for key, found in zip(renamed[::2], renamed[1::2], strict=True):
            structlog.get_logger("preflight").error(
                "wrong_type_key_renamed", key=key, found=found, expected=self.expected[key],
                renamed_to=f"{key}{suffix}",
                message="a key of another type was renamed; look at what it holds and who wrote it, then delete it",
            )  # fmt: skip
