"""HEAD: every route answers it as GET, without the body."""

from collections.abc import Mapping
from typing import Final

from worker.web.auth import App, Message, Receive, Scope, Send

RANGES: Final = (b"range", b"if-range")
"""Headers that count for GET alone (RFC 9110, 14.2)."""


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
