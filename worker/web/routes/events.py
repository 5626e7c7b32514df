"""Events of a job as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import FastAPI, Header, Query
from fastapi.responses import Response, StreamingResponse
from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool

from preflight import Client
from worker.web.models import Problem
from worker.web.routes.errors import ApiError, problems
from worker.web.routes.jobs import require_job
from worker.web.streams.broadcaster import Broadcaster, TooManySubscriptions
from worker.web.streams.stream_record import UnreadableStream
from worker.web.streams.subscription import Subscription

EVENT_STREAM: Final = "text/event-stream"
UNBUFFERED: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
EVENTS_RESPONSE: Final[dict[str, object]] = {
    "description": "server-sent events (WHATWG HTML, 9.2): the data of each is an `Event`; after the last comes `end`, "
    "and `problem`, with a `Problem`, where the events become unreadable",
    "content": {EVENT_STREAM: {"schema": {"$ref": "#/components/schemas/ServerSentEvent"}}},
}


class EventRoutes:
    """The route /v1/jobs/{job_id}/events."""

    def __init__(self, client: Client, broadcaster: Broadcaster) -> None:
        self._client = client
        self._broadcaster = broadcaster

    def register(self, app: FastAPI) -> None:
        """Add the route to `app`."""
        app.get(
            "/v1/jobs/{job_id}/events", tags=["jobs"], response_class=StreamingResponse,
            responses={**problems(404, 409, 429), 200: EVENTS_RESPONSE},
        )(self.events)  # fmt: skip

    async def events(
        self,
        job_id: str,
        last_event_id: Annotated[str | None, Header(description="continue after this event")] = None,
        after: Annotated[str, Query(description="the same, for clients that cannot send the header")] = "0",
        thin: Annotated[
            bool, Query(description="of a long past, send as much progress as a chart needs, and all other events")
        ] = False,
    ) -> Response:
        """Follow a job's events until it has ended, from the oldest that is kept."""
        state = await run_in_threadpool(require_job, self._client, job_id)
        try:
            subscription = await self._broadcaster.subscribe(state.job_id)
        except TooManySubscriptions as error:
            raise ApiError(429, error.reason, str(error)) from error
        except UnreadableStream as error:
            raise ApiError(409, error.reason, str(error)) from error
        stream = self._stream(subscription, last_event_id or after, thin=thin)
        return StreamingResponse(stream, media_type=EVENT_STREAM, headers=UNBUFFERED)

    async def _stream(self, subscription: Subscription, after: str, *, thin: bool) -> AsyncIterator[bytes]:
        """Yield the response body; the event `end` stops clients from reconnecting."""
        yield b": preflight\n\n"  # sends the headers at once
        try:
            followed = ""
            while subscription.job_id != followed and not self._broadcaster.is_closing:
                async for chunk in self._broadcaster.follow(subscription, after, thin=thin):
                    yield chunk or (b": redis is away\n\n" if self._broadcaster.is_redis_away else b": keep-alive\n\n")
                # A worker may have taken a job that was followed under RQ's id.
                followed = subscription.job_id
                job_id = await run_in_threadpool(self._client.resolve, followed)
                if job_id != followed:
                    subscription = await self._broadcaster.subscribe(job_id)
        except RedisError:
            return  # without `end`, so that the client reconnects
        except (UnreadableStream, TooManySubscriptions) as error:
            problem = Problem(reason=error.reason, message=str(error))
            yield f"event: problem\ndata: {problem.model_dump_json()}\n\n".encode()
            return
        if not self._broadcaster.is_closing:
            yield b"event: end\ndata: {}\n\n"
