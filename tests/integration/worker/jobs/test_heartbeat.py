"""Attempt heartbeat: the lease is renewed while a supervisor hashes large files, so that no other worker takes the job.

The files are sparse, and take longer to hash than the lease, which is shortened to a second.
"""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from redis import Redis

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.checkpoints.files import tensors_of
from training.checkpoints.format import CHECKPOINT, Checkpoint
from training.data import dataset_store
from training.data.dataset_info import DatasetInfo
from training.data.prepare import prepare
from training.step.train_state import TrainState
from training.system.digests import Digests
from worker.broker import fencing as fences
from worker.broker.fencing import Fence
from worker.config.settings import Settings
from worker.events.redis_sink import RedisSink
from worker.jobs import heartbeat
from worker.jobs.context import JobContext
from worker.jobs.heartbeat import AttemptHeartbeat
from worker.jobs.stages.planning import resume_points
from worker.state.control import StopSignal
from worker.state.paths import open_paths
from worker.state.spool import Spool

LEASE = 1.0
SPEC = TrainSpec(dataset="digits", model="cnn-small-valid", epochs=2, batch_size=32)


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of a second, renewed five times as often."""
    monkeypatch.setattr(fences, "LEASE_MS", int(1000 * LEASE))
    monkeypatch.setattr(heartbeat, "HEARTBEAT_INTERVAL", LEASE / 5)


@pytest.fixture(scope="module")
def size() -> int:
    """Bytes that take about three leases to hash."""
    block, digest, began = bytes(1 << 20), hashlib.sha256(), time.perf_counter()
    for _ in range(256):
        digest.update(block)
    rate = (256 << 20) / (time.perf_counter() - began)
    return int(3 * LEASE * rate)


@pytest.fixture
def context(settings: Settings, connection: Redis) -> Iterator[JobContext]:
    """Return the second attempt of a job, claimed."""
    fence = Fence(connection, "job", "owner", ttl=600, request="r")
    assert fence.claim("j", least=2).number == 2
    with closing(open_paths(settings, "job", 2)) as paths:
        spool = Spool(paths.job, "job", 2)
        events = RedisSink(fence, spool, kept=100, meta={})
        control = AttemptHeartbeat(fence, events, StopSignal(), lambda: None, timeout=None)
        yield JobContext(settings=settings, worker="w", job_id="job", attempt=2, sinks=(), paths=paths, control=control)
        spool.close()


@contextmanager
def assert_not_taken_over(connection: Redis) -> Iterator[list[float]]:
    """Have a second worker try to claim the job meanwhile; yields the seconds taken."""
    over, words, took = threading.Event(), set[str](), list[float]()

    def claim() -> None:
        while not over.wait(0.05):
            words.add(Fence(connection, "job", "second", ttl=600, request="r").claim("j").status)

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


def a_checkpoint(job: Path, info: DatasetInfo, data_sha256: str, size: int) -> Path:
    """Write a checkpoint of the first attempt, with `size` zero bytes as its tensors."""
    checkpoint = Checkpoint(
        spec=SPEC, plan=Plan(threads=1, micro_batch=32), dataset=info.name, data_sha256=data_sha256, facts={},
        course=TrainState(steps=42, step=1), tensors=("x",), tensors_bytes=size, tensors_sha256="0" * 64,
    )  # fmt: skip
    path = job / "1" / "checkpoint-000000000001.json"
    path.parent.mkdir()
    body = CHECKPOINT.dump_json(checkpoint)
    path.write_bytes(b'{"sha256":"%b","checkpoint":%b}\n' % (hashlib.sha256(body).hexdigest().encode(), body))
    with tensors_of(path).open("wb") as file:
        file.truncate(size)
    return path


@pytest.fixture
def info(settings: Settings) -> DatasetInfo:
    return prepare("digits", settings.data_dir, settings.cache_dir, download=False)


@pytest.mark.slow
def test_while_a_checkpoint_is_hashed(context: JobContext, connection: Redis, info: DatasetInfo, size: int) -> None:
    """It is damaged, which shows at its end."""
    a_checkpoint(context.paths.job, info, dataset_store.checksum(info, Digests()), size)
    with assert_not_taken_over(connection):
        assert resume_points(context, SPEC, info) == []
