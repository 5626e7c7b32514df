"""Who is let in, and how much they may send: the outermost layer of the web service."""

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from worker.wire import LARGEST_JOB

Message = MutableMapping[str, object]
Scope = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY: Final = LARGEST_JOB
"""Bytes of a request's body; that of a job in Redis."""
TOO_LARGE: Final = ("too_large", f"the body is larger than {LARGEST_BODY} bytes; shorten it")
PRIVATE: Final = ("/v1/", "/metrics")
"""Beginnings of the paths that need a token: the page holds no data, and platforms look at `/healthz` and `/readyz`."""
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing (RFC 9110, 9.2.1)."""
TOKEN_NAMES: Final = frozenset({"token", "access_token", "api_token", "api_key", "key"})
"""Names under which a token would come in an address, where logs and histories would keep it."""
HEADERS: Final[Sequence[tuple[bytes, bytes]]] = (
    (b"content-security-policy",
     b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
     b"manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)  # fmt: skip


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Passes on what may come in: with the right token where there is one, from this machine's pages where not."""

    def __init__(self, app: App, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused; pass on all others, and put the security headers on every answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", [])
                message["headers"] = [*headers, *HEADERS] if isinstance(headers, list) else [*HEADERS]
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refuse(guarded, *refused)
            return
        if scope["method"] != "POST":
            await self._app(scope, receive, guarded)
            return
        body = await read(receive)
        if body is None:
            return
        if len(body) > LARGEST_BODY:
            await refuse(guarded, 413, *TOO_LARGE)
            return

        async def replayed() -> Message:
            return whole.pop() if whole else await receive()

        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        await self._app(scope, replayed, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        """Return status, reason and sentence for a request that may not come in."""
        path, headers = str(scope["path"]), _headers(scope)
        query = scope.get("query_string", b"")
        names = {name.lower() for name, _ in parse_qsl(query.decode("latin-1"))} if isinstance(query, bytes) else set()
        if names & TOKEN_NAMES:
            return 400, "token_in_url", "a token has no place in an address; send it as `Authorization: Bearer TOKEN`"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:12]) > LARGEST_BODY:
            return 413, *TOO_LARGE
        if self._token is None:
            # A page from elsewhere that has its own name point to this machine must not reach it.
            host = headers.get(b"host", b"").decode("latin-1")
            if not is_loopback(_name(host)):
                return 421, "wrong_host", f"this service answers to localhost, not to {ascii(host)[:80]}"
            return _cross_site(str(scope["method"]), host, headers)
        if not path.startswith(PRIVATE):
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token):
            return None
        said = "the token is wrong" if given else "a token is missing"
        return 401, "unauthorized", f"{said}; send `Authorization: Bearer` with the value of PREFLIGHT_API_TOKEN"


def _cross_site(method: str, host: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
    """Return the refusal of a request by which a page from elsewhere would change something here.

    Where a token is needed such a page has none, and a proxy may have changed the host.
    """
    if method in SAFE:
        return None
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site in (None, b"same-origin", b"none") and origin in (None, f"http://{host}".encode("latin-1")):
        return None
    shown = ascii((origin or site or b"").decode("latin-1"))[:80]
    return 403, "cross_site", f"a page of {shown} may change nothing here; use the page at http://{ascii(host)[1:-1]}"


async def read(receive: Receive) -> bytes | None:
    """Return the whole body, as much of it as shows that it is too large, or None where the other side left."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        piece = message.get("body", b"")
        body += piece if isinstance(piece, bytes) else b""
        if len(body) > LARGEST_BODY or not message.get("more_body"):
            return bytes(body)


async def refuse(send: Send, status: int, reason: str, message: str) -> None:
    """Send an error as this service words them all."""
    body = json.dumps({"reason": reason, "field": None, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 413:  # the rest of the body is not waited for
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _name(host: str) -> str:
    """Return what `host` names, without its port; empty for what is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _headers(scope: Scope) -> dict[bytes, bytes]:
    headers = scope.get("headers", ())
    return dict(headers) if isinstance(headers, list | tuple) else {}
