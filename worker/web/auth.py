"""Access control: token, host, origin and body size, checked before the application sees a request."""

import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from preflight.wire import MAX_JOB_BYTES
from worker.web.files.tickets import PARAMETER, Tickets
from worker.web.routes.errors import ApiError

Message = MutableMapping[str, object]
Scope = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES: Final = MAX_JOB_BYTES
MAX_PICTURE_BYTES: Final = 4 << 20
MAX_PREDICT_BYTES: Final = 8 << 20
"""Most bytes of a request to the model of an alias: one picture or several."""
PROTECTED_PATHS: Final = ("/v1/", "/metrics")
"""Prefixes of the paths that need a token: the page holds no data, and platforms poll `/healthz` and `/readyz`."""
UPLOAD: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)*/v1/datasets/[^/]{1,200}")
"""Path of an upload; a proxy may have put something before it."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing (RFC 9110, 9.2.1)."""
TOKEN_HEADER: Final = b"x-preflight-token"
"""Header for the token where `authorization` belongs to a proxy in front, for Basic credentials or its login."""
TOKEN_PARAMETERS: Final = frozenset({"token", "access_token", "api_token", "api_key", "key"})
"""Query parameters that are refused: logs and histories would keep the token."""
WAYS: Final = "`Authorization: Bearer TOKEN` or `X-Preflight-Token: TOKEN`"


def page_policy(styles: str) -> str:
    """Return the content security policy of the page, with the source of its `styles`."""
    return (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data:; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


SECURITY_HEADERS: Final[Sequence[tuple[bytes, bytes]]] = (
    (b"content-security-policy", page_policy("'self'").encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)  # fmt: skip


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AuthMiddleware:
    """ASGI middleware: requires the token where there is one, else a request from this machine to this machine."""

    def __init__(self, app: App, token: str | None, most_upload: int = 0) -> None:
        """`most_upload` are the bytes of the largest upload."""
        self._app = app
        self._most_upload = most_upload
        self._token = None if token is None else token.encode()
        self._tickets = Tickets(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request or forward it; every response carries the security headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _secured(message.get("headers", []))
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refuse(with_headers, *refused)
            return
        most = self._most_bytes(str(scope["path"])) if scope["method"] == "POST" else 0
        if most > MAX_BODY_BYTES:  # its route gives out slots before it reads
            await self._app(scope, _limited(receive, most), with_headers)
            return
        if most == 0:
            await self._app(scope, receive, with_headers)
            return
        body = await read_body(receive, most)
        if body is None:
            return
        if len(body) > most:
            await refuse(with_headers, 413, *_too_large(most))
            return

        async def replayed() -> Message:
            return whole.pop() if whole else await receive()

        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        await self._app(scope, replayed, with_headers)

    def _most_bytes(self, path: str) -> int:
        return self._most_upload if is_upload(path) else max_body_bytes(path)

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        """Return status, reason and message for a refused request."""
        path, headers = str(scope["path"]), _headers(scope)
        query = scope.get("query_string", b"")
        parameters = parse_qsl(query.decode("latin-1")) if query and isinstance(query, bytes) else []
        if {name.lower() for name, _ in parameters} & TOKEN_PARAMETERS:
            return 400, "token_in_url", f"a token has no place in an address; send it as {WAYS}"
        length = headers.get(b"content-length", b"0")
        most = max(MAX_BODY_BYTES, self._most_bytes(path))
        if not length.isdigit() or int(length[:12]) > most:
            return 413, *_too_large(most)
        encoding = headers.get(b"content-encoding", b"identity")
        if encoding.lower() != b"identity":
            shown = ascii(encoding.decode("latin-1"))[:80]
            return 415, "wrong_content_type", f"content-encoding is {shown}; leave it out, and send the body as it is"
        if self._token is None:
            # Against DNS rebinding: the name of another site may resolve to this machine.
            host = headers.get(b"host", b"").decode("latin-1")
            if not _is_local(host):
                shown = ascii(host)[:80]
                message = f"this service answers to localhost, not to {shown}; set PREFLIGHT_API_TOKEN for other names"
                return 421, "wrong_host", message
            is_harmless = scope["method"] in SAFE_METHODS and not path.startswith(PROTECTED_PATHS)
            return None if is_harmless else _cross_site(host, headers)
        if not path.startswith(PROTECTED_PATHS):
            return None
        given = _token(headers)
        if given is not None and hmac.compare_digest(given, self._token):
            return None
        ticket = dict(parameters).get(PARAMETER, "")
        if scope["method"] == "GET" and self._tickets.accepts(path, ticket):
            return None
        problem = "the token is wrong" if given else "the ticket is over" if ticket else "a token is missing"
        # After 401 a browser forgets the password with which it came through a proxy, so the page gets 403.
        status = 403 if TOKEN_HEADER in headers else 401
        return status, "unauthorized", f"{problem}; send {WAYS}, with the value of PREFLIGHT_API_TOKEN"


def _token(headers: dict[bytes, bytes]) -> bytes | None:
    """Return the token of a request; None where its `authorization` is of another scheme, which is for a proxy."""
    if TOKEN_HEADER in headers:
        return headers[TOKEN_HEADER].strip()
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    return given.strip() if scheme.lower() == b"bearer" else None


def _cross_site(host: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
    """Return the refusal of a cross-site request, which could change something or keep the service busy.

    With a token this check is not needed. `sec-fetch-site` says whether a page has the same origin as the address that
    it requests. Browsers send it to https and localhost alone, and no page can set it: it also counts behind a
    forwarded port or a proxy that has changed the host. Without it `origin` has to name the host. `x-forwarded-*` does
    not count, since everybody can send it. A user who opens an address, and a program, send neither header, or `none`.
    """
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site == b"same-origin" or (site in (None, b"none") and origin in (None, f"http://{host}".encode("latin-1"))):
        return None
    shown = ascii((origin or site or b"").decode("latin-1"))[:80]
    here = f"use the page at http://{ascii(host)[1:-1]}, or set PREFLIGHT_API_TOKEN where a proxy is in front"
    return 403, "cross_site", f"a page of {shown} may read and change nothing here; {here}"


def max_body_bytes(path: str) -> int:
    """Return the most bytes that a request posts to `path`: a job's, or a picture's; 0 where no body is read."""
    if not path.startswith("/v1/"):
        return 0
    if path.endswith("/predict") and path.startswith("/v1/models/"):
        return MAX_PREDICT_BYTES
    return MAX_PICTURE_BYTES if path.startswith("/v1/jobs/") and path.endswith("/predict") else MAX_BODY_BYTES


def is_upload(path: str) -> bool:
    """Return whether a request to `path` posts a data set, which may be large."""
    return "/v1/datasets/" in path and UPLOAD.fullmatch(path) is not None


def _limited(receive: Receive, most: int) -> Receive:
    """Return `receive` for a body of at most `most` bytes; it raises `ApiError` beyond them."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        body = message.get("body", b"")
        received += len(body) if isinstance(body, bytes) else 0
        if received > most:
            raise ApiError(413, *_too_large(most))
        return message

    return limited


def _too_large(most: int) -> tuple[str, str]:
    return "too_large", f"the body is larger than {most} bytes; shorten it"


async def read_body(receive: Receive, most: int, note: Callable[[int], None] = lambda _: None) -> bytes | None:
    """Return the body, cut off once it has more than `most` bytes; None where the client disconnected.

    `note` gets the size of each part as it comes.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunk = message.get("body", b"")
        if isinstance(chunk, bytes):
            note(len(chunk))
            body += chunk
        if len(body) > most or not message.get("more_body"):
            return bytes(body)


async def refuse(
    send: Send, status: int, reason: str, message: str, *, field: str | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:  # fmt: skip
    """Send an error as a `Problem`."""
    body = json.dumps({"reason": reason, "field": field, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    if status == 413:  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@lru_cache(maxsize=64)
def _is_local(host: str) -> bool:
    """Whether a `host` header, which may have a port, names this machine alone."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _secured(headers: object) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response with the security headers that it does not set itself."""
    own = headers if isinstance(headers, list) else []
    names = {name for name, _ in own}
    return [*own, *(header for header in SECURITY_HEADERS if header[0] not in names)]


def _headers(scope: Scope) -> dict[bytes, bytes]:
    headers = scope.get("headers", ())
    return dict(headers) if isinstance(headers, list | tuple) else {}
