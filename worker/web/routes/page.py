"""The page and the description of the interface: files without a token, the same bytes for every client."""

import json
from functools import cache

from fastapi import FastAPI, Request
from fastapi.responses import Response

from worker.web.files.bundle import INDEX
from worker.web.files.static import StaticFile, page_files
from worker.web.routes.errors import ApiError


def add_page(app: FastAPI) -> None:
    """Serve the page at `/`, its files under `/page/`, and the description of the interface."""
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

    @app.get("/page/{name:path}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise ApiError(404, "unknown_file", f"the page has no file {ascii(name)[:80]}")
        return files[name].response(request)
