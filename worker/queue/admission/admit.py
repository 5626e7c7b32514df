"""Whether a job is let in: its function, its arguments, its signature, its fields, and this worker's limits.

A signed message is accepted once. The record of it in Redis is bound to the RQ id that carried it first, so that a job
which is retried, resumed or handed back is accepted again, however late, and a copy under another id is not. When the
job has ended, so has its message.
"""

import time
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter
from redis import Redis

from training.config.spec import TrainSpec
from training.errors import InvalidConfig
from worker.broker import keys
from worker.config.settings import Settings
from worker.queue.admission.signing import LARGEST_NUMBER, Terms, verify
from worker.queue.untrusted_job import SafeJob, require_allowed
from worker.wire import FUNCTION, TrainJob, parse_job

KEYWORDS: Final = frozenset({"signature", "signed_at", "retries"})
CLOCK_AHEAD: Final = 3600
"""Seconds by which `signed_at` may be ahead of this worker's clock; a worker starts with a clock as far off."""
NEVER: Final = -1
"""RQ's timeout of a job that may run for ever."""
KEPT_OPEN: Final = 30 * 86_400
"""Seconds for which the record of a job that has not ended is kept after the last sign of it."""
LUA: Final = Path(__file__).parents[2] / "broker" / "scripts"
ACCEPT: Final = (LUA / "signatures/accept.lua").read_text()
KEEP: Final = (LUA / "signatures/renew.lua").read_text()
END: Final = "".join((LUA / f"{part}.lua").read_text() for part in ("shared/accepted", "signatures/end"))
WORD = TypeAdapter(str)


class Replayed(InvalidConfig):
    """A signed message that was accepted before; what was said of its job stays as it is."""


def admit(job: SafeJob, connection: Redis, settings: Settings) -> TrainJob:
    """Return the request that a job from the queue carries.

    Raises:
        InvalidConfig: it is refused; the message says what to change.
        redis.exceptions.RedisError: Redis did not answer; it may be called again.
    """
    require_allowed(job.func_name)
    request = _request(job)
    key = settings.signing_key
    signed = None if key is None else _checked_signature(job, request, key.get_secret_value())
    admitted = parse_job(request)
    if signed is not None:
        _accept_once(connection, job, admitted.job_id or job.id, signed, settings)
    _within_limits(admitted, job.timeout, settings)
    return admitted


def within_samples(spec: TrainSpec, train_samples: int, settings: Settings) -> None:
    """Check what a job asks for once the number of training samples in an epoch is known.

    Raises:
        InvalidConfig: together its epochs have more than this worker trains on.
    """
    most, asked = settings.max_samples, spec.epochs * train_samples
    if most is not None and asked > most:
        raise InvalidConfig(
            f"epochs is {spec.epochs}, which makes {asked} samples of {train_samples} an epoch, but this worker trains "
            f"on at most {most} (PREFLIGHT_MAX_SAMPLES); ask for fewer epochs or a smaller data set",
            field="epochs",
        )


def _request(job: SafeJob) -> dict[str, JsonValue]:
    """Return the one argument that a call has."""
    if len(job.args) != 1 or set(job.kwargs) - KEYWORDS:
        raise InvalidConfig(
            f"{FUNCTION} got {len(job.args)} positional and {len(job.kwargs)} keyword arguments, but takes one "
            "positional argument, and no keyword but signature, signed_at and retries; send the TrainJob object"
        )
    request: JsonValue = job.args[0]
    if not isinstance(request, dict):
        raise InvalidConfig(f"the job is a {type(request).__name__}, but must be an object; send a TrainJob")
    return request


def _checked_signature(job: SafeJob, request: dict[str, JsonValue], key: str) -> tuple[str, int]:
    """Return signature and `signed_at` of a job that is signed with `key`; raises `InvalidConfig` for any other."""
    signature = job.kwargs.get("signature")
    if not isinstance(signature, str):
        raise InvalidConfig(
            "the job has no signature, but this worker asks for one; enqueue it with the signing key", field="signature"
        )
    terms = _terms(job)
    if not verify(request, terms, signature, key):
        raise InvalidConfig(
            f"the signature is not that of this job with signed_at {terms.signed_at}, timeout {terms.timeout}, "
            f"result_ttl {_json(terms.result_ttl)}, failure_ttl {_json(terms.failure_ttl)}, ttl {_json(terms.ttl)} "
            f"and retries {terms.retries} under this worker's key; sign the job as it is sent, with the same key as "
            "the worker's",
            field="signature",
        )
    if job.retries_left > terms.retries:
        raise InvalidConfig(
            f"the job has {job.retries_left} retries left, but its signature allows {terms.retries}; sign retries as "
            "the job is enqueued",
            field="signature",
        )
    return signature, terms.signed_at


def _terms(job: SafeJob) -> Terms:
    """Return what was signed beside the job."""
    return Terms(
        signed_at=_whole(job.kwargs.get("signed_at"), "signed_at", "the seconds since the epoch when it was signed"),
        timeout=job.timeout,
        result_ttl=job.result_ttl,
        failure_ttl=job.failure_ttl,
        ttl=job.ttl,
        retries=_whole(job.kwargs.get("retries"), "retries", "RQ's retries_left as it was enqueued"),
    )


def _whole(value: JsonValue, keyword: str, meaning: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_NUMBER:
        raise InvalidConfig(
            f"the keyword {keyword} of the signed job is {ascii(value)[:60]}, but must be a whole number from 0 to "
            f"{LARGEST_NUMBER}; send {meaning}",
            field="signature",
        )
    return value


def _json(value: int | None) -> str:
    return "null" if value is None else str(value)


def _accept_once(connection: Redis, job: SafeJob, job_id: str, signed: tuple[str, int], settings: Settings) -> None:
    """Raise `InvalidConfig` where the message was signed too long ago, or is a copy."""
    (signature, signed_at), now = signed, int(time.time())
    answer = connection.register_script(ACCEPT)(
        keys=[keys.accepted(job_id), keys.result(job_id), keys.state(job_id)],
        args=[signature, job.id, signed_at, now - settings.signature_seconds, now + CLOCK_AHEAD, _kept(settings)],
    )
    match WORD.validate_python(answer):
        case "accepted":
            return
        case "elsewhere":
            why = "was taken before under another RQ id"
        case "ended":
            why = "was taken before, and its job has ended"
        case "older":
            why = "was signed before one of the same job that has ended"
        case "cancelled":
            why = "is older than the cancellation of its job"
        case "ahead":
            raise InvalidConfig(
                f"signed_at is {signed_at}, {signed_at - now} s ahead of this worker's clock, but may be "
                f"at most {CLOCK_AHEAD} s ahead; set both clocks by NTP",
                field="signature",
            )
        case _:
            raise InvalidConfig(
                f"the job was signed {now - signed_at} s ago, but this worker takes it at most "
                f"{settings.signature_seconds} s after that (PREFLIGHT_SIGNATURE_SECONDS); sign it anew",
                field="signature",
            )
    raise Replayed(f"the signed message {why}, and serves once; sign the job anew", field="signature")


def _kept(settings: Settings) -> int:
    """Return the seconds for which an open record is kept: never less than its message's window."""
    return max(KEPT_OPEN, settings.signature_seconds + CLOCK_AHEAD)


def keep_accepted(connection: Redis, job: SafeJob, job_id: str, settings: Settings) -> None:
    """Keep the record of the message that a running job was accepted from, also where Redis lost its data.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    if settings.signing_key is not None:
        connection.register_script(KEEP)(
            keys=[keys.accepted(job_id)],
            args=[str(job.kwargs.get("signature")), job.id, str(job.kwargs.get("signed_at")), _kept(settings)],
        )


def end_accepted(connection: Redis, job_id: str, rq_id: str, settings: Settings) -> None:
    """Record that the message of a job is used up; where its end is recorded with RQ, that does so in the same step.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    if settings.signing_key is not None:
        connection.register_script(END)(keys=[keys.accepted(job_id)], args=[rq_id, accepted_ttl(settings)])


def accepted_ttl(settings: Settings) -> int:
    """Return the seconds for which it is remembered that a signed message is used up."""
    return max(settings.state_ttl, settings.signature_seconds + CLOCK_AHEAD)


def _within_limits(job: TrainJob, timeout: int, settings: Settings) -> None:
    """Check what a job asks for against this worker's limits; raises `InvalidConfig`."""
    spec, plan, largest = job.spec(), job.plan, settings.max_batch_size
    asked: tuple[tuple[str, float | None, float | None, str], ...] = (
        ("epochs", spec.epochs, settings.max_epochs, "PREFLIGHT_MAX_EPOCHS"),
        ("batch_size", spec.batch_size, largest, "PREFLIGHT_MAX_BATCH_SIZE"),
        ("plan.micro_batch", plan.micro_batch, largest, "PREFLIGHT_MAX_BATCH_SIZE"),
        ("plan.eval_batch", plan.eval_batch, largest, "PREFLIGHT_MAX_BATCH_SIZE"),
        ("plan.threads", plan.threads, settings.max_threads, "PREFLIGHT_MAX_THREADS"),
        ("plan.interop", plan.interop, settings.max_threads, "PREFLIGHT_MAX_THREADS"),
        ("plan.loader_workers", plan.loader_workers, settings.max_loader_workers, "PREFLIGHT_MAX_LOADER_WORKERS"),
        (
            "calibration_seconds", job.calibration_seconds, settings.max_calibration_seconds,
            "PREFLIGHT_MAX_CALIBRATION_SECONDS",
        ),
        ("job_timeout", timeout, settings.max_job_timeout, "PREFLIGHT_MAX_JOB_TIMEOUT"),
    )  # fmt: skip
    for field, value, most, variable in asked:
        never = field == "job_timeout" and value == NEVER
        if value is not None and most is not None and (never or value > most):
            raise InvalidConfig(
                f"{field} is {value}{' (never)' if never else ''}, but this worker takes at most {most} "
                f"({variable}); ask for less",
                field=field,
            )
