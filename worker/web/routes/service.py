"""State of the service: overview, metrics, health."""

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import FastAPI, Path
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from redis import Redis
from redis.exceptions import RedisError

from preflight import Client
from preflight.events.counters import FINISHED, read_totals
from preflight.redis.retry import condition
from preflight.redis.server.faults import find_faults
from preflight.wire import is_job_id
from worker.state.supervision import Supervisor
from worker.web.documents.runbook import advice
from worker.web.listing.overview import Overview, read_overview
from worker.web.listing.pace import JobPace
from worker.web.models import Advice, Health, Part, Ready
from worker.web.predicting.service import Predictions
from worker.web.prometheus import Snapshot, exposition
from worker.web.routes.errors import PROBLEMS, RETRY_AFTER_SECONDS, ApiError, RedisUnavailable, problems
from worker.web.routes.reads import Slots, TtlCache
from worker.web.streams.broadcaster import Broadcaster

THREADS: Final = 2
MAX_WAITING: Final = 64
PROBE_THREADS: Final = 1
MAX_PROBES: Final = 2048
"""Most probes that wait: as many as there may be connections."""


@dataclass(frozen=True, slots=True)
class Service:
    """What these routes report on."""

    client: Client
    redis: Redis
    broadcaster: Broadcaster
    predictions: Predictions
    supervisor: Supervisor
    queue: str
    read_only: bool


class ServiceRoutes:
    """Routes about the queue, the workers and this process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._overview = TtlCache(self._read_overview)
        self._pace = JobPace()
        self._faults = TtlCache(self._read_faults)
        self._slots = Slots(THREADS, MAX_WAITING)
        self._probes = Slots(PROBE_THREADS, MAX_PROBES)

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        app.get("/v1/overview", tags=["service"], responses=problems(429))(self.service)
        app.get("/v1/advice/{reason}", tags=["service"], responses=problems(404))(self.advice)
        app.get("/metrics", tags=["service"], response_class=PlainTextResponse, responses=problems(429))(self.metrics)
        app.get("/healthz", tags=["service"])(self.healthy)
        app.get("/readyz", tags=["service"], responses={503: PROBLEMS[503]})(self.ready)

    async def service(self) -> Overview:
        """Return the depth of the queue, the number of running jobs, and the workers."""
        return await self._slots.run(lambda: self._overview.get(()))

    async def advice(self, reason: Annotated[str, Path(pattern="^[a-z_]{1,64}$")]) -> Advice:
        """Return what a reason of failures means and what to do about it, as the runbook has it."""
        text = advice().get(reason)
        if text is None:
            raise ApiError(404, "unknown_reason", f"the runbook has no reason {reason}; see docs/how-to/runbook.md")
        return Advice(reason=reason, text=text)

    async def metrics(self) -> Response:
        """Return the metrics for Prometheus."""
        return await self._slots.run(self._metrics)

    async def healthy(self) -> Health:
        """Check that this process answers; `parts` are its threads and tasks."""
        states = self._service.supervisor.states()
        parts = tuple(Part(name=one.name, state=one.state, restarts=one.restarts) for one in states)
        return Health(status="ok" if all(part.state == "running" for part in parts) else "degraded", parts=parts)

    async def ready(self) -> Ready:
        """Check that Redis answers, too, and that jobs can run with it."""
        try:
            refusal = await self._probes.run(lambda: self._faults.get(()))
        except RedisError as error:  # without the address: this route needs no token
            raise RedisUnavailable(f"Redis {condition(error)}; ask again after {RETRY_AFTER_SECONDS} s") from error
        if refusal is not None:
            raise ApiError(503, "redis_unusable", f"Redis {refusal}")
        return Ready()

    def _read_overview(self, _: tuple[()]) -> Overview:
        service = self._service
        found = read_overview(service.redis, service.queue, read_only=service.read_only)
        pace = self._pace.observe(read_totals(service.redis).get(FINISHED, 0.0))
        return found.model_copy(update={"jobs_per_hour": pace})

    def _read_faults(self, _: tuple[()]) -> str | None:
        """Return why jobs cannot run; a service that only shows jobs needs no scripts."""
        self._service.redis.ping()
        return None if self._service.read_only else find_faults(self._service.redis).scripts

    def _metrics(self) -> Response:
        service, overview = self._service, self._overview.get(())
        jobs = [worker.job_id for worker in overview.workers if is_job_id(worker.job_id or "")]
        running = [service.client.status(job_id) for job_id in jobs if job_id is not None]
        totals, viewers = read_totals(service.redis), service.broadcaster.viewers
        snapshot = Snapshot(overview=overview, totals=totals, running=running, viewers=viewers)
        return Response(exposition(snapshot) + service.predictions.exposition(), media_type=CONTENT_TYPE_LATEST)
