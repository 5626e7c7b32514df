"""State of the service: overview, health, and metrics in Prometheus's text format."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Final

from fastapi import FastAPI, Path
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from redis import Redis
from redis.exceptions import RedisError

from preflight import Client
from preflight.errors import ERRORS_BY_REASON, Cancelled, ChildStopped, PreflightError
from preflight.events import counters
from preflight.events.counters import FINISHED, read_totals
from preflight.redis.retry import condition
from preflight.redis.server.faults import find_faults
from preflight.wire import JobState, is_job_id
from worker.state.supervision import Supervisor
from worker.web.documents.runbook import advice
from worker.web.listing.overview import JobPace, Overview, read_overview
from worker.web.models import Advice, Health, Part, Ready
from worker.web.predicting.service import Predictions
from worker.web.routes.errors import PROBLEMS, RETRY_AFTER_SECONDS, ApiError, RedisUnavailable, problems
from worker.web.routes.reads import Slots, TtlCache
from worker.web.streams.broadcaster import Broadcaster

THREADS: Final = 2
MAX_WAITING: Final = 64
PROBE_THREADS: Final = 1
MAX_PROBES: Final = 2048
"""Most probes that wait: as many as there may be connections."""
FAILURES: Final = sorted({PreflightError.reason, *ERRORS_BY_REASON} - {Cancelled.reason, ChildStopped.reason})
NO_ENDS: Final = dict.fromkeys(
    (f"{counters.ENDED}{end}" for end in ("finished:", "cancelled:", *(f"failed:{reason}" for reason in FAILURES))), 0.0
)
"""Counters exported before the first such end: Prometheus sees no increase in a series that begins with 1."""


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


@dataclass(frozen=True, slots=True, eq=False)  # the registry distinguishes collectors by identity
class Snapshot(Collector):
    """The data of one scrape."""

    overview: Overview
    totals: Mapping[str, float]
    running: Sequence[JobState]
    viewers: int

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        yield from self._gauges()
        yield from self._counters()
        yield self._histogram()

    def _gauges(self) -> Iterable[Metric]:
        queue = self.overview.queue
        info = GaugeMetricFamily("preflight_build_info", "Version of this process; always 1.", labels=["version"])
        info.add_metric([version("preflight-worker")], 1)
        yield info
        for name, help_text, value in (
            ("preflight_queue_jobs", "Jobs in the queue.", self.overview.depth),
            ("preflight_running_jobs", "Jobs that a worker runs.", self.overview.running),
        ):
            gauge = GaugeMetricFamily(name, help_text, labels=["queue"])
            gauge.add_metric([queue], value)
            yield gauge
        workers = GaugeMetricFamily("preflight_workers", "Workers by state.", labels=["queue", "state"])
        states = [worker.state for worker in self.overview.workers]
        for state in sorted({"idle", "busy", *states}):
            workers.add_metric([queue, state], states.count(state))
        yield workers
        suspended = int(self.overview.suspended)
        yield GaugeMetricFamily(
            "preflight_suspended", "1 while `rq suspend` keeps workers from taking jobs.", suspended
        )
        hourly = self.overview.jobs_per_hour  # None: no sample, since 0 would say that no job finishes
        help_text = "Jobs that finish per hour: rate of the last hour, or of the shorter time that this process counts."
        yield GaugeMetricFamily("preflight_jobs_per_hour", help_text, hourly)
        sharing = sum(1 for state in self.running if state.shared_with)
        yield GaugeMetricFamily("preflight_jobs_sharing", "Running jobs that share the processors of a host.", sharing)
        speed = sum(state.samples_per_s or 0.0 for state in self.running)
        yield GaugeMetricFamily("preflight_samples_per_second", "Samples per second of all running jobs.", speed)
        yield GaugeMetricFamily("preflight_event_viewers", "Viewers of event streams of this process.", self.viewers)

    def _counters(self) -> Iterable[Metric]:
        ended = CounterMetricFamily(
            "preflight_jobs_ended", "Attempts that ended, by outcome and reason.", labels=["outcome", "reason"]
        )
        for name, value in sorted((NO_ENDS | dict(self.totals)).items()):
            if name.startswith(counters.ENDED):
                outcome, _, reason = name.removeprefix(counters.ENDED).partition(":")
                ended.add_metric([outcome, reason], value)
        yield ended
        for name, total, help_text in (
            ("preflight_attempts", counters.ATTEMPTS, "Attempts that began."),
            ("preflight_resumes", counters.RESUMES, "Trainings resumed from a checkpoint."),
            ("preflight_interruptions", counters.INTERRUPTIONS, "Jobs requeued because their worker shut down."),
            ("preflight_oom_kills", counters.MEMORY_KILLS, "Trainings killed for lack of memory."),
            ("preflight_groups", counters.GROUPS, "Groups of workers that formed to train a job together."),
            ("preflight_groups_let_go", counters.GROUPS_LET_GO, "Groups that did not pay: measured, and let go."),
            ("preflight_groups_short", counters.GROUPS_SHORT, "Attempts put back as too few workers came."),
            ("preflight_members_left", counters.MEMBERS_LEFT, "Members that left their group, or were let go."),
            ("preflight_calibrations", counters.CALIBRATIONS, "Plans that were measured."),
            (
                "preflight_calibration_seconds",
                counters.CALIBRATION_SECONDS,
                "Wall time of calibrations, process starts included.",
            ),
        ):
            yield CounterMetricFamily(name, help_text, self.totals.get(total, 0.0))

    def _histogram(self) -> Metric:
        bounds = [*map(str, counters.DURATIONS), "+Inf"]
        count, buckets = 0.0, []
        for bound in bounds:
            count += self.totals.get(f"{counters.BUCKET}{bound}", 0.0)
            buckets.append((bound, count))
        return HistogramMetricFamily(
            "preflight_job_duration_seconds", "Duration of an attempt.", buckets=buckets,
            sum_value=self.totals.get(counters.SECONDS, 0.0),
        )  # fmt: skip


def exposition(snapshot: Snapshot) -> bytes:
    """Return the snapshot as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(snapshot)
    return generate_latest(registry)
