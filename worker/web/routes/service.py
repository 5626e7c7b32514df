"""State of the service: overview, metrics, health."""

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from redis import Redis
from redis.exceptions import RedisError

from worker.broker.retry import condition
from worker.client import Client
from worker.events.counters import read_totals
from worker.web.listing.overview import Overview, read_overview
from worker.web.prometheus import Snapshot, exposition
from worker.web.routes.errors import PROBLEMS, RETRY_AFTER_SECONDS, RedisUnavailable, problems
from worker.web.routes.ttl_cache import TtlCache
from worker.web.streams.broadcaster import Broadcaster
from worker.wire import is_job_id


class ServiceRoutes:
    """Routes about the queue, the workers and this process."""

    def __init__(self, client: Client, redis: Redis, broadcaster: Broadcaster, queue: str, *, read_only: bool) -> None:
        self._client = client
        self._redis = redis
        self._broadcaster = broadcaster
        self._overview = TtlCache(lambda: read_overview(redis, queue, read_only=read_only))

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        app.get("/v1/overview", tags=["service"], responses=problems())(self.service)
        app.get("/metrics", tags=["service"], response_class=PlainTextResponse, responses=problems())(self.metrics)
        app.get("/healthz", tags=["service"])(self.healthy)
        app.get("/readyz", tags=["service"], responses={503: PROBLEMS[503]})(self.ready)

    def service(self) -> Overview:
        """Return the depth of the queue, the number of running jobs, and the workers."""
        return self._overview.get()

    def metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        overview = self._overview.get()
        jobs = [worker.job_id for worker in overview.workers if is_job_id(worker.job_id or "")]
        running = [self._client.status(job_id) for job_id in jobs if job_id is not None]
        totals, viewers = read_totals(self._redis), self._broadcaster.viewers
        snapshot = Snapshot(overview=overview, totals=totals, running=running, viewers=viewers)
        return Response(exposition(snapshot), media_type=CONTENT_TYPE_LATEST)

    async def healthy(self) -> dict[str, str]:
        """Check that this process answers."""
        return {"status": "ok"}

    def ready(self) -> dict[str, str]:
        """Check that Redis answers, too."""
        try:
            self._redis.ping()
        except RedisError as error:  # without the address: this route needs no token
            raise RedisUnavailable(f"Redis {condition(error)}; ask again after {RETRY_AFTER_SECONDS} s") from error
        return {"status": "ok"}
