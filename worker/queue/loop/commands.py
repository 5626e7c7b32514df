"""RQ's commands to a worker, from its channel: `shutdown` and to stop a job; others are ignored."""

import os
import signal
from collections.abc import Callable
from typing import Final

from redis import Redis

from preflight.events.state import request_cancel
from preflight.redis.untrusted.values import Refused, as_json
from preflight.wire import is_job_id
from worker.admission.admit import AdmittedJob
from worker.config.settings import Settings

MAX_COMMAND_BYTES: Final = 4096
MAX_COMMANDS: Final = 100
"""Most commands that are read between two steps of the worker."""


class Commands:
    """The commands to one worker. Every method raises `redis.exceptions.RedisError`."""

    def __init__(
        self, connection: Redis, channel: str, settings: Settings, running: Callable[[], AdmittedJob | None]
    ) -> None:
        """Read commands from `channel`; `running` returns the job that the worker runs."""
        self._connection = connection
        self._channel = channel
        self._settings = settings
        self._running = running
        # Polled, not read by RQ's thread: a fork may find locks that a thread holds locked for ever.
        self._subscription = connection.pubsub(ignore_subscribe_messages=True)

    def subscribe(self) -> None:
        """Begin to listen."""
        self._subscription.subscribe(self._channel)

    def handle(self) -> None:
        """Handle the commands that have come: `shutdown` sends a SIGTERM, one to stop a job cancels it."""
        for _ in range(MAX_COMMANDS):
            message = self._subscription.get_message(timeout=0)
            if message is None:
                return
            try:
                command = as_json(message["data"], MAX_COMMAND_BYTES)
            except Refused:
                continue
            match command:
                case {"command": "shutdown"}:
                    os.kill(os.getpid(), signal.SIGTERM)
                case {"command": "stop-job" | "stop-execution", "job_id": str(rq_id)} if is_job_id(rq_id):
                    running = self._running()
                    job_id = running.job_id if running is not None and running.rq_job.id == rq_id else rq_id
                    request_cancel(self._connection, job_id, ttl=self._settings.state_ttl)

    def close(self) -> None:
        """Stop listening."""
        self._subscription.close()
