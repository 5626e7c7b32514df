"""Fuzzer of messages: mutated job hashes, and every field of RQ's at its bounds, before a real worker.

Waits are real; the training is not (`stages`), so that a valid message takes milliseconds.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest
from budget import MESSAGES_S, SEED, TIMEOUT_S
from faulty_redis import Shared, Traps
from forked_worker import ForkedWorker
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer
from support.redis.garbage import RAW, all_keys

from preflight import Client
from preflight.redis import keys
from preflight.redis.server.embedded import redis_server
from preflight.wire import TrainJob
from tools.faults.hostile import Grower, Hostile
from worker.config.settings import Settings

MESSAGES: Final = 10_000
BATCH: Final = 25
DELAY_S: Final = 5.0
"""Seconds by which no message may delay the next job."""
EACH_S: Final = 0.2
"""Seconds that a message may take which turns out to be a job."""
SETTLED_S: Final = 20.0
"""Seconds in which a worker clears away what it took and need not run; the reaper looks after it in seven."""
OVER: Final = (b"finished", b"failed", b"canceled", b"stopped")


class Bench:
    """A worker and a producer of hostile messages."""

    def __init__(self, url: str, directory: Path) -> None:
        self.settings = Settings(
            redis_url=url, data_dir=directory / "data", artifact_dir=directory / "artifacts",
            cache_dir=directory / "cache", state_dir=directory / "state", report="off", log_format="text",
            log_level="error",
        )  # fmt: skip
        self.connection: Redis = Redis.from_url(url)
        self.client = Client(url)
        self.queue = Queue("preflight", connection=self.connection, serializer=JSONSerializer)
        self.tripwire = directory / "tripwire"
        self._directory = directory
        self._good = 0
        self.worker = self._new_worker()

    def _new_worker(self) -> ForkedWorker:
        return ForkedWorker(self.settings, Shared(8), self._directory, self._good, traps=Traps(), scaled=False)

    def alone(self, entry: Hostile) -> list[str]:
        """Return the problems of one message with a new worker and an empty Redis."""
        self.worker.end()
        self.connection.flushall()
        self.worker = self._new_worker()
        return self.problems([entry])

    def close(self) -> None:
        self.worker.end()
        self.connection.close()

    def problems(self, batch: list[Hostile]) -> list[str]:
        """Enqueue a batch and a plain job behind it, and return the problems."""
        for entry in batch:
            entry.put(self.connection, self.queue.key)
        self._good += 1
        job_id = f"good-{self._good}"
        self.client.enqueue(TrainJob(type="preflight.train.v1", dataset="digits", job_id=job_id))
        state, began = keys.state(job_id), time.monotonic()
        while self.connection.hget(state, "status") != b"finished":
            if not self.worker.alive():
                return [f"the worker ended: {self.worker.unexpected_exit()}\n{self.worker.log_tail()}"]
            if time.monotonic() - began > DELAY_S + EACH_S * len(batch):
                return [f"the next job waits for {time.monotonic() - began:.1f} s\n{self.worker.log_tail()}"]
            time.sleep(0.005)
        return ["what came from Redis was executed"] if self.tripwire.exists() else self._endless(batch)

    def left_behind(self) -> list[str]:
        """Return messages that still wait or run long after the last one."""
        deadline = time.monotonic() + SETTLED_S
        while found := self._waiting():
            if time.monotonic() > deadline:
                return [f"left behind: {found[:3]}"]
            time.sleep(0.05)
        return []

    def _endless(self, batch: list[Hostile]) -> list[str]:
        """Return the keys of a batch without a time to live."""
        keys_without_end = [key for key in all_keys(self.connection, "preflight:{*") if self.connection.ttl(key) == -1]
        hashes = [b"rq:job:" + entry.id for entry in batch if entry.kind == "hash" and not _kept_on_request(entry)]
        keys_without_end += [key for key in hashes if self.connection.ttl(key) == -1]
        return [f"{key[:80]!r} has no time to live" for key in keys_without_end]

    def _waiting(self) -> list[bytes]:
        queue = self.queue
        lists = (queue.key, queue.intermediate_queue_key)
        waiting = [entry for key in lists for entry in RAW.validate_python(self.connection.lrange(key, 0, -1))]
        return waiting + RAW.validate_python(self.connection.zrange(queue.started_job_registry.key, 0, -1))


def _kept_on_request(entry: Hostile) -> bool:
    """Whether the producer asked for a hash without a time to live, or marked the job as ended."""
    kept = b"-1" in (entry.fields.get(b"result_ttl"), entry.fields.get(b"failure_ttl"))
    return kept or entry.fields.get(b"status") in OVER


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with redis_server() as url:
        bench = Bench(url, tmp_path)
        yield bench
        bench.close()


@pytest.mark.timeout(TIMEOUT_S)
def test_no_message_ends_a_worker_or_delays_the_next_job(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """As many of ten thousand as the budget allows."""
    grow = Grower(Random(SEED), bench.tripwire)  # noqa: S311 - dice
    deadline, count = time.monotonic() + MESSAGES_S, 0
    while count < MESSAGES and time.monotonic() < deadline:
        batch = [grow.entry(count + number) for number in range(BATCH)]
        problems = bench.problems(batch)
        if problems:
            alone = next((f"{entry!r}\n{wrong}" for entry in batch if (wrong := bench.alone(entry))), "none alone")
            shown = f"FUZZ_SEED={SEED}, messages from {count} on: {problems[:5]}\nof these: {alone}"
            pytest.fail(shown[:6000], pytrace=False)
        count += BATCH
    assert bench.left_behind() == []
    with capsys.disabled():
        print(f"\nfuzzer of messages: FUZZ_SEED={SEED}, {count} messages", flush=True)
