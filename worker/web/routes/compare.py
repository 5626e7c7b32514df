"""Compare: a few jobs side by side."""

from typing import Annotated, Final

from fastapi import FastAPI, Query
from redis import Redis

from preflight import Client
from worker.web.listing.comparison import compare
from worker.web.listing.models import Comparison
from worker.web.routes.errors import problems
from worker.web.routes.jobs import require_job
from worker.web.routes.reads import Slots

MAX_COMPARED: Final = 5
THREADS: Final = 1
MAX_WAITING: Final = 16


class CompareRoutes:
    """The route /v1/compare."""

    def __init__(self, client: Client, redis: Redis) -> None:
        self._client = client
        self._redis = redis
        self._slots = Slots(THREADS, MAX_WAITING)

    def register(self, app: FastAPI) -> None:
        """Add the route to `app`."""
        app.get("/v1/compare", response_model_exclude_none=True, tags=["jobs"], responses=problems(404, 422, 429))(
            self.compare
        )

    async def compare(self, job: Annotated[list[str], Query(min_length=1, max_length=MAX_COMPARED)]) -> Comparison:
        """Return settings, results, plans and curves of up to five jobs."""
        return await self._slots.run(lambda: self._compare(job))

    def _compare(self, job: list[str]) -> Comparison:
        states = {state.job_id: state for state in (require_job(self._client, job_id) for job_id in job)}
        return compare(self._client, self._redis, [*states.values()])
