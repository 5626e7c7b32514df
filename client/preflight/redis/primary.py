"""Connections that reach Redis's primary: after a failover behind one address those to the old primary are made again.

A failover may leave the old primary running as a replica, with every connection to it open. It refuses writes for ever,
answers reads with data that may be old (a watcher would end at a job that it does not know yet), and passes no message
on. So each connection asks its server's role when it is made and now and then while it is used, and an answer that only
a replica gives ends it, and with it all that its pool made before.
"""

import math
import re
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from redis import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis import asyncio as aio
from redis.asyncio.connection import AbstractConnection as AsyncAbstractConnection
from redis.connection import AbstractConnection, ConnectionInterface
from redis.exceptions import (
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

ROLE_INTERVAL: Final = 2.0
"""Seconds after which a connection asks its server's role again, before its next command."""
NOT_MADE: Final = -1
"""Generation of a connection whose start has not succeeded: it says nothing about the others."""
ROLE_QUERY: Final = ("INFO", "replication")
"""Every user of deploy/redis may ask it, unlike ROLE, and a server that loads its data answers it, too."""
REPLICA: Final = re.compile(rb"^role:(slave|replica)\b", re.MULTILINE)
HISTORY: Final = re.compile(rb"^master_replid:(\w+)", re.MULTILINE)
REFUSED_BY_REPLICA: Final = re.compile(r"(?:^|-|: )(?:READONLY|MASTERDOWN|UNBLOCKED) ")
"""Answers of a replica, those within the error of a script or of EXEC too. UNBLOCKED ends a command that waited while
its server became a replica."""
MAY_BE_OVER_ELSEWHERE: Final = re.compile(r"(?:^|-|: )(?:NOREPLICAS|MISCONF|TRYAGAIN|CLUSTERDOWN) ")
"""Answers of a primary that another one may have replaced: it was cut off from its replicas, or cannot save."""


class NotPrimary(ConnectionError):
    """Redis is a replica: it did not carry out the command, and the connection was closed."""


@dataclass(slots=True)
class Generation:
    """The connections of one pool between two losses of a server; those of earlier ones are made again before use."""

    number: int = 0
    history: bytes = b""
    """Replication id of the server's data; a replica that becomes the primary begins another one."""

    def end(self, number: int) -> None:
        """End generation `number`, unless that is done."""
        if number == self.number:
            self.number += 1

    def see(self, history: bytes, number: int) -> int:
        """Return the generation of a connection of `number` to a primary, whose `history` ends one of another history.

        So a subscription notices the failover by the other connections of its pool: it cannot ask itself.
        """
        if history in (b"", self.history) or number != self.number:
            return number
        if self.history:
            self.number += 1
            number = self.number
        self.history = history
        return number


def is_refusal_of_replica(error: ResponseError) -> bool:
    """Whether only a replica answers so."""
    return isinstance(error, ReadOnlyError | MasterDownError) or REFUSED_BY_REPLICA.search(str(error)) is not None


def may_be_over_elsewhere(error: ResponseError) -> bool:
    """Whether another connection to the same address may reach a server that would not answer so."""
    return isinstance(error, TryAgainError | ClusterDownError) or MAY_BE_OVER_ELSEWHERE.search(str(error)) is not None


def _refusal_in(answer: object) -> ResponseError | None:
    """Return the error that only a replica gives, of a script within a transaction, from the answer to EXEC."""
    if not isinstance(answer, list):
        return None
    return next((part for part in answer if isinstance(part, ResponseError) and is_refusal_of_replica(part)), None)


class _PrimaryConnection(AbstractConnection):
    """Common part of the three kinds of connections."""

    generation: Generation
    """Generation of the connections of its pool."""
    _made_in = NOT_MADE
    """Number of the generation in which it was connected."""
    _ask_at = math.inf
    """When to ask the role again; never while that is being done, or where this user may not."""
    _proves_role = False
    """Whether the command that was sent is one that a replica refuses."""

    def connect(self) -> None:
        """Connect, unless that is done; again where the server of this connection was lost meanwhile."""
        if self._made_in != self.generation.number:
            self.disconnect()
        # Not by `super().connect()`: before redis-py 8 it does not repeat the greeting.
        self.retry.call_with_retry(self.connect_check_health, lambda _: self.disconnect())

    def greet(self) -> None:
        """Initialize a new connection and ask the role; raises `NotPrimary`."""
        begun_in, self._made_in, self._ask_at = self.generation.number, NOT_MADE, math.inf
        self.on_connect()
        self._made_in = self.generation.see(self._ask_role(), begun_in)

    def check_health(self) -> None:
        """Ask the role where that is due; raises `NotPrimary`."""
        super().check_health()
        if time.monotonic() >= self._ask_at:
            self._made_in = self.generation.see(self._ask_role(), self._made_in)

    def can_read(self, timeout: float = 0) -> bool:
        """Whether there is something to read; a subscription to a server that was lost is made again first."""
        if self._made_in != self.generation.number:
            self.disconnect()
        try:
            return super().can_read(timeout)
        except ConnectionError:
            self.generation.end(self._made_in)
            raise

    def send_command(self, *args: str | bytes | float, **kwargs: bool) -> None:
        """Send a command; an idle worker proves the role by the one with which it waits."""
        super().send_command(*args, **kwargs)
        self._proves_role = args[0] == "BLMOVE"

    def read_response(self, disable_decoding: bool = False, **options: object) -> object:
        """Return the answer to a command; raises `NotPrimary` where a replica refused it."""
        proves_role, self._proves_role = self._proves_role, False
        try:
            answer: object = super().read_response(disable_decoding, **options)
        except ResponseError as error:
            if is_refusal_of_replica(error):
                raise self._lose(str(error)) from error
            if may_be_over_elsewhere(error):
                self.generation.end(self._made_in)
            raise
        except ConnectionError:
            # Also of a subscription, whose connection redis-py keeps: it would read from the closed one for ever.
            self.disconnect()
            self.generation.end(self._made_in)
            raise
        except TimeoutError:
            if options.get("disconnect_on_error", True):
                self.generation.end(self._made_in)
            raise
        if (refusal := _refusal_in(answer)) is not None:
            raise self._lose(str(refusal)) from refusal
        if proves_role and self._ask_at < math.inf:
            self._ask_at = time.monotonic() + ROLE_INTERVAL
        return answer

    def _ask_role(self) -> bytes:
        """Return the history of the primary's data, empty where it cannot be asked; raises `NotPrimary`."""
        self._ask_at = math.inf
        try:
            self.send_command(*ROLE_QUERY, check_health=False)
            answer = self.read_response(disable_decoding=True)
        except ResponseError:  # not allowed, or not known: refused writes have to do
            return b""
        if isinstance(answer, bytes) and REPLICA.search(answer):
            raise self._lose("its role is replica")
        self._ask_at = time.monotonic() + ROLE_INTERVAL
        return found[1] if isinstance(answer, bytes) and (found := HISTORY.search(answer)) else b""

    def _lose(self, why: str) -> NotPrimary:
        self.disconnect()
        self.generation.end(self._made_in)
        return NotPrimary(why)


class PrimaryConnection(_PrimaryConnection, Connection):
    """A connection by TCP."""


class PrimarySSLConnection(_PrimaryConnection, SSLConnection):
    """A connection by TLS."""


class PrimaryUnixConnection(_PrimaryConnection, UnixDomainSocketConnection):
    """A connection by a Unix socket."""


class PrimaryPool(ConnectionPool):
    """Connections to the primary at one address."""

    @cached_property
    def generation(self) -> Generation:
        """Generation of the pool's connections."""
        return Generation()

    def make_connection(self) -> ConnectionInterface:
        """Return a new connection."""
        connection = super().make_connection()
        if isinstance(connection, _PrimaryConnection):
            connection.generation = self.generation
        return connection

    @classmethod
    def at(cls, url: str, **options: object) -> "PrimaryPool":
        """Return a pool for this URL; `options` are those of redis-py's connections. Raises `ValueError`."""
        pool = cls.from_url(url, redis_connect_func=_PrimaryConnection.greet, **options)
        kinds = {SSLConnection: PrimarySSLConnection, UnixDomainSocketConnection: PrimaryUnixConnection}
        pool.connection_class = kinds.get(pool.connection_class, PrimaryConnection)
        return pool


class _AsyncPrimaryConnection(AsyncAbstractConnection):
    """Counterpart of `_PrimaryConnection` for asyncio; it subscribes to nothing and waits in no queue."""

    generation: Generation
    _made_in = NOT_MADE
    _ask_at = math.inf

    async def connect(self) -> None:
        """Connect, unless that is done; again where the server of this connection was lost meanwhile."""
        if self._made_in != self.generation.number:
            await self.disconnect(nowait=True)
        await self.retry.call_with_retry(self.connect_check_health, lambda _: self.disconnect(nowait=True))

    async def greet(self) -> None:
        """Initialize a new connection and ask the role; raises `NotPrimary`."""
        begun_in, self._made_in, self._ask_at = self.generation.number, NOT_MADE, math.inf
        await self.on_connect()
        self._made_in = self.generation.see(await self._ask_role(), begun_in)

    async def check_health(self) -> None:
        """Ask the role where that is due; raises `NotPrimary`."""
        await super().check_health()
        if time.monotonic() >= self._ask_at:
            self._made_in = self.generation.see(await self._ask_role(), self._made_in)

    async def read_response(
        self, disable_decoding: bool = False, timeout: float | None = None, *, disconnect_on_error: bool = True,
        push_request: bool | None = False,
    ) -> object:  # fmt: skip
        """Return the answer to a command; raises `NotPrimary` where a replica refused it."""
        try:
            answer: object = await super().read_response(
                disable_decoding, timeout, disconnect_on_error=disconnect_on_error, push_request=push_request
            )
        except ResponseError as error:
            if is_refusal_of_replica(error):
                raise await self._lose(str(error)) from error
            if may_be_over_elsewhere(error):
                self.generation.end(self._made_in)
            raise
        except (ConnectionError, TimeoutError):
            if disconnect_on_error:
                self.generation.end(self._made_in)
            raise
        if (refusal := _refusal_in(answer)) is not None:
            raise await self._lose(str(refusal)) from refusal
        return answer

    async def _ask_role(self) -> bytes:
        """Return the history of the primary's data, empty where it cannot be asked; raises `NotPrimary`."""
        self._ask_at = math.inf
        try:
            await self.send_command(*ROLE_QUERY, check_health=False)
            answer = await self.read_response(disable_decoding=True)
        except ResponseError:  # as above
            return b""
        if isinstance(answer, bytes) and REPLICA.search(answer):
            raise await self._lose("its role is replica")
        self._ask_at = time.monotonic() + ROLE_INTERVAL
        return found[1] if isinstance(answer, bytes) and (found := HISTORY.search(answer)) else b""

    async def _lose(self, why: str) -> NotPrimary:
        await self.disconnect(nowait=True)
        self.generation.end(self._made_in)
        return NotPrimary(why)


class AsyncPrimaryConnection(_AsyncPrimaryConnection, aio.Connection):
    """A connection by TCP."""


class AsyncPrimarySSLConnection(_AsyncPrimaryConnection, aio.SSLConnection):
    """A connection by TLS."""


class AsyncPrimaryUnixConnection(_AsyncPrimaryConnection, aio.UnixDomainSocketConnection):
    """A connection by a Unix socket."""


class AsyncPrimaryPool(aio.ConnectionPool):
    """Counterpart of `PrimaryPool` for asyncio."""

    @cached_property
    def generation(self) -> Generation:
        """Generation of the pool's connections."""
        return Generation()

    def make_connection(self) -> AsyncAbstractConnection:
        """Return a new connection."""
        connection: AsyncAbstractConnection = super().make_connection()
        if isinstance(connection, _AsyncPrimaryConnection):
            connection.generation = self.generation
        return connection

    @classmethod
    def at(cls, url: str, **options: object) -> "AsyncPrimaryPool":
        """Return a pool, as `PrimaryPool.at`."""
        pool = cls.from_url(url, redis_connect_func=_AsyncPrimaryConnection.greet, **options)
        kinds = {
            aio.SSLConnection: AsyncPrimarySSLConnection, aio.UnixDomainSocketConnection: AsyncPrimaryUnixConnection,
        }  # fmt: skip
        pool.connection_class = kinds.get(pool.connection_class, AsyncPrimaryConnection)
        return pool
