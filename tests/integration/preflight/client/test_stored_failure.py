"""Why a job failed, by RQ's record of it, where its events do not say."""

import base64
import zlib

import pytest
from redis import Redis

from preflight import Client
from preflight.redis import keys


def fail(raw: Redis, job_id: str, said: bytes) -> None:
    """Make it a job that RQ has as failed, with this text in its stream of results."""
    raw.hset(f"rq:job:{job_id}", "status", "failed")
    packed = base64.b64encode(zlib.compress(said))
    raw.xadd(keys.rq_results(job_id), {"type": 2, "exc_string": packed})


@pytest.mark.parametrize(
    ("said", "reason", "message"),
    [
        (b"child_failed: the training child was killed", "child_failed", "the training child was killed"),
        (b"Traceback (most recent call last):\n  x\nMoved to the registry: it was abandoned", None,
         "Moved to the registry: it was abandoned"),
        (b"", None, None),
        (b"\xff" * 100_000 + b": b", None, None),
    ],
    ids=["ours", "RQ's", "empty", "huge"],
)  # fmt: skip
def test_a_failure_without_an_event_has_the_reason_that_rq_stores(
    raw: Redis, client: Client, said: bytes, reason: str | None, message: str | None
) -> None:
    """A killed supervisor publishes no event; the state of its job says that it runs."""
    fail(raw, "j", said)
    raw.hset(keys.state("j"), "status", "running")
    state = client.status("j")
    assert (state.status, state.reason) == ("failed", reason)
    if message is not None or not said:
        assert state.message == message


def test_what_is_no_result_of_rq_is_ignored(raw: Redis, client: Client) -> None:
    """A key of another type, or a value that is not packed."""
    raw.hset("rq:job:j", "status", "failed")
    raw.set(keys.rq_results("j"), "x")
    assert client.status("j").reason is None
    raw.delete(keys.rq_results("j"))
    raw.xadd(keys.rq_results("j"), {"exc_string": "not packed"})
    assert client.status("j").reason is None


def test_one_invalid_field_hides_no_reason(raw: Redis, client: Client) -> None:
    """Only the field that is wrong is left out of the state."""
    raw.hset("rq:job:j", "status", "failed")
    raw.hset(keys.state("j"), mapping={"status": "failed", "reason": "diverged", "message": "nan", "epochs": "many"})
    state = client.status("j")
    assert (state.reason, state.message, state.epochs) == ("diverged", "nan", None)
