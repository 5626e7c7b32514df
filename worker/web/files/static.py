"""Static files of the page: read once, compressed, with an entity tag."""

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fastapi import Request
from fastapi.responses import Response

from worker.web.auth import page_policy
from worker.web.files.bundle import INDEX, SCRIPT, bundle, inline_styles
from worker.web.streams.compression import accepts_gzip

PAGE: Final = Path(__file__).parents[1] / "page"
FOR_EVER: Final = "public, max-age=31536000, immutable"
"""Cache header of a file whose name has the hash of its content."""


class StaticFile:
    """A file that does not change while the service runs."""

    def __init__(self, name: str, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._content = content
        self._compressed = gzip.compress(content, mtime=0)
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "text/plain"
        self._headers = {
            "content-type": kind if kind == "image/svg+xml" else f"{kind}; charset=utf-8",
            "etag": f'W/"{hashlib.sha256(self._content).hexdigest()[:16]}"',
            "cache-control": "no-cache",  # revalidated with each request: an update is seen at once
            "vary": "accept-encoding",
            **(headers or {}),
        }

    def response(self, request: Request) -> Response:
        """Return the file, compressed where the client accepts it; 304 where it has this version."""
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(self._compressed, headers={**self._headers, "content-encoding": "gzip"})
        return Response(self._content, headers=self._headers)


def page_files() -> dict[str, StaticFile]:
    """Return the files of the page by their path: index.html with its styles, the scripts, and the sources."""
    contents = {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in PAGE.rglob("*") if path.is_file()}
    sources = {name: content.decode() for name, content in contents.items()}
    index = inline_styles(sources[INDEX], sources)
    return {
        **{name: StaticFile(name, content) for name, content in contents.items()},
        **{
            name: StaticFile(name, script.encode(), {} if name == SCRIPT else {"cache-control": FOR_EVER})
            for name, script in bundle(sources).items()
        },
        INDEX: StaticFile(INDEX, index.html.encode(), {"content-security-policy": page_policy(index.style_hash)}),
    }
