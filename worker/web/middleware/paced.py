"""Paced sending: large answers go out in pieces, and those that nobody reads give way to others."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

PIECE_BYTES: Final = 64 * 1024
"""Bytes of an answer that are written at once: asyncio keeps what the client does not read, uvicorn waits behind it."""
MAX_PENDING_BYTES: Final = 16 << 20
"""Most bytes of all large answers that are being sent."""
PATIENCE_SECONDS: Final = 2.0
"""Seconds for which an answer may be under way before it gives way."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A large answer that is being sent."""

    size: int
    since: float
    task: "asyncio.Task[None]"
    is_dropped: bool = False


class PacedSending:
    """ASGI middleware. An answer that is dropped is broken off, which its client sees."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._pending: list[_Pending] = []
        """Large answers that are being sent, the oldest first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request; send its response in pieces."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_dropped = False

        async def send_paced(message: Message) -> None:
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

    async def _send_large(self, message: Message, send: Send) -> bool:
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


async def _send_pieces(message: Message, send: Send) -> None:
    body = memoryview(message["body"])
    for first in range(0, len(body), PIECE_BYTES):
        rest = len(body) - first > PIECE_BYTES
        piece = bytes(body[first : first + PIECE_BYTES])
        await send({**message, "body": piece, "more_body": rest or message.get("more_body", False)})
