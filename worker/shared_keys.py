"""Keys that all jobs share: one that holds another type than it should is put aside, so that the queue goes on."""

import time
from collections.abc import Mapping
from typing import Final

import structlog
from redis import Redis
from rq import Queue

from worker import keys
from worker.answers import text

RENAME: Final = """
-- Give a key that has another type than expected another name, where it can be looked at.
-- KEYS: the key, its other name   ARGV: the expected type
-- Returns the type that was found; empty where it is the expected one, or there is no key.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == ARGV[1] or kind == 'none' then
  return ''
end
redis.call('RENAME', KEYS[1], KEYS[2])
return kind
"""


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


def put_aside_wrong_types(connection: Redis, expected: Mapping[str, str]) -> bool:
    """Rename the keys that have another type than `expected`; returns whether there was one.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; it may be asked again.
    """
    found_one = False
    for key, kind in expected.items():
        aside = f"{key}:wrong-type:{time.time():.6f}"
        found = text(connection.register_script(RENAME)(keys=[key, aside], args=[kind]))
        if found:
            found_one = True
            structlog.get_logger("preflight").error(
                "wrong_type_key_renamed", key=key, found=found, expected=kind, renamed_to=aside,
                detail="look at what it holds and who wrote it, then delete it",
            )  # fmt: skip
    return found_one
