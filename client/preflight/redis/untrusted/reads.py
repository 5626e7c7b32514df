"""Keys that others may have written, read only once Redis has given the length of their values."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter
from redis import Redis

from preflight.redis.lua import run_script

VALUE: TypeAdapter[bytes | None] = TypeAdapter(bytes | None)
VALUES: TypeAdapter[list[bytes | None]] = TypeAdapter(list[bytes | None])
SCANNED: TypeAdapter[list[bytes]] = TypeAdapter(list[bytes])


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a set, a sorted set or a hash."""

    cursor: int
    """Cursor of the next page; 0 after the last."""
    names: Sequence[bytes]
    values: Sequence[bytes]
    """Scores or values of the names; empty for a set."""


def read_value(connection: Redis, key: str, most: int) -> bytes | None:
    """Return a string of at most `most` bytes; None where there is none.

    Raises:
        redis.exceptions.RedisError: Redis did not answer; or the key has another type or a longer value, which is an
            error of the data.
    """
    return run_script(connection, "reading/value", VALUE, keys=[key], args=[most])


def read_fields(connection: Redis, key: str | bytes, names: Sequence[str | bytes], most: int) -> list[bytes | None]:
    """Return fields of a hash; None in place of one that is missing, or too long. Raises `RedisError`."""
    return run_script(connection, "reading/fields", VALUES, keys=[key], args=[most, *names])


def read_page(
    connection: Redis, key: str, cursor: int, size: int, *, name_bytes: int, value_bytes: int = 0
) -> Page:  # fmt: skip
    """Return roughly `size` entries of a set, a sorted set or a hash; longer ones are deleted from it.

    Raises `redis.exceptions.RedisError`.
    """
    following, parts, *found = run_script(
        connection, "reading/page", SCANNED, keys=[key], args=[cursor, size, name_bytes, value_bytes]
    )
    step = int(parts)
    return Page(int(following), found[::step], found[1::step] if step > 1 else [])
