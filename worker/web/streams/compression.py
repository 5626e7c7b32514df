"""Compression: JSON and event streams in gzip, for clients that take it."""

import re
import zlib
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

WINDOW_BITS: Final = {"application/json": 15, "text/event-stream": 12}
"""zlib's window bits by media type. A stream holds memory until it ends: 32 KiB with 12, 256 KiB with 15 (zconf.h)."""
GZIP: Final = 16
"""Added to the window bits: gzip's header in place of zlib's (zlib.h, deflateInit2)."""
MIN_BYTES: Final = 1000
"""Smallest answer that is compressed: a shorter one fits into one packet as it is."""
LEVEL: Final = 4
REFUSED: Final = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*", re.IGNORECASE)
"""Weight of a coding that the client does not accept (RFC 9110, 12.4.2)."""


def accepts_gzip(header: str) -> bool:
    """Whether an `accept-encoding` header names gzip, with a weight above 0."""
    codings = (coding.partition(";") for coding in header.split(","))
    return any(name.strip().lower() == "gzip" and not REFUSED.fullmatch(weight) for name, _, weight in codings)


class Compression:
    """ASGI middleware; answers with an entity tag stay as they are, since it would name other bytes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request; compress the response where that is of use."""
        if scope["type"] == "http" and accepts_gzip(Headers(scope=scope).get("accept-encoding", "")):
            await self._app(scope, receive, _Response(send).send)
        else:
            await self._app(scope, receive, send)


class _Response:
    """One response; every piece of it is sent at once, so that no event waits for the next."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._deflate: zlib._Compress | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._deflate = _compressor(MutableHeaders(raw=message["headers"]))
        elif self._deflate is not None and message["type"] == "http.response.body":
            mode = zlib.Z_SYNC_FLUSH if message.get("more_body") else zlib.Z_FINISH
            body = self._deflate.compress(message.get("body", b"")) + self._deflate.flush(mode)
            message = {**message, "body": body}
        await self._send(message)


def _compressor(headers: MutableHeaders) -> "zlib._Compress | None":
    """Return the compressor of the body, and note it in `headers`; None where the body stays as it is."""
    bits = WINDOW_BITS.get(headers.get("content-type", "").partition(";")[0])
    is_short = int(headers.get("content-length", MIN_BYTES)) < MIN_BYTES
    if bits is None or is_short or "etag" in headers or "content-encoding" in headers:
        return None
    headers["content-encoding"] = "gzip"
    headers.add_vary_header("accept-encoding")
    del headers["content-length"]
    return zlib.compressobj(LEVEL, wbits=bits + GZIP, memLevel=bits - 7)
