"""The page: its files, without a token."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from worker.web.files.static import page_files
from worker.web.routes.errors import ApiError


def add_page(app: FastAPI) -> None:
    """Serve the page at `/` and its files under `/page/`."""
    files = page_files()

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return files["index.html"].response(request)

    @app.get("/page/{name:path}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise ApiError(404, "unknown_file", f"the page has no file {ascii(name)[:80]}")
        return files[name].response(request)
