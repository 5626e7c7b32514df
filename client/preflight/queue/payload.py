"""Payload of an untrusted job: RQ's `data` field, decoded within bounds and without pickle."""

import zlib
from typing import Final

from pydantic import JsonValue

from preflight.errors import PreflightError
from preflight.redis.untrusted.values import Refused, as_json, as_text

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""Bytes of a payload once it is decompressed; more than a TrainJob may have, whose own error names that limit."""
MAX_NAME_LENGTH: Final = 256
"""Most characters of a function's name."""

Payload = tuple[str, list[JsonValue], dict[str, JsonValue]]
"""Function, positional and keyword arguments."""


class PoisonMessage(PreflightError):
    """An entry of a queue that cannot be a job; running or reading it again would not help."""

    reason = "poison"

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id
        """Id as it stands in the queue."""


def poison(job_id: str, what: str) -> PoisonMessage:
    """Return the error of a job whose data are not valid."""
    return PoisonMessage(f"job {job_id} {what}", job_id)


def decode_payload(job_id: str, data: bytes, most: int = MAX_PAYLOAD_BYTES) -> Payload:
    """Return the call that `data` asks for, of at most `most` bytes; raises `PoisonMessage`."""
    raw = _decompress(job_id, data, most)
    if raw.startswith(b"\x80") or (raw.endswith(b".") and not raw.startswith(b"[")):
        raise poison(job_id, "is a pickle, which is not read; enqueue it with rq.serializers.JSONSerializer")
    try:
        as_text(raw, most)
    except Refused:
        raise poison(job_id, "is in a serialization that is not read; enqueue it with JSONSerializer") from None
    try:
        payload = as_json(raw, most, any_number=True)
    except Refused as error:
        raise poison(job_id, f"{error}; enqueue it with JSONSerializer") from None
    match payload:
        case [str(function), _, list(args), dict(kwargs)] if len(function) <= MAX_NAME_LENGTH:
            return function, args, kwargs
    raise poison(job_id, "is not [function, null, [arguments], {keywords}]; enqueue it with RQ")


def _decompress(job_id: str, data: bytes, most: int) -> bytes:
    """Return `data` without its compression, if it has one; RQ writes both."""
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(data, most + 1)
    except zlib.error:
        return data
    if len(raw) > most:
        raise poison(job_id, f"is more than {most} bytes when decompressed; shorten it")
    if not inflate.eof:
        raise poison(job_id, "is cut off; enqueue it again")
    return raw


def excerpt(value: object) -> str:
    """Return a value from Redis on one line, escaped, and cut where it is long."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."
