"""Plan store: the plan of a deterministic job, kept for its later attempts."""

from collections.abc import Callable
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError
from redis import Redis
from redis.exceptions import RedisError

from preflight.contract.plan import Plan
from preflight.redis import keys
from preflight.redis.retry import retry_until_available
from preflight.redis.untrusted.reads import read_value

PLAN = TypeAdapter(Plan)
MAX_PLAN_BYTES: Final = 16 * 1024


class PlanStore:
    """Keeps the plan of a job for its later attempts. This class keeps nothing: without Redis there are checkpoints."""

    def get(self) -> Plan | None:
        """Return the stored plan."""
        return None

    def put(self, plan: Plan) -> None:
        """Store `plan`."""


class RedisPlanStore(PlanStore):
    """Keeps the plan in Redis; the checkpoints keep it too."""

    def __init__(self, connection: Redis, job_id: str, ttl: int, heartbeat: Callable[[], None]) -> None:
        self._connection = connection
        self._key = keys.plan(job_id)
        self._ttl = ttl
        self._heartbeat = heartbeat

    def get(self) -> Plan | None:
        """Return the plan of an earlier attempt, once Redis is available; None for a plan of another version."""
        stored = retry_until_available(
            lambda: read_value(self._connection, self._key, MAX_PLAN_BYTES),
            "read the plan of earlier attempts",
            self._heartbeat,
        )
        try:
            return PLAN.validate_json(stored) if stored is not None else None
        except ValidationError:
            return None

    def put(self, plan: Plan) -> None:
        """Store the plan; while Redis is away, only the first checkpoint keeps it."""
        try:
            self._connection.set(self._key, PLAN.dump_json(plan), ex=self._ttl)
        except RedisError as error:
            structlog.get_logger("preflight").warning(
                "plan_save_failed", message=f"the plan is not kept for later attempts: {error}"
            )
