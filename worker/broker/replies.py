"""Replies of Redis as text: RQ needs connections that do not decode."""

from collections.abc import Mapping


def text(value: object) -> str:
    """Return one value; bytes that are no UTF-8 are replaced."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def texts(fields: Mapping[bytes, bytes] | Mapping[str, str] | Mapping[bytes | str, bytes | str]) -> dict[str, str]:
    """Return the fields of a hash or of a stream record."""
    return {text(name): text(value) for name, value in fields.items()}
