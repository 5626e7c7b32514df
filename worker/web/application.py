"""The ASGI application: its routes, its clients of Redis, and the broadcaster of events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from anyio import to_thread
from fastapi import FastAPI
from rq import Queue
from starlette.concurrency import run_in_threadpool

from preflight import Client
from preflight.redis.connection import PATIENCE, open_async_redis, open_redis
from preflight.wire import CONTRACT_VERSION
from worker.config.settings import Settings
from worker.imports.records import Imports
from worker.models.store import open_store
from worker.state.supervision import Supervisor
from worker.web.auth import App, AuthMiddleware
from worker.web.datasets.shelf import Shelf
from worker.web.datasets.uploading import GIB, Uploader
from worker.web.documents.openapi import DocumentedApp
from worker.web.files.tickets import Tickets
from worker.web.listing.indexer import Indexer
from worker.web.middleware import HeadMiddleware, PacedSending, PrefixMiddleware
from worker.web.predicting.service import Predictions, PredictMiddleware
from worker.web.routes.control import ControlRoutes
from worker.web.routes.datasets import DatasetRoutes
from worker.web.routes.errors import add_error_handlers
from worker.web.routes.events import EventRoutes
from worker.web.routes.files import FileRoutes, ModelFiles
from worker.web.routes.imports import ImportRoutes
from worker.web.routes.jobs import JobRoutes
from worker.web.routes.models import ModelRoutes
from worker.web.routes.page import add_page
from worker.web.routes.predict import JobModels, PredictRoutes
from worker.web.routes.runnable import ChoiceRoutes, JobCheck
from worker.web.routes.search import SearchRoutes
from worker.web.routes.service import Service, ServiceRoutes
from worker.web.streams.broadcaster import Broadcaster
from worker.web.streams.compression import Compression

MAX_THREADS: Final = 16
"""Threads for short reads of single jobs; reads that may take long have `Slots`."""


def create_app(settings: Settings, token: str | None) -> tuple[App, Broadcaster]:
    """Return the service behind its access control, and its broadcaster.

    Args:
        settings: Redis, queue and signing key.
        token: required in every request; None accepts requests from this machine only.
    """
    app, broadcaster, predictions = create_routes(settings)
    inner = PredictMiddleware(PacedSending(Compression(app)), predictions)
    guarded = AuthMiddleware(inner, token, round(settings.max_upload_gb * GIB))
    return HeadMiddleware(PrefixMiddleware(guarded, _prefix(settings))), broadcaster


def create_routes(settings: Settings) -> tuple[DocumentedApp, Broadcaster, Predictions]:
    """Return the routes without access control, the broadcaster and the predictions; does not connect to Redis yet."""
    key = None if settings.signing_key is None else settings.signing_key.get_secret_value()
    client = Client(settings.redis_url, queue=settings.queue, signing_key=key)
    read_only, prefix = settings.web_readonly == "on", _prefix(settings)
    redis = open_redis(settings.redis_url, retries=PATIENCE)

    def may_have_more(job_id: str) -> bool:
        # Once a worker has taken a job that was watched by RQ's id, its events are in another stream.
        return client.resolve(job_id) == job_id and client.is_active(job_id)

    async def is_active(job_id: str) -> bool:
        return await run_in_threadpool(may_have_more, job_id)

    broadcaster = Broadcaster(open_async_redis(settings.redis_url, retries=PATIENCE), is_active)
    files = ModelFiles(settings)
    store, models = open_store(settings), JobModels(files)
    predictions, indexer = Predictions(store), Indexer(Queue(settings.queue, connection=redis))
    supervisor = Supervisor()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = MAX_THREADS
        broadcaster.start(supervisor)
        indexer.start(supervisor)
        async with predictions.lifespan():
            yield
        models.close()
        supervisor.close()
        indexer.close()
        await broadcaster.close()

    app = DocumentedApp(
        title="preflight", version=CONTRACT_VERSION, lifespan=lifespan, docs_url=None, redoc_url=None,
        redirect_slashes=False, openapi_url=None,  # served by `add_page`
        servers=[{"url": prefix}] if prefix else None,
        generate_unique_id_function=lambda route: route.name,
        description="Training jobs in, states and events out. Errors are one sentence each, as `Problem`.",
    )  # fmt: skip
    add_error_handlers(app, settings)
    JobRoutes(client).register(app)
    changed, check = indexer.table.read_again, JobCheck(client, redis, store, settings)
    ControlRoutes(client, store, check, prefix, read_only=read_only, changed=changed).register(app)
    SearchRoutes(client, redis, indexer).register(app)
    ChoiceRoutes(check, redis, settings.queue, indexer).register(app)
    EventRoutes(client, broadcaster).register(app)
    token = None if settings.api_token is None else settings.api_token.get_secret_value()
    FileRoutes(client, files, Tickets(token, prefix)).register(app)
    PredictRoutes(client, models, predictions).register(app)
    ModelRoutes(client, store, models, predictions, read_only=read_only).register(app)
    imports, shelf = Imports(redis, settings.queue, settings.state_ttl), Shelf(settings)
    uploader = Uploader(settings, shelf.bytes)
    DatasetRoutes(settings, imports, uploader, shelf, read_only=read_only).register(app)
    ImportRoutes(imports, uploader, lambda: broadcaster.is_closing, read_only=read_only).register(app)
    service = Service(client, redis, broadcaster, predictions, supervisor, settings.queue, read_only)
    ServiceRoutes(service).register(app)
    add_page(app, client, is_open=token is None)
    return app, broadcaster, predictions


def _prefix(settings: Settings) -> str:
    return settings.web_prefix.rstrip("/")
