"""Payload of an untrusted job: RQ's `data` field, decoded within bounds and without pickle."""

import json
import zlib
from typing import Final

from pydantic import JsonValue

from training.errors import PreflightError

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""Bytes of a payload once it is decompressed; more than a TrainJob may have, whose own error names that limit."""
MAX_NESTING: Final = 32
"""Levels of nesting in a payload; a TrainJob has four."""
MAX_NAME_LENGTH: Final = 256
"""Characters of a function's name."""

Payload = tuple[str, list[JsonValue], dict[str, JsonValue]]
"""Function, positional and keyword arguments."""


class PoisonMessage(PreflightError):
    """An entry of a queue that cannot be a job; running or reading it again would not help."""

    reason = "poison"

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id
        """As it stands in the queue."""


def poison(job_id: str, what: str) -> PoisonMessage:
    """Return the error of a job whose data are not valid."""
    return PoisonMessage(f"job {job_id} {what}", job_id)


def decode_payload(job_id: str, data: bytes, most: int = MAX_PAYLOAD_BYTES) -> Payload:
    """Return the call that `data` asks for, of at most so many bytes; raises `PoisonMessage`."""
    raw = _decompress(job_id, data, most)
    if raw.startswith(b"\x80") or (raw.endswith(b".") and not raw.startswith(b"[")):
        raise poison(job_id, "is a pickle, which is not read; enqueue it with rq.serializers.JSONSerializer")
    try:
        payload: JsonValue = json.loads(raw.decode())
    except UnicodeDecodeError:
        raise poison(job_id, "is in a serialization that is not read; enqueue it with JSONSerializer") from None
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits are a ValueError, too.
        raise poison(job_id, f"is not JSON ({excerpt(str(error))}); enqueue it with JSONSerializer") from None
    if is_nested_too_deep(payload):
        raise poison(job_id, f"is nested more than {MAX_NESTING} levels deep; flatten it")
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


def is_nested_too_deep(value: JsonValue) -> bool:
    """Whether `value` is nested too deep; level by level, because it may be deeper than the stack."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def excerpt(value: object) -> str:
    """Return a value from Redis on one line, escaped, and cut where it is long."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."
