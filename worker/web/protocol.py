"""HTTP/1.1 connections with time limits and a limit on their number, none of which uvicorn has by itself."""

import asyncio
import json
import resource
from dataclasses import dataclass
from typing import ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

MOST_CONNECTIONS: Final = 2048
"""Connections of the process; fewer where it may not open as many files."""
OTHER_FILES: Final = 128
"""Open files that are no connections of viewers: those to Redis, the log, the interpreter's own."""
JSON_ANSWER: Final = ((b"content-type", b"application/json"), (b"x-content-type-options", b"nosniff"),
                      (b"connection", b"close"))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process grants its connections."""

    connections: int
    """How many there may be."""
    receive_s: float = 20.0
    """Seconds within which a whole request must come, its body of at most 64 KiB too."""
    send_s: float = 60.0
    """Seconds after which a peer that takes nothing of what is sent is dropped."""


class BoundedProtocol(H11Protocol):
    """A connection that is closed when its request, or its taking of the answer, lasts too long.

    One connection too many takes the place of the one that has waited longest for a request; where all others have a
    request under way, it is refused.
    """

    limits: ClassVar[Limits]
    _waits_since: float | None = None
    """When it began to wait for a whole request, on the loop's clock; None while a request is answered."""
    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request, if there is room."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"{transport!r} cannot carry HTTP")
        super().connection_made(transport)
        most = self.limits.connections
        if len(self.connections) > most and not self._make_room():
            self._refuse(503, "too_many_connections", f"{most} connections are open already; ask again later")
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the timers."""
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give the peer some time to take what is sent."""
        super().pause_writing()
        if self._sending is None:
            self._sending = self.loop.call_later(self.limits.send_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that the peer has taken something."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, as this service words its refusals."""
        self._refuse(400, "malformed_request", f"{msg.rstrip('.')}; send HTTP/1.1")

    def _watch(self) -> None:
        """Run the timer while a request is awaited or has come in part."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) or self.transport.is_closing():
            self._stop_waiting()
        elif self._receiving is None:
            self._waits_since = self.loop.time()
            self._receiving = self.loop.call_later(self.limits.receive_s, self._expire)

    def _stop_waiting(self) -> None:
        self._waits_since = None
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _expire(self) -> None:
        """Close a connection whose request did not come in time; say so where a part of it did."""
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()
        else:
            self._refuse(408, "too_slow", f"the request took more than {self.limits.receive_s:g} s; send it faster")

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for its request; False where none waits."""
        since = {
            one: one._waits_since
            for one in self.connections
            if isinstance(one, BoundedProtocol) and one._waits_since is not None
        }
        if not since:
            return False
        longest = min(since, key=lambda one: since[one])
        longest._stop_waiting()
        longest.transport.abort()
        return True

    def _refuse(self, status: int, reason: str, message: str) -> None:
        """Send an error, unless an answer is under way, and close."""
        self._stop_waiting()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"reason": reason, "field": None, "message": message}).encode()
            headers = [*JSON_ANSWER, (b"content-length", str(len(body)).encode())]
            head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def bounded(limits: Limits) -> type[BoundedProtocol]:
    """Return the class of connections that keep to `limits`."""
    return type("Connection", (BoundedProtocol,), {"limits": limits})


def most_connections() -> int:
    """Return how many connections there may be, after raising the limit on open files as far as that needs and may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, max(1, soft - OTHER_FILES))
