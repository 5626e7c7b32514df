"""Connections to Redis whose replies are bounded, for redis-py: the parsers of `bounded_replies` at its `parser_class`.

redis-py's own parsers keep a value of any size. hiredis has no bound either.
"""

import asyncio
import select
import socket
import time
from asyncio import StreamReader
from typing import Final, Protocol

import structlog
from redis._parsers import BaseParser  # has the classes of Redis's errors; without it, their table would stand here
from redis.exceptions import ConnectionError

from preflight.redis.untrusted.bounded_replies import INCOMPLETE, Limits, ReplyReader

READ_SIZE: Final = 64 * 1024
LONG_PAUSE_SECONDS: Final = 1.0
"""Seconds between two replies, after which the second is to another command, where the pool did not say so."""
LOG_INTERVAL: Final = 60.0
"""Seconds between two lines about values that were dropped."""
CLOSED: Final = "Redis closed the connection"
PROTOCOL: Final = 2
"""RESP2: every version of Redis speaks it, and its replies are the same in each version of redis-py."""


class Decoder(Protocol):
    """Decodes values, where a connection is to do so."""

    decode_responses: bool

    def decode(self, value: object, force: bool = False) -> object:
        """Return a value as it is returned to the caller."""


class _Bounded(BaseParser):
    """Common part of both parsers."""

    _logged_at = -LOG_INTERVAL
    """Time of the last line about dropped values, of any connection of this process."""

    def __init__(self, socket_read_size: int) -> None:
        self._size = max(READ_SIZE, socket_read_size)
        self._encoder: Decoder | None = None
        self._replies = ReplyReader(Limits(), self.parse_error)
        self._replied_at = 0.0

    def _reset(self, encoder: Decoder | None) -> None:
        self._encoder = encoder
        self._replies = ReplyReader(Limits(), self.parse_error)

    def _begin(self) -> None:
        """Start a new budget where this is the reply to another command, though the pool did not ask before it."""
        if time.monotonic() - self._replied_at > LONG_PAUSE_SECONDS:
            self._replies.begin()

    def _finish(self, value: object, *, decode: bool) -> object:
        """Return a whole reply; log that values were dropped."""
        now = self._replied_at = time.monotonic()
        if self._replies.dropped and now - _Bounded._logged_at >= LOG_INTERVAL:
            _Bounded._logged_at = now
            structlog.get_logger("preflight").warning(
                "oversized_value_dropped", bytes=self._replies.dropped,
                message="Redis holds values that are too large to be read, and they were ignored; find their keys with "
                "`redis-cli --bigkeys` or `--memkeys`, and remove them",
            )  # fmt: skip
        encoder = self._encoder
        return value if not decode or encoder is None or not encoder.decode_responses else _decoded(value, encoder)


def _decoded(value: object, encoder: Decoder) -> object:
    return [_decoded(one, encoder) for one in value] if isinstance(value, list) else encoder.decode(value)


class Connected(Protocol):
    """The part of a connection that the parser needs."""

    _sock: socket.socket
    encoder: Decoder


class BoundedParser(_Bounded):
    """Parser of `redis.Redis`."""

    _socket: socket.socket | None = None

    def on_connect(self, connection: Connected) -> None:
        """Read from a new connection."""
        self._socket = connection._sock
        self._reset(connection.encoder)

    def on_disconnect(self) -> None:
        """Forget the connection."""
        self._socket = None
        self._reset(None)

    def can_read(self, timeout: float = 0) -> bool:
        """Whether bytes are there, or the end; the pool asks before each command and each pipeline."""
        self._replies.begin()
        if self._replies.has_data:
            return True
        if self._socket is None:
            return False
        asked = select.poll()  # select() refuses file numbers from 1024 on
        asked.register(self._socket, select.POLLIN)
        return bool(asked.poll(timeout * 1000))

    def read_response(self, disable_decoding: bool = False, timeout: object = None) -> object:
        """Return the next reply; raises as redis-py's own parsers, and `OversizedReply`."""
        self._begin()
        value = self._replies.read()
        if value is INCOMPLETE:
            value = self._receive(timeout)
        return self._finish(value, decode=not disable_decoding)

    def _receive(self, timeout: object) -> object:
        """Return the next reply, of which the rest has not arrived."""
        connected = self._socket
        before = None if connected is None else connected.gettimeout()
        if connected is not None and isinstance(timeout, int | float):
            connected.settimeout(timeout)
        try:
            while (value := self._replies.read()) is INCOMPLETE:
                data = b"" if connected is None else connected.recv(self._size)
                if not data:
                    raise ConnectionError(CLOSED)
                self._replies.feed(data)
        finally:
            if connected is not None and connected.fileno() >= 0:
                connected.settimeout(before)
        return value


class AsyncConnected(Protocol):
    """The part of a connection that the parser needs."""

    _reader: StreamReader | None
    encoder: Decoder


class AsyncBoundedParser(_Bounded):
    """Parser of `redis.asyncio.Redis`. Other tasks run between two pieces of a reply."""

    _stream: StreamReader | None = None

    def on_connect(self, connection: AsyncConnected) -> None:
        """Read from a new connection."""
        self._stream = connection._reader
        self._reset(connection.encoder)

    def on_disconnect(self) -> None:
        """Forget the connection."""
        self._stream = None
        self._reset(None)

    async def can_read(self) -> bool:
        """Whether bytes are there, or the end; the pool asks before each command and each pipeline."""
        self._replies.begin()
        if self._stream is None:
            raise OSError(CLOSED)
        if self._replies.has_data or self._stream.at_eof():
            return True
        try:
            async with asyncio.timeout(0):
                data = await self._stream.read(1)
        except TimeoutError:
            return False
        self._replies.feed(data)
        return True

    async def can_read_destructive(self) -> bool:
        """Do what `can_read` does; redis-py before 8 calls it by this name."""
        return await self.can_read()

    async def read_response(self, disable_decoding: bool = False) -> object:
        """Return the next reply; raises as redis-py's own parsers, and `OversizedReply`."""
        self._begin()
        while (value := self._replies.read()) is INCOMPLETE:
            data = b"" if self._stream is None else await self._stream.read(self._size)
            if not data:
                raise ConnectionError(CLOSED)
            self._replies.feed(data)
            await asyncio.sleep(0)
        return self._finish(value, decode=not disable_decoding)
