"""Every key of the table, corrupted in every way: no worker ends, and the next plain job finishes.

The storms do so in any order and at any moment; here each key has its turn, so that none is without.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_redis import Fault
from redis import Redis
from support.redis.garbage import VALUES, corrupt
from support.worker.services import wait_until
from world import FUZZED, World

from preflight.redis import keys
from preflight.redis.keys import KEYS, Key
from preflight.redis.server.embedded import redis_server

WAYS = (1, 3, 5, 7, 9, 11, 13, 15, 17, *range(0, 2 * len(VALUES), 2))
"""Each other type, a string for a year, a flood; then each value in a key of the right type."""


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with redis_server() as url:
        yield url


def names_of(row: Key, world: World) -> Iterator[bytes]:
    """Yield the key for a job, a worker and so on that are there."""
    found = [name for name in world._names() if keys.kind_of(name.decode()) == row]
    assert found, row
    yield from found[:6]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("row", FUZZED, ids=lambda row: row.name)
def test_no_key_ends_a_worker_or_stops_the_next_job(row: Key, redis_url: str, tmp_path: Path) -> None:
    world = World(redis_url, tmp_path / "world")
    try:
        world.enqueue("finish late", ensure=False)
        world.start_worker("worker", Fault.NONE)
        wait_until(lambda: bool(world.runs()), 20)
        for way in WAYS:
            for name in names_of(row, world):
                world.note(f"{name!r}: {corrupt(world.connection, name, way)}")
            world.sleep(0.03)
        for job in world.jobs.values():
            job.corrupted = True
        assert world.drain() == [], "\n".join(world.history)
    finally:
        world.close()


def test_every_key_of_the_table_has_its_fuzz() -> None:
    left_out = [row.name for row in KEYS if row not in FUZZED]
    assert left_out == ["rq:suspended", "rq:pubsub:{worker}"]


def test_no_corruption_is_none(redis_url: str) -> None:
    """Each way changes what is there."""
    redis = Redis.from_url(redis_url)
    for way in WAYS:
        redis.flushall()
        redis.hset("key", "a", "b")
        before = redis.dump("key")
        assert corrupt(redis, b"key", way) != "refused"
        assert redis.dump("key") != before, way
