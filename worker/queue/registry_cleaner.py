"""Maintenance of RQ's registries: what has expired leaves them, and so do workers that were killed.

RQ's own loop has methods for it that also fail, move and enqueue jobs and call back. Here only entries go, and keys get
a time to live: a page at a time, so that neither worker nor Redis stands still, however many entries there are.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from pydantic import TypeAdapter
from redis import Redis
from redis.exceptions import ResponseError
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from worker.broker import keys
from worker.broker.fencing import LUA
from worker.broker.retry import spoiled, trouble
from worker.queue.untrusted_job import Poison, load
from worker.wire import FUNCTION

MAINTAIN_EVERY: Final = 600.0
"""Seconds between two rounds, of all workers of a queue together; as RQ's `maintenance_interval`."""
PAGE: Final = 250
"""Entries in one step, which takes a few milliseconds."""
MOST_LOADED: Final = 20
"""Canceled jobs that one step reads."""

SCANNED = TypeAdapter(tuple[int, list[tuple[bytes, float]]])
MEMBERS = TypeAdapter(tuple[int, list[bytes]])
IDS = TypeAdapter(list[bytes])
TURN = TypeAdapter(bool)
"""What Redis answers."""


@dataclass(frozen=True, slots=True)
class Chore:
    """One registry, gone through in steps."""

    key: str
    step: Callable[[int], int]
    """Takes Redis's cursor, 0 at first, and returns the next one, 0 after the last step."""


class Maintenance:
    """Keeps the registries of one queue in order, in the name of one worker."""

    def __init__(self, connection: Redis, queue: Queue, worker: str, *, ttl: int) -> None:
        """Maintain the registries of `queue`.

        Args:
            connection: where.
            queue: whose.
            worker: name of the one that does it.
            ttl: seconds for which is kept what has no time to live and whose job is gone.
        """
        self._connection = connection
        self._queue = queue
        self._worker = worker
        self._ttl = ttl
        self._chores: deque[Chore] = deque()
        self._cursor = 0
        self._next_round = 0.0
        self._said: set[str] = set()
        self._take_turn, self._sweep, self._sweep_workers, self._expire_canceled = (
            connection.register_script((LUA / "maintenance" / f"{name}.lua").read_text())
            for name in ("take_turn", "sweep", "sweep_workers", "expire_canceled")
        )

    def due(self) -> bool:
        """Whether there is something to do."""
        return bool(self._chores) or time.monotonic() >= self._next_round

    def step(self) -> None:
        """Do a few milliseconds' work; what Redis refuses is left until the next round.

        Raises:
            redis.exceptions.RedisError: Redis does not answer; the step may be done again.
        """
        if not self._chores:
            self._begin()
        if not self._chores:
            return
        chore = self._chores[0]
        try:
            self._cursor = chore.step(self._cursor)
        except ResponseError as error:
            self._say(chore.key, error)
            self._cursor = 0
        if self._cursor == 0:
            self._chores.popleft()

    def _begin(self) -> None:
        """Begin a round, where it is this worker's turn."""
        key = keys.maintenance(self._queue.name)
        try:
            turn = self._take_turn(keys=[key], args=[self._worker, int(1000 * MAINTAIN_EVERY)])
            if TURN.validate_python(turn):
                self._chores.extend(self._round())
        except ResponseError as error:
            self._say(key, error)
        self._next_round = time.monotonic() + MAINTAIN_EVERY

    def _round(self) -> list[Chore]:
        """Return what there is to do in a round. Who runs is the reaper's affair."""
        queue = self._queue
        scored_by_expiry = (queue.finished_job_registry.key, queue.failed_job_registry.key)
        others = (queue.deferred_job_registry.key, queue.scheduled_job_registry.key)
        canceled, workers = queue.canceled_job_registry.key, WORKERS_BY_QUEUE_KEY % queue.name
        return [
            *(Chore(key, partial(self._tidy, key, expires=True)) for key in scored_by_expiry),
            *(Chore(key, partial(self._tidy, key, expires=False)) for key in others),
            Chore(canceled, partial(self._tidy_canceled, canceled)),
            Chore(workers, partial(self._tidy_workers, workers)),
        ]

    def _tidy(self, registry: str, cursor: int, *, expires: bool) -> int:
        """Take a page of a registry; returns the next cursor."""
        following, _ = self._swept(registry, cursor, expires=expires)
        return following

    def _tidy_canceled(self, registry: str, cursor: int) -> int:
        """Take a page of the canceled jobs; what RQ keeps of ours for ever is given a time to live."""
        following, kept = self._swept(registry, cursor, expires=False)
        for job_id in kept[:MOST_LOADED]:
            try:
                job = load(job_id, self._connection)
            except (NoSuchJobError, Poison):
                continue
            if job.func_name == FUNCTION:  # others are not ours to judge
                self._expire_canceled(keys=[keys.rq_job(job.id)], args=[self._ttl])
        return following

    def _swept(self, registry: str, cursor: int, *, expires: bool) -> tuple[int, list[bytes]]:
        """Take a page of a registry; returns the next cursor, and the entries of jobs that are kept for ever."""
        following, page = SCANNED.validate_python(self._connection.zscan(registry, cursor, count=PAGE))
        ids = [entry for entry, _ in page]
        if not ids:
            return following, []
        kept = self._sweep(
            keys=[registry, *(key for job_id in ids for key in _keys_of(job_id))],
            args=[int(time.time()) if expires else "", self._ttl, *ids],
        )
        return following, IDS.validate_python(kept)

    def _tidy_workers(self, registry: str, cursor: int) -> int:
        """Take a page of the queue's workers; returns the next cursor."""
        following, members = MEMBERS.validate_python(self._connection.sscan(registry, cursor, count=PAGE))
        prefix = keys.rq_worker("").encode()
        workers = [member for member in members if member.startswith(prefix)]
        others = [member for member in members if not member.startswith(prefix)]
        self._sweep_workers(keys=[registry, Worker.redis_workers_keys, *workers], args=others)
        return following

    def _say(self, key: str, error: ResponseError) -> None:
        """Say once that a key cannot be maintained."""
        if key not in self._said:
            self._said.add(key)
            structlog.get_logger("preflight").warning("registry_not_maintained", key=key, detail=trouble(error))


def list_as_cancelled(connection: Redis, queue: Queue, job_id: str) -> None:
    """Enter a job that was cancelled while it ran among the canceled ones, too, by the time of it as RQ does.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    try:
        connection.zadd(queue.canceled_job_registry.key, {job_id: int(time.time())})
    except ResponseError as error:
        if not spoiled(error):  # else the registry is no registry, which is not the job's fault
            raise


def _keys_of(raw_id: bytes) -> tuple[bytes, ...]:
    """Return RQ's hash of a job, RQ's results of it, and its cancel key."""
    job_id = raw_id.decode(errors="surrogateescape")
    names = (keys.rq_job(job_id), keys.rq_results(job_id), keys.cancel(job_id))
    return tuple(name.encode(errors="surrogateescape") for name in names)
