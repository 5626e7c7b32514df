"""Keys that all jobs share: one that holds another type than it should is put aside, so that the queue goes on."""

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import structlog
from pydantic import TypeAdapter
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue

from worker.broker import keys
from worker.broker.retry import spoiled

T = TypeVar("T")

RENAME: Final = """
-- Give keys that have another type than expected another name, where they can be looked at.
-- KEYS: the keys   ARGV: what is added to their names, then the expected type of each
-- Returns the key and the type of each that was renamed.
local renamed = {}
for number, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= ARGV[number + 1] then
    redis.call('RENAME', key, key .. ARGV[1])
    renamed[#renamed + 1] = key
    renamed[#renamed + 1] = kind
  end
end
return renamed
"""
RENAMED: Final = TypeAdapter(list[str])


def shared_keys(queue: Queue, worker_name: str) -> Mapping[str, str]:
    """Return the keys that a worker shares with all jobs of its queue, and the type of each."""
    registries = (
        queue.started_job_registry, queue.finished_job_registry, queue.failed_job_registry, queue.canceled_job_registry,
    )  # fmt: skip
    return {
        queue.key: "list",
        queue.intermediate_queue_key: "list",
        **{registry.key: "zset" for registry in registries},
        "rq:queues": "set",  # producers stumble over it
        "rq:workers": "set",
        f"rq:workers:{queue.name}": "set",
        keys.rq_worker(worker_name): "hash",
        keys.rq_worker_executions(worker_name): "set",
        keys.QUARANTINE: "hash",
        keys.TOTALS: "hash",
    }


def repairing(action: Callable[[], T], connection: Redis, expected: Mapping[str, str]) -> T:
    """Return what `action` returns; where it fails for a wrong type, `expected` keys are put aside, and it runs again.

    Raises:
        redis.exceptions.RedisError: as `action` does.
    """
    try:
        return action()
    except RedisError as error:
        if not spoiled(error):
            raise
        put_aside_wrong_types(connection, expected)  # another worker may have done so a moment ago
        return action()


def put_aside_wrong_types(connection: Redis, expected: Mapping[str, str]) -> None:
    """Rename the keys that have another type than `expected`.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; it may be asked again.
    """
    suffix = f":wrong-type:{time.time():.6f}"
    answer = connection.register_script(RENAME)(keys=list(expected), args=[suffix, *expected.values()])
    renamed = RENAMED.validate_python(answer)
    for key, found in zip(renamed[::2], renamed[1::2], strict=True):
        structlog.get_logger("preflight").error(
            "wrong_type_key_renamed", key=key, found=found, expected=expected[key], renamed_to=f"{key}{suffix}",
            detail="look at what it holds and who wrote it, then delete it",
        )  # fmt: skip
