r"""Signatures of jobs: HMAC-SHA256 over the job, the time of signing and RQ's terms.

The signed text is one JSON object in its canonical form: keys sorted at every level, no white space, non-ASCII
characters as `\uXXXX` escapes in lower case, and numbers as Python writes them. Its fields:

    job          the request, the one argument of the call; `job_id` must be in it
    signed_at    when it was signed, whole seconds since the epoch
    timeout, result_ttl, failure_ttl, ttl
                 RQ's fields of the same names in the job's hash, whole seconds; null where the hash has no such field
                 (timeout: 21600 then)
    retries      RQ's `retries_left` when the job is enqueued; 0 where the hash has no such field

The signature is 64 lower-case hexadecimal digits. It travels as the keyword `signature`, next to the keywords
`signed_at` and `retries`, because RQ counts `retries_left` down; the others are read from the hash. The bytes of
`{"type": "preflight.train.v1", "job_id": "a", "dataset": "mnist"}`, as preflight.client enqueues it, are (one line):

    {"failure_ttl":604800,"job":{"dataset":"mnist","job_id":"a","type":"preflight.train.v1"},"result_ttl":604800,
    "retries":2,"signed_at":1795000000,"timeout":21600,"ttl":null}

In another language: sort the keys, print without spaces, escape what is not ASCII, and compute the HMAC; the job that
is sent may be printed in any way, because the worker brings it into this form before it compares. Numbers are the one
trap: a whole number stays one (`1` is not `1.0`), and a fraction is written with the fewest digits that read back to
the same double, from 1e16 on and below 1e-4 as `1e+16` and `1e-05`.
"""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from pydantic import JsonValue

from preflight.errors import InvalidConfig
from preflight.queue.untrusted_job import UntrustedJob

MAX_NUMBER: Final = 10**10
"""Bound of `signed_at` and `retries`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Values that are signed together with the job."""

    signed_at: int = field(default_factory=lambda: int(time.time()))
    """Whole seconds since the epoch; by default now."""
    timeout: int
    """RQ's fields in the job's hash, seconds."""
    result_ttl: int | None = None
    failure_ttl: int | None = None
    ttl: int | None = None
    retries: int = 0
    """Most `retries_left` that the hash may have."""


def sign(job: Mapping[str, JsonValue], terms: Terms, key: bytes | str) -> str:
    """Return the signature of a job.

    Raises:
        InvalidConfig: the job has no `job_id`, or is not JSON.
    """
    if not isinstance(job.get("job_id"), str):
        raise InvalidConfig("a signed job must name its job_id, so that it cannot be repeated; add it", field="job_id")
    secret = key.encode() if isinstance(key, str) else key
    return hmac.new(secret, canonical({"job": dict(job), **asdict(terms)}), hashlib.sha256).hexdigest()


def verify(job: Mapping[str, JsonValue], terms: Terms, signature: str, key: bytes | str) -> bool:
    """Whether `signature` was made of this job and these terms with this key; raises as `sign` does."""
    return hmac.compare_digest(sign(job, terms, key).encode(), signature.encode(errors="replace"))


def signed_keywords(job: Mapping[str, JsonValue], key: bytes | str, terms: Terms) -> dict[str, JsonValue]:
    """Return the keyword arguments of a signed job; raises as `sign` does."""
    return {"signature": sign(job, terms, key), "signed_at": terms.signed_at, "retries": terms.retries}


def checked_signature(job: UntrustedJob, request: dict[str, JsonValue], key: str) -> tuple[str, int]:
    """Return signature and `signed_at` of a job that is signed with `key`; raises `InvalidConfig` for any other."""
    signature = job.kwargs.get("signature")
    if not isinstance(signature, str):
        raise InvalidConfig(
            "the job has no signature, but this worker asks for one; enqueue it with the signing key", field="signature"
        )
    terms = Terms(
        signed_at=_number(job, "signed_at", "the seconds since the epoch when it was signed"), timeout=job.timeout,
        result_ttl=job.result_ttl, failure_ttl=job.failure_ttl, ttl=job.ttl,
        retries=_number(job, "retries", "RQ's retries_left as it was enqueued"),
    )  # fmt: skip
    if not verify(request, terms, signature, key):
        raise InvalidConfig(
            f"the signature is not that of this job with signed_at {terms.signed_at}, timeout {terms.timeout}, "
            f"result_ttl {_json(terms.result_ttl)}, failure_ttl {_json(terms.failure_ttl)}, ttl {_json(terms.ttl)} "
            f"and retries {terms.retries} under this worker's key; sign the job as it is sent, with the same key as "
            "the worker's",
            field="signature",
        )
    if job.options.retries_left > terms.retries:
        raise InvalidConfig(
            f"the job has {job.options.retries_left} retries left, but its signature allows {terms.retries}; sign "
            "retries as the job is enqueued",
            field="signature",
        )
    return signature, terms.signed_at


def _number(job: UntrustedJob, keyword: str, meaning: str) -> int:
    value = job.kwargs.get(keyword)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
        raise InvalidConfig(
            f"the keyword {keyword} of the signed job is {ascii(value)[:60]}, but must be a whole number from 0 to "
            f"{MAX_NUMBER}; send {meaning}",
            field="signature",
        )
    return value


def _json(value: int | None) -> str:
    return "null" if value is None else str(value)


def canonical(payload: Mapping[str, JsonValue]) -> bytes:
    """Return the bytes that are signed; raises `InvalidConfig` for a job that is not JSON."""
    try:
        text = json.dumps(dict(payload), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(f"the job is not JSON ({error}); send plain objects and numbers") from error
    return text.encode()
