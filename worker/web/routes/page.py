"""The page and the description of the interface: files without a token, the same bytes for every client."""

import json
from functools import cache
from html import escape
from typing import Final
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool

from preflight import Client
from preflight.wire import is_job_id
from worker.web.files.bundle import INDEX
from worker.web.files.static import StaticFile, page_files
from worker.web.routes.errors import ApiError

PREVIEW: Final = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <title>{title}</title>
  <meta property="og:site_name" content="preflight">
  <meta property="og:title" content="{title}">
  <meta property="og:description" content="{description}">
  <meta name="description" content="{description}">
  <meta http-equiv="refresh" content="0; url=../#/jobs/{address}">
  <link rel="icon" href="../page/icon.svg" type="image/svg+xml">
</head>
<body><p><a href="../#/jobs/{address}">{title}</a></p></body>
</html>
"""
"""Page that leads to the job; a program that previews an address reads the head alone."""


def add_page(app: FastAPI, client: Client, *, is_open: bool) -> None:
    """Serve the page at `/`, its files under `/page/`, addresses of jobs to share, and openapi.json.

    `is_open`: no token is needed, so that the preview of a job's address may say how the job is.
    """
    files = page_files()
    start = files.pop(INDEX)

    @cache
    def description() -> StaticFile:
        return StaticFile("openapi.json", json.dumps(app.openapi()).encode())

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        return description().response(request)

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return start.response(request)

    @app.get("/jobs/{job_id}", include_in_schema=False)
    async def preview(job_id: str) -> Response:
        told = await run_in_threadpool(_describe, client, job_id) if is_open else None
        title, description = told or (f"Job {job_id[:64]}", "A training job of preflight")
        words = {"title": title, "description": description, "address": quote(job_id, safe="")}
        return HTMLResponse(PREVIEW.format(**{name: escape(text) for name, text in words.items()}))

    @app.get("/page/{name:path}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise ApiError(404, "unknown_file", f"the page has no file {ascii(name)[:80]}")
        return files[name].response(request)


def _describe(client: Client, job_id: str) -> tuple[str, str] | None:
    """Return title and description of a job; None where it is not known."""
    state = client.status(job_id) if is_job_id(job_id) else None
    if state is None or state.status == "unknown":
        return None
    accuracy = state.val_acc if state.test_accuracy is None else state.test_accuracy
    network = f"{state.model} on {state.dataset}" if state.model and state.dataset else "a training job"
    reached = "" if accuracy is None else f", {accuracy:.2%} {'validation' if state.test_accuracy is None else 'test'}"
    return f"{state.job_id}: {state.status}{reached and f'{reached} accuracy'}", f"{network}, {state.status}"
