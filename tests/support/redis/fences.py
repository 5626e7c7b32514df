"""Fences and events of one job."""

from redis import Redis

from preflight.redis import keys
from preflight.wire import JobStarted, Progress, TrainingDone
from worker.broker.fencing import Fence

TTL = 1000


def fence_of(raw: Redis, owner: str, *, ttl: int = TTL) -> Fence:
    return Fence(raw, "j", owner, ttl=ttl, request="r")


def claimed(raw: Redis, owner: str, *, ttl: int = TTL) -> Fence:
    fence = fence_of(raw, owner, ttl=ttl)
    assert fence.claim("j").status == "claimed"
    return fence


def die(raw: Redis) -> None:
    """Expire the lease."""
    raw.delete(keys.lease("j"))


def started(attempt: int = 1, seq: int = 1) -> JobStarted:
    return JobStarted(
        seq=seq, job_id="j", attempt=attempt, ts=seq, worker="w", dataset="digits", model="cnn", epochs=1, batch_size=8
    )


def progress(seq: int, attempt: int = 1) -> Progress:
    return Progress(
        seq=seq, job_id="j", attempt=attempt, ts=seq, epoch=1, epochs=1, step=seq, steps=100, loss=0.5, accuracy=0.5,
        samples_per_s=1, eta_s=1,
    )  # fmt: skip


def done(seq: int, attempt: int = 1) -> TrainingDone:
    return TrainingDone(
        seq=seq, job_id="j", attempt=attempt, ts=seq, test_accuracy=0.75, test_loss=0.5, epochs=1, best_epoch=1,
        stopped_early=False, train_s=1, samples_per_s=1, measured_epoch_s=1, artifact="/a\né",
        model_sha256="0" * 64,
    )  # fmt: skip


def stream(connection: Redis, key: str) -> list[dict[str, str]]:
    return [
        {str(name): str(value) for name, value in fields.items()}
        for _, fields in connection.xrange(key) or []
        if fields
    ]


def event_ids(connection: Redis, key: str) -> list[tuple[int, int]]:
    """Return (attempt, seq) of each record of a stream."""
    return [(int(record["attempt"]), int(record["seq"])) for record in stream(connection, key)]


def everything(raw: Redis) -> dict[bytes | str, bytes | None]:
    """Return all keys of Redis with their dumps."""
    return {key: raw.dump(key) for key in raw.keys()}  # noqa: SIM118 - a Redis is no dict
