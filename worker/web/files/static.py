"""Static files of the page: read once, compressed, with an entity tag."""

import gzip
import hashlib
import mimetypes
from pathlib import Path
from typing import Final

from fastapi import Request
from fastapi.responses import Response

PAGE: Final = Path(__file__).parents[1] / "page"


class StaticFile:
    """A file that does not change while the service runs."""

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        self._compressed = gzip.compress(self._content, mtime=0)
        kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0] or "text/plain"
        self._headers = {
            "content-type": kind if kind == "image/svg+xml" else f"{kind}; charset=utf-8",
            "etag": f'W/"{hashlib.sha256(self._content).hexdigest()[:16]}"',
            "cache-control": "no-cache",  # revalidated with each request: an update is seen at once
            "vary": "accept-encoding",
        }

    def response(self, request: Request) -> Response:
        """Return the file, compressed where the client accepts it; 304 where it has this version."""
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._compressed, headers={**self._headers, "content-encoding": "gzip"})
        return Response(self._content, headers=self._headers)


def page_files() -> dict[str, StaticFile]:
    """Return the files of the page by their path in its folder."""
    return {path.relative_to(PAGE).as_posix(): StaticFile(path) for path in PAGE.rglob("*") if path.is_file()}
