"""Responses with a file: whole or a byte range (RFC 9110, 14), streamed in blocks."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from anyio import CapacityLimiter, to_thread
from starlette.responses import Response, StreamingResponse

from training.artifacts.model_dir import REPORT
from worker.web.files.artifact_files import FILES, OpenFile

BLOCK_SIZE: Final = 1 << 18
"""Bytes of a response in memory at once."""
SANDBOX: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Policy of a report: no scripts, no requests, and an origin that nothing else shares."""
RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


class RangeNotSatisfiable(Exception):
    """A range that begins behind the end of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Headers of a request for a file."""

    range: str | None = None
    if_range: str | None = None
    if_none_match: str | None = None


def file_response(file: OpenFile, asked: Conditions, limiter: CapacityLimiter) -> Response:
    """Return the response, which reads and closes the file in threads of `limiter`.

    Raises:
        RangeNotSatisfiable: the range begins behind the end; the file is closed.
    """
    headers = _headers(file)
    if asked.if_none_match in ("*", file.version, f"W/{file.version}"):
        file.content.close()
        return Response(status_code=304, headers=headers)
    try:
        part = None if asked.if_range not in (None, file.version) else byte_range(asked.range, file.size)
    except RangeNotSatisfiable:
        file.content.close()
        raise
    first, size = (0, file.size) if part is None else (part.start, len(part))
    if part is not None:
        headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{file.size}"
    headers["content-length"] = str(size)
    return StreamingResponse(
        _blocks(file.content, first, size, limiter), 200 if part is None else 206, headers, FILES[file.name]
    )


def byte_range(header: str | None, size: int) -> range | None:
    """Return the bytes that a `range` header asks for; None: all, also for several ranges and malformed ones.

    Raises:
        RangeNotSatisfiable: it begins behind the end.
    """
    found = RANGE.fullmatch(header or "")
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found.groups()
    if not first:  # the last so many bytes
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        raise RangeNotSatisfiable
    return range(start, stop)


def _headers(file: OpenFile) -> dict[str, str]:
    shown = file.name == REPORT
    headers = {
        "etag": file.version, "accept-ranges": "bytes", "cache-control": "private, no-cache",
        "content-disposition": f'{"inline" if shown else "attachment"}; filename="{file.name}"',
    }  # fmt: skip
    return {**headers, "content-security-policy": SANDBOX} if shown else headers


async def _blocks(content: BinaryIO, first: int, size: int, limiter: CapacityLimiter) -> AsyncIterator[bytes]:
    """Yield `size` bytes from `first` on; fewer where the file shrinks meanwhile, which breaks the response off."""
    try:
        await to_thread.run_sync(content.seek, first, limiter=limiter)
        while size > 0:
            block = await to_thread.run_sync(content.read, min(size, BLOCK_SIZE), limiter=limiter)
            if not block:
                return
            size -= len(block)
            yield block
    finally:
        content.close()
