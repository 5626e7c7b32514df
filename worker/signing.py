r"""Signatures of jobs: only who knows the key can make one that a worker takes.

What is signed is the job in its canonical form: the JSON object with its keys sorted, at every level, without
white space, non-ASCII characters as `\uXXXX` escapes in lower case, and numbers as Python writes them. The
signature is the HMAC-SHA256 of those bytes under the key, as 64 lower-case hexadecimal digits:

    {"type": "preflight.train.v1", "job_id": "a", "model": "cnn", "dataset": "mnist", "learning_rate": 0.001}
    {"dataset":"mnist","job_id":"a","learning_rate":0.001,"model":"cnn","type":"preflight.train.v1"}

In another language: sort the keys, print without spaces, escape what is not ASCII, and compute the HMAC; the object
that is sent may be printed in any way, because the worker brings it into this form before it compares. Numbers are
the one trap: a whole number stays one (`1` is not `1.0`), and a fraction is written with the fewest digits that read
back to the same double, from 1e16 on and below 1e-4 as `1e+16` and `1e-05`. Fields that hold none of these are safe
in any language.

`job_id` must be part of a signed job. It is the idempotency key, so whoever repeats the message only gets the first
result again; without it the same signature would serve for any number of jobs.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping

from pydantic import JsonValue

from training.errors import InvalidConfig


def sign(payload: Mapping[str, JsonValue], key: bytes | str) -> str:
    """Return the signature of a job.

    Raises:
        InvalidConfig: it names no `job_id`, or is not JSON.
    """
    if not isinstance(payload.get("job_id"), str):
        raise InvalidConfig("a signed job must name its job_id, so that it cannot be repeated; add it", field="job_id")
    secret = key.encode() if isinstance(key, str) else key
    return hmac.new(secret, canonical(payload), hashlib.sha256).hexdigest()


def verify(payload: Mapping[str, JsonValue], signature: str, key: bytes | str) -> bool:
    """Whether `signature` was made of this very job with this key; raises as `sign` does."""
    return hmac.compare_digest(sign(payload, key).encode(), signature.encode(errors="replace"))


def canonical(payload: Mapping[str, JsonValue]) -> bytes:
    """Return the bytes that are signed; raises `InvalidConfig` for what is not JSON."""
    try:
        text = json.dumps(dict(payload), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(f"the job is not JSON ({error}); send plain objects and numbers") from error
    return text.encode()
