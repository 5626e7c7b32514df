"""Prefix: the path below which a reverse proxy serves all of this."""

from worker.web.auth import App, Receive, Scope, Send


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
