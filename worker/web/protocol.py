"""HTTP/1.1 connections with timeouts, a limit on their number and memory budgets, which uvicorn lacks.

The budgets count received bytes of requests, and bytes that wait to be sent, of all connections together: a limit for
each does not bound two thousand of them. Where one is spent, the connections that hold it for longest are dropped:
requests that do not end, and clients that do not read.
"""

import asyncio
import json
import resource
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from worker.web.auth import is_upload

MAX_CONNECTIONS: Final = 2048
"""Most connections; fewer where the limit on open files is lower."""
RESERVED_FILES: Final = 128
"""Open files in addition to these connections: Redis, log, interpreter."""
BODY_PATHS: Final = "/v1/"
"""Part of the paths to which bodies are posted; a proxy may have put something before it."""
MAX_HEAD_BYTES: Final = 32 << 10
"""Most bytes of a request's line and headers, as nginx's default; cookies of load balancers have 16 KiB."""
MAX_AHEAD: Final = 32
"""Most requests that a client sends ahead of their answers."""
PROBLEM_HEADERS: Final = b"content-type: application/json\r\nx-content-type-options: nosniff\r\nconnection: close\r\n"
Coming = Literal["nothing", "head", "body", "whole"]
"""What has come of a request."""
MAX_RECEIVED: Final = 24 << 20
"""Bytes of requests that are not answered; pictures have up to 16 MiB of it."""
MAX_UNSENT: Final = 16 << 20
"""Bytes of answers that clients have not read."""


class Held(Protocol):
    """A connection and what it holds."""

    @property
    def received(self) -> int:
        """Bytes received of a request that is not answered, and of those behind it."""

    @property
    def waits_since(self) -> float | None:
        """Time since which a whole request is awaited; None where none is awaited."""

    @property
    def unread_since(self) -> float | None:
        """Time since which the client does not read; None while it reads."""

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not read."""

    def drop(self) -> None:
        """Close the connection at once."""


@dataclass(slots=True)
class Budget:
    """The budget of one process. Each packet updates a count; the connections are not summed up."""

    received: int = 0
    """Bytes of requests that are not answered."""
    unread: set[Held] = field(default_factory=set)
    """Connections whose clients do not read."""

    def receive(self, more: int) -> bool:
        """Note that a connection holds `more` bytes in addition; return whether all together are too many."""
        self.received += more
        return more > 0 and self.received > MAX_RECEIVED

    def drop_received(self, connections: Iterable[Held]) -> None:
        """Drop connections until the rest fits: requests that do not end, the oldest first, then the largest."""
        holding = [one for one in connections if one.received]
        for one in sorted(holding, key=lambda one: (one.waits_since is None, one.waits_since or -one.received)):
            if self.received <= MAX_RECEIVED:
                return
            one.drop()

    def drop_unread(self) -> None:
        """Drop connections whose clients do not read, the longest first, until the rest fits."""
        unread = sorted(self.unread, key=_since)
        total = sum(one.unsent for one in unread)
        for one in unread:
            if total <= MAX_UNSENT:
                return
            total -= one.unsent
            one.drop()


def drop_one_for_another(connections: Iterable[Held], *, now: float, patience: float) -> bool:
    """Drop the connection that is missed least, to make room for a new one; False where each is being answered.

    First one that has not been read for `patience` seconds, then an idle one, then any that is not read.
    """
    found = [*connections]
    unread = [one for one in found if one.unread_since is not None]
    idle = [one for one in found if one.waits_since is not None]
    choices: list[tuple[list[Held], Callable[[Held], float]]] = [
        ([one for one in unread if now - _since(one) > patience], _since),
        (idle, lambda one: one.waits_since or 0.0), (unread, _since),
    ]  # fmt: skip
    for some, key in choices:
        if some:
            min(some, key=key).drop()
            return True
    return False


def _since(one: Held) -> float:
    return one.unread_since or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one process."""

    connections: int
    receive_s: float = 20.0
    """Timeout for a whole request with its body."""
    idle_s: float = 75.0
    """Timeout for the next request on a connection. Load balancers reuse one for 60 s: had it been closed first, a
    request that is on its way would get no answer, which they report as 502."""
    send_s: float = 60.0
    """Timeout for a client that does not read its response."""
    patience_s: float = 2.0
    """Time after which such a client gives way to a new connection, before idle ones do."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection with timeouts for its request and its response.

    A new connection beyond the limit replaces one whose client does not read, or the longest idle one; it is refused
    where each is being answered. What all connections hold together has a budget.
    """

    limits: ClassVar[Limits]
    budget: ClassVar[Budget]
    received: int = 0
    """Bytes of a request that is not answered yet, and of those behind it."""
    unread_since: float | None = None
    """Loop time since which the client does not read; None while it does."""
    _coming: Coming = "nothing"
    """What has come of the last request."""
    _head_bytes: int = 0
    """Bytes of its head so far."""
    _unanswered: int = 0
    """Requests whose head has come and whose answer is not complete."""
    _is_broken: bool = False
    """Whether invalid HTTP came behind a request; nothing more is read."""
    _idle_since: float | None = None
    """Loop time since which a whole request is awaited; None while a request is answered."""
    _is_kept_alive: bool = False
    """Whether nothing of the next request has come yet."""
    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Await a request, if the limit allows the connection."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"{transport!r} cannot carry HTTP")
        super().connection_made(transport)
        _send_at_once(transport)
        limit = self.limits.connections
        if len(self.connections) > limit and not self._replace_another():
            self._refuse(503, "too_many_connections", f"{limit} connections are open already; ask again later")
            return
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        if self._is_broken:
            return
        uploads = self._coming == "body" and self.scope["method"] == "POST" and is_upload(self.scope["path"])
        if self._is_kept_alive or uploads:  # the next request begins, and so does its timeout, or an upload continues
            self._cancel_timer()
        # Of an upload little is held: uvicorn stops reading until its route has written what came.
        self._hold(len(self.cycle.body) + len(data) if uploads else self.received + len(data))
        if self.transport.is_closing():  # this connection held too much and was dropped
            return
        if self._coming in ("nothing", "head"):
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._coming == "head" and self._head_bytes > MAX_HEAD_BYTES:
            self._end_malformed(f"the request's head is longer than {MAX_HEAD_BYTES} bytes; shorten it")
            return
        has_request = self._coming in ("body", "whole")
        if has_request and (self.scope["method"] != "POST" or BODY_PATHS not in self.scope["path"]):
            self.cycle.body.clear()  # nobody reads it
        if self._coming == "nothing":  # a body that ended after its answer
            self._hold(0)
        self._update_timer()

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        self._coming = "head"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin to answer, unless too many requests came ahead of their answers."""
        if self._unanswered >= MAX_AHEAD:
            self.transport.abort()
            return
        super().on_headers_complete()  # which raises where the address is invalid
        self._coming, self._head_bytes = "body", 0
        self._unanswered += 1

    def on_message_complete(self) -> None:
        """Note that the request is whole; it may be answered already."""
        self._coming = "nothing" if self.cycle.response_complete else "whole"
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Await the next request."""
        self._unanswered -= 1
        if not self._unanswered:
            self.cycle.body.clear()  # what came before the answer is kept with the connection otherwise
            self._coming = "nothing" if self._coming == "whole" else self._coming
        if self._coming == "nothing":
            self._hold(0)
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's timer, which this one replaces
        self._is_kept_alive = self._is_idle()
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._cancel_timer()
        self._hold(0)
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read."""
        super().pause_writing()
        if self._sending is None:
            self.unread_since = self.loop.time()
            self._sending = self.loop.call_later(self.limits.send_s, self.transport.abort)
            self.budget.unread.add(self)
            self.budget.drop_unread()

    def resume_writing(self) -> None:
        """Stop the timeout: the client has read."""
        self.unread_since = None
        self.budget.unread.discard(self)
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP."""
        self._end_malformed(f"{msg.rstrip('.')}; send HTTP/1.1")

    def _end_malformed(self, message: str) -> None:
        """Refuse what came with a `Problem`; behind requests that are being answered, close after their answers."""
        if self._awaits_request():
            self._refuse(400, "malformed_request", message)
        else:
            self._is_broken = True
            self.cycle.keep_alive = False

    def _update_timer(self) -> None:
        """Run the timer while a request is awaited or incomplete."""
        if not self._awaits_request() or self.transport.is_closing():
            self._cancel_timer()
        elif self._receiving is None:
            self._idle_since = self.loop.time()
            seconds = self.limits.idle_s if self._is_kept_alive else self.limits.receive_s
            self._receiving = self.loop.call_later(seconds, self._expire)

    def _cancel_timer(self) -> None:
        self._idle_since = None
        self._is_kept_alive = False
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _expire(self) -> None:
        """Close an idle connection; answer an incomplete request with 408."""
        if self._is_idle():
            self.transport.close()
        else:
            self._refuse(408, "too_slow", f"the request took more than {self.limits.receive_s:g} s; send it faster")

    def _awaits_request(self) -> bool:
        """Whether a request has not come whole, and those before it are answered."""
        return self._coming != "whole" and self._unanswered <= (self._coming == "body")

    def _is_idle(self) -> bool:
        return self._coming == "nothing"

    @property
    def waits_since(self) -> float | None:
        """Loop time since which a whole request is awaited; None while a request is answered."""
        return self._idle_since

    @property
    def unsent(self) -> int:
        """Bytes that the client has not read."""
        return self.transport.get_write_buffer_size()

    def drop(self) -> None:
        """Close at once, and discard what was received and what is to be sent."""
        self._cancel_timer()
        self._hold(0)
        self.unread_since = None
        self.budget.unread.discard(self)
        self.transport.abort()

    def _replace_another(self) -> bool:
        """Close the connection that is missed least; False where each is being answered."""
        others = [one for one in self._others() if one is not self]
        return drop_one_for_another(others, now=self.loop.time(), patience=self.limits.patience_s)

    def _hold(self, size: int) -> None:
        """Note how many bytes this connection holds."""
        change, self.received = size - self.received, size
        if self.budget.receive(change):
            self.budget.drop_received(self._others())

    def _others(self) -> "list[BoundedProtocol]":
        """Return all open connections."""
        return [one for one in self.connections if isinstance(one, BoundedProtocol)]

    def _refuse(self, status: int, reason: str, message: str) -> None:
        """Send an error, unless a response has begun, and close."""
        self._cancel_timer()
        has_body_to_come = self._coming == "body"
        if self._unanswered == has_body_to_come and not (has_body_to_come and self.cycle.response_started):
            body = json.dumps({"reason": reason, "field": None, "message": message}).encode()
            length = b"content-length: %d\r\n\r\n" % len(body)
            self.transport.write(b"".join((STATUS_LINE[status], PROBLEM_HEADERS, length, body)))
        self.transport.close()


def _send_at_once(transport: asyncio.Transport) -> None:
    """Turn off Nagle's algorithm, which holds back an answer's last packet until the client's delayed ACK (40 ms).

    asyncio does so only for sockets that were made with IPPROTO_TCP, and `socket.create_server` makes them with 0.
    """
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):  # the client is gone already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def protocol_with(limits: Limits) -> type[BoundedProtocol]:
    """Return the protocol class with these limits."""
    return type("Connection", (BoundedProtocol,), {"limits": limits, "budget": Budget()})


def max_connections() -> int:
    """Return the number of connections that the limit on open files allows, after raising it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, max(1, soft - RESERVED_FILES))
