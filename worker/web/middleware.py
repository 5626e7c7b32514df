"""Middleware that does not depend on the routes: HEAD, the prefix of a proxy, and paced sending."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from starlette import types

from worker.web.auth import App, Message, Receive, Scope, Send

RANGES: Final = (b"range", b"if-range")
"""Headers that count for GET alone (RFC 9110, 14.2)."""
PIECE_BYTES: Final = 64 * 1024
"""Bytes of an answer that are written at once: asyncio keeps what the client does not read, uvicorn waits behind it."""
MAX_PENDING_BYTES: Final = 16 << 20
"""Most bytes of all large answers that are being sent."""
PATIENCE_SECONDS: Final = 2.0
"""Seconds for which an answer may be under way before it gives way."""


class PrefixMiddleware:
    """ASGI middleware; takes the prefix off, where the proxy has left it on."""

    def __init__(self, app: App, prefix: str) -> None:
        """Forward to `app`; `prefix` is as `/preflight`, or empty."""
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request; the prefix alone is redirected, since the page's addresses are relative."""
        path = str(scope.get("path", ""))
        if not self._prefix or scope["type"] != "http" or not f"{path}/".startswith(f"{self._prefix}/"):
            await self._app(scope, receive, send)
        elif path == self._prefix:
            headers = [(b"location", f"{self._prefix}/".encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 308, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app({**scope, "path": path[len(self._prefix) :]}, receive, send)


class HeadMiddleware:
    """ASGI middleware; the application sees a GET whose client leaves once it has the head of the answer."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        is_answered = False

        async def send_head(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True  # a stream of events ends here, as if its viewer had left
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        async def receive_until_answered() -> Message:
            return {"type": "http.disconnect"} if is_answered else await receive()

        await self._app(as_get(scope), receive_until_answered, send_head)


def as_get(scope: Mapping[str, object]) -> Scope:
    """Return the request as GET, without a range."""
    headers = scope.get("headers", ())
    kept = [pair for pair in headers if pair[0] not in RANGES] if isinstance(headers, list | tuple) else []
    return {**scope, "method": "GET", "headers": kept}


@dataclass(slots=True, eq=False)
class _Pending:
    """A large answer that is being sent."""

    size: int
    since: float
    task: "asyncio.Task[None]"
    is_dropped: bool = False


class PacedSending:
    """ASGI middleware. An answer that is dropped is broken off, which its client sees."""

    def __init__(self, app: types.ASGIApp) -> None:
        self._app = app
        self._pending: list[_Pending] = []
        """Large answers that are being sent, the oldest first."""

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Forward the request; send its response in pieces."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_dropped = False

        async def send_paced(message: types.Message) -> None:
            nonlocal is_dropped
            if is_dropped:
                return
            if len(message.get("body", b"")) <= PIECE_BYTES:
                await send(message)
            elif message.get("more_body"):  # a block of a stream, which ends with its client
                await _send_pieces(message, send)
            else:
                is_dropped = not await self._send_large(message, send)

        await self._app(scope, receive, send_paced)

    async def _send_large(self, message: types.Message, send: types.Send) -> bool:
        """Send a large body; return whether it was sent."""
        task = asyncio.create_task(_send_pieces(message, send))
        with self._listed(_Pending(len(message["body"]), time.monotonic(), task)) as pending:
            try:
                await task
            except asyncio.CancelledError:
                if not pending.is_dropped:  # the request itself was cancelled
                    task.cancel()
                    raise
        return not pending.is_dropped

    @contextmanager
    def _listed(self, pending: _Pending) -> Iterator[_Pending]:
        """List an answer; drop the oldest ones where all together are too large."""
        self._pending.append(pending)
        try:
            total = sum(one.size for one in self._pending if not one.is_dropped)
            for one in self._pending:
                if total <= MAX_PENDING_BYTES or pending.since - one.since < PATIENCE_SECONDS:
                    break
                if not one.is_dropped:
                    total -= one.size
                    one.is_dropped = True
                    one.task.cancel()
            yield pending
        finally:
            self._pending.remove(pending)


async def _send_pieces(message: types.Message, send: types.Send) -> None:
    body = memoryview(message["body"])
    for first in range(0, len(body), PIECE_BYTES):
        rest = len(body) - first > PIECE_BYTES
        piece = bytes(body[first : first + PIECE_BYTES])
        await send({**message, "body": piece, "more_body": rest or message.get("more_body", False)})
