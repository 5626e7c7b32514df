"""Attempt heartbeat: renews the lease, publishes pending events and notices what ends the attempt."""

import time
from collections.abc import Callable
from typing import Final

from redis.exceptions import RedisError

from preflight.container.resources import detect
from preflight.errors import Cancelled, TimedOut
from preflight.redis.retry import REDIS, retry_until_available
from worker.broker.fencing import Fence
from worker.events.redis_sink import RedisSink
from worker.state.control import Interrupted, JobControl, StopSignal

HEARTBEAT_INTERVAL: Final = 1.0
"""Seconds between two renewals of the lease, each of which also reads whether the job was cancelled."""
LOW_MEMORY_SHARE: Final = 0.05
"""Share of the container's memory below which a worker that vanishes was probably killed for memory."""


class AttemptHeartbeat(JobControl):
    """Job control of an attempt that has a lease."""

    def __init__(
        self, fence: Fence, events: RedisSink, stop: StopSignal, restore: Callable[[], None], *, timeout: float | None,
        shares: int = 1,
    ) -> None:  # fmt: skip
        """Renew the lease of `fence` and publish `events`.

        `restore` writes RQ's records of the job, and is called where Redis has lost them. `timeout` are the seconds
        that the job may run; None, 0 or less: no limit. The container is divided among `shares` workers.
        """
        self._fence = fence
        self._events = events
        self._stop = stop
        self._restore = restore
        self._shares = shares
        self._timeout = timeout if timeout is not None and timeout > 0 else None
        self._began = time.monotonic()
        self._next = 0.0
        self._progressed = False
        self._cancelled = False

    def check(self) -> None:
        """Keep the attempt alive.

        Raises:
            Interrupted: the worker was asked to stop.
            Cancelled: the job was cancelled.
            TimedOut: the job ran too long.
            Superseded: a newer attempt has taken over.
        """
        self._stop.check()
        self.heartbeat()
        if self._cancelled:
            raise Cancelled("cancelled on request")
        if self._timeout is not None and time.monotonic() - self._began > self._timeout:
            raise TimedOut(f"the job ran longer than {self._timeout:g} s; enqueue it with a longer job_timeout")

    def heartbeat(self) -> None:
        """Renew the lease and publish pending events; raises `Superseded`."""
        self._events.publish_pending()
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + HEARTBEAT_INTERVAL
        try:
            self._renew_lease()
            REDIS.note_answer()
        except RedisError as error:
            REDIS.note_failure(error, "renew the lease")

    def mark_progress(self) -> None:
        """Note that the attempt is further than those before it."""
        self._progressed = True

    def assert_current(self) -> None:
        """Return once Redis has confirmed that no newer attempt has taken over.

        Raises:
            Superseded: one has.
            Interrupted: the worker was asked to stop meanwhile.
        """
        retry_until_available(self._renew_lease, "publish the model", self._stop.check)

    def keep_waiting(self) -> None:
        """Keep the attempt alive at its end, when neither a cancellation nor the time limit counts any more."""
        self._stop.check()
        self.heartbeat()

    def drain(self) -> None:
        """Return once Redis has taken every event; raises as `keep_waiting`."""
        while not self._events.publish_pending():
            self.keep_waiting()
            time.sleep(0.05)

    def _renew_lease(self) -> None:
        renewal = self._fence.renew_lease(progressed=self._progressed, low_memory=memory_is_low(self._shares))
        self._cancelled = renewal.cancelled
        if renewal.records_lost:
            self._restore()


class ExtrasControl(JobControl):
    """Job control of the extras: the job has ended, so that there is no lease to renew and nothing to cancel."""

    def __init__(
        self, events: RedisSink, stop: StopSignal, must_give_way: Callable[[], bool] = lambda: False,
        *, patience: float = 1.0,
    ) -> None:  # fmt: skip
        """Publish to `events`; `must_give_way`: the processes of the extras have to end, and run again later."""
        self._events = events
        self._stop = stop
        self._must_give_way = must_give_way
        self.patience = patience

    def check(self) -> None:
        """Publish pending events.

        Raises:
            Interrupted: the worker was asked to stop, or the extras have to give way.
            Superseded: a newer attempt has taken over.
        """
        self._stop.check()
        if self._must_give_way():
            raise Interrupted
        self.heartbeat()

    def heartbeat(self) -> None:
        """Publish pending events; raises `Superseded`."""
        self._events.publish_pending()

    def assert_current(self) -> None:
        """Return once Redis has confirmed that no newer attempt has taken over; raises as `check`."""
        retry_until_available(self._events.verify_published, "add the extras of a job", self._stop.check)

    def drain(self) -> None:
        """Return once Redis has taken every event; raises as `check`."""
        while not self._events.publish_pending():
            self._stop.check()
            time.sleep(0.05)


def memory_is_low(shares: int = 1) -> bool:
    """Whether this container, or this share of it, has less than `LOW_MEMORY_SHARE` of its memory left."""
    found = detect(shares=shares)
    return found.headroom_bytes < LOW_MEMORY_SHARE * found.memory_bytes
