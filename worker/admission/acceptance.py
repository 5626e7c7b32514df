"""Replay protection: a signed message is accepted once.

Its acceptance record is bound to the RQ id that carried it first: retries, resumes and requeues of that id are
accepted again, however late, and a copy under another id is not. The message expires with its job.
"""

import time
from typing import Final

from redis import Redis

from preflight.errors import InvalidConfig
from preflight.queue.untrusted_job import UntrustedJob
from preflight.redis import keys
from preflight.redis.lua import TEXT, run_script
from worker.config.settings import Settings

MAX_CLOCK_AHEAD: Final = 3600
"""Seconds by which `signed_at` may be ahead of this worker's clock; a worker's clock may be as far off."""
OPEN_TTL: Final = 30 * 86_400
"""Seconds for which the record of a job that has not ended is kept after its last renewal."""
REPLAYED: Final = {
    "elsewhere": "was taken before under another RQ id", "ended": "was taken before, and its job has ended",
    "older": "was signed before one of the same job that has ended",
    "cancelled": "is older than the cancellation of its job",
}  # fmt: skip


class Replayed(InvalidConfig):
    """A signed message that was accepted before; the state of its job is left alone."""


def accept_once(connection: Redis, job: UntrustedJob, job_id: str, signed: tuple[str, int], settings: Settings) -> None:
    """Accept a message by its signature and `signed_at`; raises `InvalidConfig` for an old one or a copy."""
    (signature, signed_at), now = signed, int(time.time())
    answer = run_script(
        connection, "signatures/accept", TEXT,
        keys=[keys.accepted(job_id), keys.result(job_id), keys.state(job_id)],
        args=[signature, job.id, signed_at, settings.signature_seconds, MAX_CLOCK_AHEAD, _ttl(settings)],
    )  # fmt: skip
    if answer in REPLAYED:
        raise Replayed(f"the signed message {REPLAYED[answer]}, and serves once; sign the job again", field="signature")
    if answer == "ahead":
        raise InvalidConfig(
            f"signed_at is {signed_at}, {signed_at - now} s ahead of this worker's clock, but may be "
            f"at most {MAX_CLOCK_AHEAD} s ahead; set both clocks by NTP",
            field="signature",
        )
    if answer != "accepted":
        raise InvalidConfig(
            f"the job was signed {now - signed_at} s ago, but this worker takes it at most "
            f"{settings.signature_seconds} s after that (PREFLIGHT_SIGNATURE_SECONDS); sign it again",
            field="signature",
        )


def renew_acceptance(connection: Redis, job: UntrustedJob, job_id: str, settings: Settings) -> None:
    """Renew, or restore, the acceptance record of a running job; raises `redis.exceptions.RedisError`."""
    if settings.signing_key is not None:
        run_script(
            connection, "signatures/renew", TEXT, keys=[keys.accepted(job_id)],
            args=[str(job.kwargs.get("signature")), job.id, str(job.kwargs.get("signed_at")), _ttl(settings)],
        )  # fmt: skip


def end_acceptance(connection: Redis, job_id: str, rq_id: str, settings: Settings) -> None:
    """Record that the messages of a job are used up, as `rq/end_job.lua` does, too; raises `RedisError`."""
    if settings.signing_key is not None:
        run_script(
            connection, "signatures/end", TEXT, keys=[keys.accepted(job_id)], args=[rq_id, acceptance_ttl(settings)]
        )


def acceptance_ttl(settings: Settings) -> int:
    """Return the seconds for which the record of a used-up message is kept."""
    return max(settings.state_ttl, settings.signature_seconds + MAX_CLOCK_AHEAD)


def _ttl(settings: Settings) -> int:
    """Return the seconds for which an open record is kept: never less than its message's window."""
    return max(OPEN_TTL, settings.signature_seconds + MAX_CLOCK_AHEAD)
