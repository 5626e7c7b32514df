"""Connections whose replies are bounded, with a real Redis that holds values of many megabytes."""

import asyncio
import tracemalloc
from collections.abc import Callable

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from preflight.redis.connection import open_async_redis, open_redis
from preflight.redis.untrusted.bounded_replies import OVERSIZED, OversizedReply
from worker.web.streams.reader import XREAD_REPLY

GIANT = 48 << 20
BOUND = 4 << 20


@pytest.fixture
def giant(raw: Redis) -> Redis:
    """A Redis with a giant in a list, a hash, a set, a sorted set, a stream and a string, each beside a small value."""
    value = b"x" * GIANT
    raw.rpush("list", "before", value, "after")
    raw.hset("hash", mapping={"giant": value, "small": "1"})
    raw.sadd("set", value, "small")
    raw.zadd("zset", {value: 1, b"small": 2})
    raw.xadd("stream", {"type": "progress", "giant": value})
    raw.set("string", value)
    return raw


def in_transaction(redis: Redis) -> object:
    pipe = redis.pipeline(transaction=True)
    pipe.get("string")
    pipe.hget("hash", "small")
    return pipe.execute()


READS: dict[str, tuple[Callable[[Redis], object], object]] = {
    "list": (lambda redis: redis.lrange("list", 0, -1), [b"before", OVERSIZED, b"after"]),
    "hash": (lambda redis: redis.hmget("hash", ["giant", "small"]), [OVERSIZED, b"1"]),
    "set": (lambda redis: redis.smembers("set"), {OVERSIZED, b"small"}),
    "zset": (lambda redis: redis.zrange("zset", 0, -1, withscores=True), [(OVERSIZED, 1.0), (b"small", 2.0)]),
    "string": (lambda redis: redis.get("string"), OVERSIZED),
    "stream": (
        lambda redis: [fields for _, fields in redis.xrange("stream") or []],
        [{b"type": b"progress", b"giant": OVERSIZED}],
    ),
    "script": (
        lambda redis: redis.eval("return {redis.call('GET', KEYS[1]), 'small'}", 1, "string"), [OVERSIZED, b"small"],
    ),
    "transaction": (in_transaction, [OVERSIZED, b"1"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", READS)
def test_giants_are_dropped_while_they_arrive(giant: Redis, redis_url: str, kind: str) -> None:
    """A reader needs a few megabytes, whatever Redis holds, and its connection works on."""
    read, expected = READS[kind]
    bounded = open_redis(redis_url)
    bounded.ping()
    tracemalloc.start()
    try:
        found = read(bounded)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == expected
    assert peak < BOUND
    assert bounded.ping()
    giant.flushall()


def test_many_large_values_of_one_pipeline_share_a_budget(raw: Redis, redis_url: str) -> None:
    """400 hashes of 200 KiB are 80 MB, of which less than half is kept; the next pipeline has a budget of its own."""
    for number in range(400):
        raw.hset(f"hash-{number}", mapping={"large": b"x" * 200_000, "small": f"{number}"})
    bounded = open_redis(redis_url)
    for _ in range(2):
        pipe = bounded.pipeline(transaction=False)
        for number in range(400):
            pipe.hmget(f"hash-{number}", ["large", "small"])
        found = pipe.execute()
        assert [small for _, small in found] == [b"%d" % number for number in range(400)]
        assert 0 < sum(len(large) for large, _ in found) < 40 << 20
    raw.flushall()


def test_a_reply_of_a_million_elements_ends_the_command_but_not_the_client(raw: Redis, redis_url: str) -> None:
    raw.eval("for n = 1, 1100 do redis.call('RPUSH', KEYS[1], unpack(ARGV)) end", 1, "list", *["x"] * 1000)
    bounded = open_redis(redis_url)
    with pytest.raises(OversizedReply):
        bounded.lrange("list", 0, -1)
    assert len(bounded.lrange("list", 0, 99)) == 100
    raw.flushall()


def test_errors_come_as_from_redis_py(raw: Redis, redis_url: str) -> None:
    raw.set("text", "x")
    bounded = open_redis(redis_url)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        bounded.lrange("text", 0, -1)
    pipe = bounded.pipeline(transaction=False)
    pipe.lrange("text", 0, -1)
    pipe.get("text")
    error, value = pipe.execute(raise_on_error=False)
    assert isinstance(error, ResponseError) and value == b"x"
    raw.flushall()


def test_streams_and_lists_are_bounded_for_asyncio_too(giant: Redis, redis_url: str) -> None:
    async def read() -> tuple[object, object, object]:
        async with open_async_redis(redis_url) as bounded:
            records = await bounded.xread({"stream": "0"}, block=100)
            entries = await bounded.lrange("list", 0, -1)
            return records, entries, await bounded.xread({"stream": "$"}, block=10)

    tracemalloc.start()
    try:
        records, entries, nothing = asyncio.run(read())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    ((key, ((_, fields),)),) = XREAD_REPLY.validate_python(records)
    assert (key, fields) == (b"stream", {b"type": b"progress", b"giant": OVERSIZED})
    assert entries == [b"before", OVERSIZED, b"after"]
    assert not nothing
    assert peak < BOUND
    giant.flushall()
