"""Bounded replies: a parser of Redis's protocol (RESP2) that knows the length of a value before it keeps it.

The writer of a key decides how large its value is. The length precedes the value, so a value beyond the bound is
dropped in pieces while it arrives, and `OVERSIZED` stands in its place: bytes that are no id, no number, no JSON and no
UTF-8, which every reader takes for garbage. Memory is bounded by `Limits`, whatever Redis holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from redis.exceptions import ConnectionError, InvalidResponse, RedisError

OVERSIZED: Final = b"\xff\xfe(too large to be read)"
"""Stands in the place of a value that was dropped."""
MAX_LINE_BYTES: Final = 64 * 1024
"""Most bytes of an error or of a status; longer ones are not Redis's."""
CRLF: Final = b"\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the memory that the replies to one command, or to one pipeline, may take."""

    value: int = 256 * 1024
    """Bytes of one value; a job as RQ stores it has up to 64 KiB."""
    tiers: tuple[tuple[int, int], ...] = ((6 << 20, 4096), (12 << 20, 128))
    """Bytes kept so far -> the largest value from then on: 64-byte ids are read even where large values are many."""
    elements: int = 1_000_000
    """Values, numbers and lists in one reply."""


class OversizedReply(RedisError):
    """A reply with more elements than may be kept; the connection is closed."""


class _Mark:
    """A mark that is not a value."""


INCOMPLETE: Final = _Mark()
"""The rest of the reply has not arrived yet."""
BEGUN: Final = _Mark()
"""A list has begun; its elements follow."""


class ReplyReader:
    """Parses replies from the pieces in which they arrive."""

    def __init__(self, limits: Limits, parse_error: Callable[[str], Exception]) -> None:
        """Parse replies within `limits`; `parse_error` returns the exception for an error of Redis."""
        self._limits = limits
        self._parse_error = parse_error
        self._buffer = b""
        self._at = 0
        self._skip = 0
        """Bytes of a dropped value that are still to come, its line end included."""
        self._open: list[tuple[list[object], int]] = []
        """Lists that are not whole, the outermost first, each with its length."""
        self._elements = 0
        self._kept = 0
        self._largest = limits.value
        self.dropped = 0
        """Bytes of values that were dropped since `begin`."""

    def begin(self) -> None:
        """Start a new budget: a command or a pipeline is about to be sent."""
        self._kept, self._largest, self.dropped = 0, self._limits.value, 0

    @property
    def has_data(self) -> bool:
        """Whether bytes have arrived that no reply has used."""
        return self._at < len(self._buffer) or bool(self._open) or self._skip > 0

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0

    def read(self) -> object:
        """Return the next reply, `INCOMPLETE` where its rest has not arrived.

        Raises:
            OversizedReply: the reply has too many elements.
            redis.exceptions.InvalidResponse: these are not replies of Redis.
        """
        while True:
            value = self._read_value()
            if value is INCOMPLETE:
                return value
            if value is BEGUN:
                continue
            while self._open:
                values, wanted = self._open[-1]
                values.append(value)
                if len(values) < wanted:
                    break
                self._open.pop()
                value = values
            else:
                self._elements = 0
                return value

    def _read_value(self) -> object:
        """Return the next value, `BEGUN` or `INCOMPLETE`."""
        buffer, at = self._buffer, self._at
        if self._skip:
            passed = min(self._skip, len(buffer) - at)
            self._at += passed
            self._skip -= passed
            return INCOMPLETE if self._skip else OVERSIZED
        end = buffer.find(CRLF, at)
        if end < 0:
            if len(buffer) - at > MAX_LINE_BYTES:
                raise InvalidResponse(f"a line of Redis has more than {MAX_LINE_BYTES} bytes")
            return INCOMPLETE
        kind, line = buffer[at : at + 1], buffer[at + 1 : end]
        if kind == b"$":
            return self._read_bulk(_length(line), end + 2)
        self._at = end + 2
        if kind == b":":
            return int(line[:32])
        if kind == b"+":
            return line
        if kind == b"-":
            error = self._parse_error(line.decode(errors="replace"))
            if isinstance(error, ConnectionError):  # of the whole connection, not of a command
                raise error
            return error
        if kind == b"*":
            return self._begin_list(_length(line))
        raise InvalidResponse(f"Redis sent {kind!r}, which is no reply of RESP2")

    def _read_bulk(self, size: int, start: int) -> object:
        if size < 0:
            self._at = start
            return None
        if size > self._largest:
            self.dropped += size
            self._at, self._skip = start, size + 2
            return self._read_value()
        stop = start + size
        if len(self._buffer) < stop + 2:
            return INCOMPLETE
        self._at = stop + 2
        self._kept += size
        if self._kept > self._limits.tiers[0][0]:
            reached = (largest for kept, largest in self._limits.tiers if self._kept > kept)
            self._largest = min(self._largest, *reached)
        return self._buffer[start:stop]

    def _begin_list(self, length: int) -> object:
        if length < 0:
            return None
        self._elements += length
        if self._elements > self._limits.elements:
            raise OversizedReply(
                f"a reply has more than {self._limits.elements} elements; find the key that holds them and remove it"
            )
        if not length:
            return []
        self._open.append(([], length))
        return BEGUN


def _length(line: bytes) -> int:
    try:
        return int(line[:20])
    except ValueError:
        raise InvalidResponse(f"Redis sent the length {line[:20]!r}") from None
