"""Garbage in Redis keys: another type, or the right type with invalid content."""

from contextlib import suppress
from typing import Final

from pydantic import TypeAdapter
from redis import Redis
from redis.exceptions import ResponseError

TYPES: Final = ("string", "hash", "list", "set", "zset", "stream")
YEAR: Final = 31_536_000
TTL: Final = 1000
"""Seconds after which garbage expires, so that it is not itself a key without an end."""
LARGEST_ID: Final = "18446744073709551615-18446744073709551615"
VALUES: Final = (
    b"x", b"", b"-1", b"0", b"9" * 30, b"1e309", b"nan", b"\xff\xfe\x00", b"{}", b"[]", b"null", b'{"type": 1}',
    b"x" * 3000, b"finished", b"queued", b"started", b"2026-01-01T00:00:00Z",
    b"[" * 100_000, b'{"a":' * 2000, b"NaN", b"Infinity", b"1" * 400, b"x" * (1 << 20), b"1 1 short", b"- 1 {}",
    b"9" * 18, b"\xed\xa0\x80", b"../../etc", b"a" * 64,
)  # fmt: skip


RAW = TypeAdapter(list[bytes])
"""Answer of Redis where nothing is decoded."""


def all_keys(connection: Redis, pattern: str = "*") -> list[bytes]:
    return sorted(RAW.validate_python(connection.keys(pattern)))


def corrupt(connection: Redis, key: bytes, how: int) -> str:
    """Corrupt a key, in a way chosen by a number; returns a description."""
    kind = connection.type(key)
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    alter = how % 2 == 0 and kind != "none"
    how //= 2
    with suppress(ResponseError):  # the server may be full, or a stream at its end
        return _altered(connection, key, kind, how) if alter else _replaced(connection, key, kind, how)
    return "refused"


def _replaced(connection: Redis, key: bytes, kind: str, how: int) -> str:
    """Replace a key by one of another type."""
    value = VALUES[how // 8 % len(VALUES)]
    others = [other for other in (*TYPES, "end of stream", "string for a year", "flood") if other != kind]
    other = others[how % len(others)]
    pipe = connection.pipeline(transaction=True)
    pipe.delete(key)
    match other:
        case "string":
            pipe.set(key, value)
        case "string for a year":
            pipe.set(key, value)
        case "hash":
            names = (b"status", b"attempt", b"running", b"request", b"owner", b"led", b"since", b"seat:w", b"order:w")
            pipe.hset(key, mapping={value or b"empty": b"1", **dict.fromkeys(names, value)})
        case "flood":
            pipe.hset(key, mapping={f"{number} {value[:8]!r}": value[:64] for number in range(7000)})
        case "list":
            pipe.rpush(key, value)
        case "set":
            pipe.sadd(key, value)
        case "zset":
            pipe.zadd(key, {value: 1.0})
        case "stream":
            pipe.xadd(key, {b"type": value})
        case "end of stream":
            pipe.xadd(key, {b"type": value}, id=LARGEST_ID)
    pipe.expire(key, YEAR if other == "string for a year" else TTL)
    pipe.execute()
    return f"replaced by a {other} with {value[:20]!r}"


def _altered(connection: Redis, key: bytes, kind: str, how: int) -> str:
    """Put invalid content into a key of the right type."""
    value = VALUES[how % len(VALUES)]
    how //= len(VALUES)
    match kind:
        case "hash":
            names = sorted(RAW.validate_python(connection.hkeys(key)))
            name = [*names, b"new"][how % (len(names) + 1)]
            if how // (len(names) + 1) % 4 == 0:
                connection.hdel(key, name)
                return f"field {name!r} removed"
            connection.hset(key, name, value)
            return f"field {name!r} set to {value[:20]!r}"
        case "list":
            (connection.lpush if how % 2 else connection.rpush)(key, value)
        case "set":
            connection.sadd(key, value)
        case "zset":
            connection.zadd(key, {value: (float("inf"), -1.0, 0.0)[how % 3]})
        case "stream":
            connection.xadd(key, {b"type": value}, id=LARGEST_ID if how % 2 else "*")
        case _:
            connection.set(key, value, ex=TTL)
    return f"{value[:20]!r} put into the {kind}"
