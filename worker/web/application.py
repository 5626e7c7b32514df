"""The routes: jobs in, states and events out, and the page."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from threading import Lock
from typing import Annotated, Final, Generic, TypeVar

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, JsonValue
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from training.errors import InvalidConfig
from worker.broker.retry import condition, trouble
from worker.client import Client
from worker.client.rq_ids import LIMIT
from worker.config.settings import Settings
from worker.events.counters import read_totals
from worker.web.auth import Access, App
from worker.web.openapi import Described
from worker.web.overview import Overview, overview
from worker.web.prometheus import Snapshot, exposition
from worker.web.static import page_files
from worker.web.streams.broadcaster import Hub, TooManyWatched, Unreadable, Watched
from worker.wire import CONTRACT, JobId, JobState, Status, TrainResult, is_job_id, read_job

FRESH_FOR: Final = 0.5
"""Seconds for which a list of jobs or workers serves every viewer: however many look, Redis is asked as often."""
MOST_JOBS: Final = 1000
"""Jobs in one answer."""
LISTS_KEPT: Final = 32
"""Different lists of jobs that serve every viewer."""
RETRY_AFTER: Final = 2
"""Seconds after which it is worth asking again when Redis is away."""

EVENT_STREAM: Final = "text/event-stream"
UNBUFFERED: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
AN_EVENT: Final = {"$ref": "#/components/schemas/ServerSentEvent"}
FOLLOWED: Final = (
    "server-sent events (WHATWG HTML, 9.2): the data of each is an `Event`; after the last comes `end`, and `problem`, "
    "with a `Problem`, where they can be read no further"
)

T = TypeVar("T")


class Answer(BaseModel):
    """Base of the answers."""

    model_config = ConfigDict(frozen=True)


class Enqueued(Answer):
    """A job in the queue."""

    job_id: JobId
    created: bool
    """False: a job of this id was there already, and nothing was enqueued."""


class JobDetail(JobState):
    """The latest of everything about a job, and its result once it is finished."""

    result: TrainResult | None = None


class Cancelling(Answer):
    """A job that was asked to stop."""

    job_id: JobId
    status: Status
    """At this moment: one that runs stops within a step."""


class Problem(Answer):
    """Why a request was refused."""

    reason: str
    field: str | None = None
    message: str
    """One sentence: what, which value, which bound, what to do."""


class Refused(Exception):
    """A request that cannot be carried out."""

    def __init__(self, status: int, reason: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(reason=reason, field=field, message=message)


class Away(RedisError):
    """Redis does not answer, in words for whoever asks."""


PROBLEMS: Final[dict[int | str, dict[str, object]]] = {
    code: {"model": Problem, "description": why}
    for code, why in {
        400: "no JSON, or a token in the address", 401: "token missing or wrong", 404: "no such job",
        403: "a page from elsewhere", 408: "too slow", 409: "not in this state", 413: "too large",
        415: "not application/json",
        421: "not asked for as localhost, and there is no token", 422: "a field is wrong",
        429: "too many jobs are watched", 503: "Redis is away",
    }.items()
}  # fmt: skip
POSTED: Final = (403, 408, 413, 415, 422)
"""How a body may be refused."""
ANY_OTHER: Final[dict[str, object]] = {"model": Problem, "description": "refused for another reason"}


def problems(*codes: int) -> dict[int | str, dict[str, object]]:
    """Return what OpenAPI says of these answers."""
    return {**{code: PROBLEMS[code] for code in sorted({*codes, 400, 401, 421, 503})}, "default": ANY_OTHER}


def _body(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return what OpenAPI says of a request's body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def application(settings: Settings, token: str | None) -> tuple[App, Hub]:
    """Return the service, and the hub that ends its streams.

    Args:
        settings: whose Redis and queue are served.
        token: what a request must carry; None lets everything on this machine in.
    """
    app, hub = routes(settings)
    return Access(app, token), hub


def routes(settings: Settings) -> tuple[Described, Hub]:
    """Return the routes, open to everybody, and the hub; Redis is not asked before a request is."""
    key = None if settings.signing_key is None else settings.signing_key.get_secret_value()
    client = Client(settings.redis_url, queue=settings.queue, signing_key=key)
    redis = Redis.from_url(settings.redis_url, socket_timeout=5)

    async def goes_on(job_id: str) -> bool:
        return await run_in_threadpool(client.goes_on, job_id)

    hub = Hub(AsyncRedis.from_url(settings.redis_url, socket_timeout=5), goes_on)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        hub.start()
        yield
        await hub.close()

    app = Described(
        title="preflight", version=CONTRACT, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        description="Training jobs in, states and events out. Errors are one sentence each, as `Problem`.",
    )  # fmt: skip
    _add_errors(app, settings)
    _add_jobs(app, client, hub, settings)
    _add_service(app, client, redis, hub, settings)
    _add_page(app)
    return app, hub


def _add_errors(app: FastAPI, settings: Settings) -> None:
    def said(request: Request, error: Exception) -> JSONResponse:
        """Return the answer to a request that ended in `error`."""
        match error:
            case Refused():
                return JSONResponse(error.problem.model_dump(), error.status)
            case InvalidConfig():
                problem = Problem(reason=error.reason, field=error.field, message=error.message)
                return JSONResponse(problem.model_dump(), 422)
            case RequestValidationError():
                return JSONResponse(_parameter(error).model_dump(), 422)
            case HTTPException():
                problem = Problem(reason="no_such_route", message=f"{error.detail}; /openapi.json lists what there is")
                headers = {"allow": _allowed(request)} if error.status_code == 405 else error.headers
                return JSONResponse(problem.model_dump(), error.status_code, headers)
            case RedisError():
                message = str(error) if isinstance(error, Away) else settings.scrubbed(trouble(error))
                problem = Problem(reason="redis_unreachable", message=message)
                return JSONResponse(problem.model_dump(), 503, headers={"retry-after": str(RETRY_AFTER)})
        raise error

    for kind in (Refused, InvalidConfig, RequestValidationError, HTTPException, RedisError):
        app.add_exception_handler(kind, said)


def _allowed(request: Request) -> str:
    """Return the methods of all routes at the path of a request: each route by itself knows its own only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in matching for method in route.methods or ()}))


def _parameter(error: RequestValidationError) -> Problem:
    """Return what is wrong with a parameter of the address."""
    first = error.errors()[0]
    field = next((str(part) for part in first["loc"][1:]), "the request")
    value = ascii(first["input"])[:60]
    return Problem(reason=InvalidConfig.reason, field=field, message=f"{field} is {value}: {first['msg']}")


def _add_jobs(app: FastAPI, client: Client, hub: Hub, settings: Settings) -> None:
    @app.post(
        "/v1/jobs", status_code=201, response_model=Enqueued, tags=["jobs"],
        responses={
            **problems(*POSTED),
            409: {"model": Enqueued, "description": "a job of this id was there already; nothing was enqueued"},
        },
        openapi_extra=_body({"$ref": "#/components/schemas/TrainJob"}),
    )  # fmt: skip
    async def enqueue(request: Request) -> JSONResponse:
        """Put a job into the queue; its `job_id` is the idempotency key."""
        job = read_job(await _json(request))
        handle = await run_in_threadpool(client.enqueue, job, job_timeout=settings.job_timeout)
        answer = Enqueued(job_id=handle.job_id, created=handle.created)
        headers = {"location": f"/v1/jobs/{handle.job_id}"}
        return JSONResponse(answer.model_dump(), 201 if handle.created else 409, headers)

    @lru_cache(maxsize=LISTS_KEPT)
    def listed(statuses: frozenset[Status], limit: int) -> Shared[list[JobState]]:
        return Shared(lambda: client.jobs(limit=limit, statuses=statuses))

    @app.get("/v1/jobs", response_model_exclude_none=True, tags=["jobs"], responses=problems(422))
    def jobs(
        status: Annotated[list[Status] | None, Query(description="only these")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_JOBS)] = LIMIT,
    ) -> list[JobState]:
        """List jobs: those that run, then the others, the newest first."""
        return listed(frozenset(status or ()), limit).get()

    def known(job_id: str) -> JobState:
        state = client.status(job_id) if is_job_id(job_id) else None
        if state is None or state.status == "unknown":
            raise Refused(
                404, "unknown_job", f"job {ascii(job_id)[:80]} is not known; GET /v1/jobs lists those that are"
            )
        return state

    @app.get("/v1/jobs/{job_id}", response_model_exclude_none=True, tags=["jobs"], responses=problems(404))
    def job(job_id: str) -> JobDetail:
        """Return the latest of everything about a job."""
        state = known(job_id)
        result = client.result(job_id) if state.status == "finished" else None
        return JobDetail(**state.model_dump(exclude_none=True), result=result)

    @app.post(
        "/v1/jobs/{job_id}/cancel", status_code=202, tags=["jobs"], responses=problems(*POSTED, 404, 409),
        openapi_extra=_body({"type": "object", "maxProperties": 0}),
    )  # fmt: skip
    async def cancel(job_id: str, request: Request) -> Cancelling:
        """Stop a job: at once in the queue, within a step when it runs. Its checkpoint stays."""
        if await _json(request) != {}:
            raise Refused(422, InvalidConfig.reason, "the body of a cancellation must be {}; send that")
        return await run_in_threadpool(cancelled, job_id)

    def cancelled(job_id: str) -> Cancelling:
        state = known(job_id)
        if not client.cancel(job_id):
            raise Refused(
                409, "already_ended", f"job {job_id!r} is {state.status}; only a queued or running job can be cancelled"
            )
        return Cancelling(job_id=job_id, status=client.status(job_id).status)

    @app.get(
        "/v1/jobs/{job_id}/events", tags=["jobs"], response_class=StreamingResponse,
        responses={
            **problems(404, 409, 429),
            200: {"description": FOLLOWED, "content": {EVENT_STREAM: {"schema": AN_EVENT}}},
        },
    )  # fmt: skip
    async def events(
        job_id: str,
        last_event_id: Annotated[str | None, Header(description="go on behind this one")] = None,
        after: Annotated[str, Query(description="the same, where no header can be sent")] = "0",
    ) -> Response:
        """Follow a job's events until it has ended, from the oldest that is kept."""
        await run_in_threadpool(known, job_id)

        try:
            watched = await hub.watch(job_id)
        except TooManyWatched as error:
            raise Refused(429, error.reason, str(error)) from error
        except Unreadable as error:
            raise Refused(409, error.reason, str(error)) from error
        sent = _sent(hub, watched, last_event_id or after)
        return StreamingResponse(sent, media_type=EVENT_STREAM, headers=UNBUFFERED)


async def _sent(hub: Hub, watched: Watched, after: str) -> AsyncIterator[bytes]:
    """Yield what goes over the wire; an event `end` after the job's last one, so that nobody reconnects for ever."""
    yield b": preflight\n\n"  # the headers go out at once, however long the job is silent
    try:
        async for piece in hub.follow(watched, after):
            yield piece or (b": redis is away\n\n" if hub.away else b": still here\n\n")
    except Unreadable as error:
        problem = Problem(reason=error.reason, message=str(error))
        yield f"event: problem\ndata: {problem.model_dump_json()}\n\n".encode()
        return
    if not hub.closing:
        yield b"event: end\ndata: {}\n\n"


def _add_service(app: FastAPI, client: Client, redis: Redis, hub: Hub, settings: Settings) -> None:
    board = Shared(lambda: overview(redis, settings.queue))

    @app.get("/v1/overview", tags=["service"], responses=problems())
    def service() -> Overview:
        """Return what waits, what runs, and who works."""
        return board.get()

    @app.get("/metrics", tags=["service"], response_class=PlainTextResponse, responses=problems())
    def metrics() -> Response:
        """Return what Prometheus scrapes."""
        seen = board.get()
        running = [client.status(job_id) for worker in seen.workers if is_job_id(job_id := worker.job_id or "")]
        snapshot = Snapshot(board=seen, totals=read_totals(redis), running=running, viewers=hub.viewers)
        return Response(exposition(snapshot), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz", tags=["service"])
    async def healthy() -> dict[str, str]:
        """Say that this process answers."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["service"], responses={503: PROBLEMS[503]})
    def ready() -> dict[str, str]:
        """Say that Redis answers, too."""
        try:
            redis.ping()
        except RedisError as error:  # nothing of its address: whoever asks needs no token
            raise Away(f"Redis {condition(error)}; ask again after {RETRY_AFTER} s") from error
        return {"status": "ok"}


def _add_page(app: FastAPI) -> None:
    files = page_files()

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return files["index.html"].answer(request)

    @app.get("/page/{name:path}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise Refused(404, "unknown_file", f"the page has no file {ascii(name)[:80]}")
        return files[name].answer(request)


class Shared(Generic[T]):
    """A value that is read again only once it is older than `FRESH_FOR`, by one thread for all."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = Lock()
        self._value: tuple[float, T] | None = None

    def get(self) -> T:
        """Return it; raises what reading raises."""
        with self._lock:
            if self._value is None or time.monotonic() - self._value[0] > FRESH_FOR:
                self._value = time.monotonic(), self._read()
            return self._value[1]


async def _json(request: Request) -> JsonValue:
    """Return the body of a request; raises `Refused`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a page from elsewhere can send other kinds without being asked about it first
        raise Refused(415, "wrong_content_type", f"content-type is {ascii(kind)[:80]}, but must be 'application/json'")
    try:
        payload: JsonValue = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise Refused(400, "malformed_json", f"the body is not JSON ({error}); send one object") from error
    return payload
