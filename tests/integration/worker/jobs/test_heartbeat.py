"""Whatever a supervisor hashes for long, the lease of its attempt is renewed meanwhile: nobody else takes the job.

The files are sparse and large, so that hashing them takes longer than the lease; the lease is shortened to a second.
"""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis
from services import digits_job

from training.artifacts.publish import MODEL, save
from training.checkpoints.format import CHECKPOINT, Checkpoint, tensors_of
from training.config.plan import Plan
from training.config.spec import TrainSpec
from training.data import dataset_store as store
from training.data.dataset_store import StoreInfo
from training.data.prepare import prepare
from training.loop.train_state import Course
from training.system.digests import Digests
from worker.broker import fencing as fences
from worker.broker.fencing import Fence
from worker.config.settings import Settings
from worker.events.redis_sink import RedisSink
from worker.events.spool import Spool
from worker.jobs import heartbeat as jobs
from worker.jobs.heartbeat import AttemptWatch
from worker.jobs.paths import places
from worker.jobs.pipeline import Run

LEASE = 1.0
SPEC = TrainSpec(dataset="digits", model="cnn-small", epochs=2, batch_size=32)


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of a second, renewed five times as often as it ends."""
    monkeypatch.setattr(fences, "LEASE_MS", int(1000 * LEASE))
    monkeypatch.setattr(jobs, "BEAT_EVERY", LEASE / 5)


@pytest.fixture(scope="module")
def long_bytes() -> int:
    """Bytes that take this machine some three leases to hash."""
    block, digest, began = bytes(1 << 20), hashlib.sha256(), time.perf_counter()
    for _ in range(256):
        digest.update(block)
    rate = (256 << 20) / (time.perf_counter() - began)
    return int(3 * LEASE * rate)


@pytest.fixture
def run(settings: Settings, connection: Redis) -> Iterator[Run]:
    """Return the second attempt of a job, claimed and watched as a supervisor does."""
    fence = Fence(connection, "job", "owner", ttl=600, request="r")
    assert fence.claim("j", least=2).number == 2
    with closing(places(settings, "job", 2)) as where:
        spool = Spool(where.job, "job", 2)
        watch = AttemptWatch(
            fence, RedisSink(fence, spool, "rq:job:job", kept=100, meta={}), lambda: False, lambda: None, timeout=None
        )
        yield Run(settings=settings, worker="w", job_id="job", attempt=2, sinks=(), places=where, watch=watch)
        spool.close()


@contextmanager
def nobody_takes_over(connection: Redis) -> Iterator[list[float]]:
    """Have a second worker try to claim the job all the while; yields the seconds that it took."""
    over, words, took = threading.Event(), set[str](), list[float]()

    def claim() -> None:
        while not over.wait(0.05):
            words.add(Fence(connection, "job", "second", ttl=600, request="r").claim("j").word)

    second = threading.Thread(target=claim)
    second.start()
    began = time.monotonic()
    try:
        yield took
        took.append(time.monotonic() - began)
    finally:
        over.set()
        second.join()
    assert words == {"busy"}
    assert took[0] > 1.5 * LEASE


def a_checkpoint(job: Path, info: StoreInfo, data_sha256: str, size: int) -> Path:
    """Leave a checkpoint of the first attempt; its tensors are `size` zero bytes, which is not what it vouches for."""
    checkpoint = Checkpoint(
        spec=SPEC, plan=Plan(threads=1, micro_batch=32), dataset=info.name, data_sha256=data_sha256, facts={},
        course=Course(steps=42, step=1), tensors=("x",), tensors_bytes=size, tensors_sha256="0" * 64,
    )  # fmt: skip
    path = job / "1" / "checkpoint-000000000001.json"
    path.parent.mkdir()
    body = CHECKPOINT.dump_json(checkpoint)
    path.write_bytes(b'{"sha256":"%b","checkpoint":%b}\n' % (hashlib.sha256(body).hexdigest().encode(), body))
    with tensors_of(path).open("wb") as file:
        file.truncate(size)
    return path


@pytest.fixture
def info(settings: Settings) -> StoreInfo:
    """A prepared data set."""
    return prepare("digits", settings.data_dir, settings.cache_dir, download=False)


def test_while_a_large_checkpoint_is_verified(run: Run, connection: Redis, info: StoreInfo, long_bytes: int) -> None:
    """It is damaged, which is found at its end only."""
    a_checkpoint(run.places.job, info, store.checksum(info, Digests()), long_bytes)
    with nobody_takes_over(connection):
        assert run._found(SPEC, info) == []


def test_while_a_large_data_set_is_hashed(
    run: Run, connection: Redis, info: StoreInfo, long_bytes: int, tmp_path: Path
) -> None:
    """To see whether the checkpoint is of these very data."""
    a_checkpoint(run.places.job, info, "0" * 64, 10)
    large = tmp_path / "large.safetensors"
    large.write_bytes(info.path.read_bytes())
    with large.open("r+b") as file:
        file.truncate(long_bytes)
    with nobody_takes_over(connection):
        assert run._found(SPEC, replace(info, path=large)) == []


def test_while_a_large_model_is_looked_at(run: Run, connection: Redis, long_bytes: int) -> None:
    """Of an attempt that may have published it before it died; this one is damaged."""
    save(run.places.artifact, b"x", {"job_id": "job", "attempt": 1})
    with (run.places.artifact / MODEL).open("r+b") as file:
        file.truncate(long_bytes)
    with nobody_takes_over(connection):
        assert run.adopted(digits_job(job_id="job")) is None
