"""Deletions: a maintainer deletes the records of a job that has ended, each worker the files on its disk.

The id stays as a tombstone, for which admission looks. An alias keeps its models as separate links; even so, a job
whose model an alias stands for now is not deleted: somebody uses it.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from pydantic import TypeAdapter
from redis import Redis
from rq import Queue

from preflight.client.delete import MAX_BYTES, Deletion, decode
from preflight.errors import ArtifactError
from preflight.files.locks import remove_unused
from preflight.redis import keys
from preflight.redis.lua import TEXT, run_script
from preflight.redis.replies import text
from preflight.redis.untrusted.reads import read_page
from preflight.wire import is_job_id
from worker.config.settings import Settings
from worker.state.paths import JOBS, STAGING

STEP_INTERVAL: Final = 0.5
"""Seconds between two looks at requests, while there are any."""
PAGE: Final = 50
"""Requests in one step."""
REFUSAL_SECONDS: Final = 60.0
"""Seconds for which the reason of a refusal can be read."""
MOST: Final = 50_000
"""Most tombstones that are kept, the newest."""
KEPT_SECONDS: Final = 366 * 86_400
"""Seconds for which a tombstone is kept."""
LOOK_INTERVAL: Final = 30.0
"""Seconds between two looks at what other workers have deleted."""
OVERLAP: Final = 60.0
"""Seconds of deletions that are read twice: their scores are times of Redis's clock."""
MAX_IDS: Final = 1000
SCORED = TypeAdapter(list[tuple[bytes, float]])


class Deletions:
    """Carries out the requests of one queue, and removes the files of deleted jobs from this machine."""

    def __init__(self, connection: Redis, queue: Queue, settings: Settings) -> None:
        self._connection = connection
        self._queue = queue
        self._settings = settings
        self._next_step = 0.0
        self.files = DeletedFiles(connection, settings)

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._next_step

    def step(self) -> None:
        """Take a page of requests; raises `redis.exceptions.RedisError`, and may be repeated."""
        requests = keys.deletions(self._queue.name)
        page = read_page(self._connection, requests, 0, PAGE, name_bytes=64, value_bytes=MAX_BYTES)
        for raw, value in zip(page.names, page.values, strict=True):
            job_id, asked = text(raw), decode(value)
            if asked is None or not is_job_id(job_id):
                self._connection.hdel(requests, raw)
            elif asked.refused is None:
                self._take(job_id, asked)
            elif not 0 <= time.time() - asked.at < REFUSAL_SECONDS:
                self._connection.hdel(requests, raw)
        self._next_step = time.monotonic() + STEP_INTERVAL

    def _take(self, job_id: str, asked: Deletion) -> None:
        log = structlog.get_logger("preflight")
        reason = self._refusal(job_id) or self._delete(job_id, asked.rq_id)
        if reason is None:
            self.files.remove(job_id)
            log.info("job_deleted", job_id=job_id, by=asked.by, message="records and files of a job were deleted")
            return
        refused = asked.model_copy(update={"refused": reason, "at": time.time()})
        self._connection.hset(keys.deletions(self._queue.name), job_id, refused.model_dump_json(exclude_none=True))
        log.warning("job_not_deleted", job_id=job_id, by=asked.by, message=reason)

    def _refusal(self, job_id: str) -> str | None:
        from worker.models.store import open_store  # an idle worker has no need of it

        try:
            users = open_store(self._settings).naming(job_id)
        except ArtifactError as error:  # the aliases cannot be listed
            return error.message
        if not users:
            return None
        return f"the model of job {job_id!r} is in use as {', '.join(users)}; promote another one first"

    def _delete(self, job_id: str, rq_id: str) -> str | None:
        """Delete the records; returns why not, None where it was done."""
        queue = self._queue
        answer = run_script(
            self._connection, "maintenance/delete", TEXT,
            keys=[
                keys.deletions(queue.name), keys.DELETED, keys.fence(job_id), keys.lease(job_id), keys.rq_job(rq_id),
                queue.finished_job_registry.key, queue.failed_job_registry.key, queue.canceled_job_registry.key,
                *(key(job_id) for key in RECORDS), keys.alias(rq_id), keys.rq_job(rq_id), keys.rq_results(rq_id),
                keys.rq_dependencies(rq_id),
            ],
            args=[job_id, rq_id, MOST, KEPT_SECONDS],
        )  # fmt: skip
        if answer == "deleted":
            return None
        return f"job {job_id!r} is {answer}; cancel it, and delete it once it has ended"


RECORDS: Final[tuple[Callable[[str], str], ...]] = (
    keys.state, keys.events, keys.lifecycle, keys.result, keys.plan, keys.dataset, keys.notes, keys.cancel,
)  # fmt: skip
"""Keys of a job that are deleted. Its fence stays until it expires, so that a frozen process of the job writes nothing;
so do the accepted messages, so that none serves twice."""


class DeletedFiles:
    """The files of deleted jobs on this machine: models and checkpoints, whichever worker deleted the job."""

    def __init__(self, connection: Redis, settings: Settings) -> None:
        self._connection = connection
        self._roots = (settings.artifact_dir, settings.artifact_dir / STAGING, settings.state_dir / JOBS)
        self._since = "-inf"
        self._offset = 0
        """Jobs at `_since` and later that were read already."""
        self._left: set[str] = set()
        """Jobs whose files a process still uses."""
        self._next_look = 0.0

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._next_look

    def step(self) -> None:
        """Remove the files of jobs that were deleted since the last look; raises `redis.exceptions.RedisError`."""
        since = self._since
        found = SCORED.validate_python(
            self._connection.zrange(
                keys.DELETED, since, "+inf", byscore=True, offset=self._offset, num=MAX_IDS, withscores=True
            )
        )
        for job_id in {*(text(name) for name, _ in found), *self._left}:
            self.remove(job_id)
        if found:
            newest = max(score for _, score in found)
            self._since = f"{math.floor(newest if len(found) == MAX_IDS else newest - OVERLAP)}"
        # One second may have more deletions than a page.
        self._offset = self._offset + MAX_IDS if len(found) == MAX_IDS and self._since == since else 0
        if len(found) < MAX_IDS:
            self._next_look = time.monotonic() + LOOK_INTERVAL

    def remove(self, job_id: str) -> None:
        """Remove the files of a job, those that no process uses."""
        if not is_job_id(job_id):
            return
        left = [path for path in (root / job_id for root in self._roots) if _is_there(path) and not remove_unused(path)]
        (self._left.add if left else self._left.discard)(job_id)


def _is_there(path: Path) -> bool:
    with suppress(OSError):
        return path.is_dir() and not path.is_symlink()
    return False
