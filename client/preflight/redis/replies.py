"""Values of Redis and RQ as text: RQ needs connections that do not decode."""

from collections.abc import Mapping
from datetime import UTC, datetime


def text(value: object) -> str:
    """Return one value; bytes that are no UTF-8 are replaced."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def texts(fields: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[bytes | str, bytes | str]) -> dict[str, str]:
    """Return the fields of a hash or of a stream record."""
    return {text(name): text(value) for name, value in fields.items()}


def as_date(seconds: float) -> str:
    """Return a time as RQ writes it, e.g. 2026-01-31T12:00:00.000000Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
