"""Pages of older events, read from Redis in pieces and shared by viewers that begin at the same record."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from preflight.client.results import PAGE_SIZE
from preflight.redis import keys
from worker.web.streams.stream_record import (
    MIN_ID,
    RAW_RECORDS,
    RecordId,
    StreamRecord,
    UnreadableStream,
    format_id,
    is_unreadable,
    parse_id,
    parse_records,
)
from worker.web.streams.subscription import Chunk, Subscription

MAX_PAGE_RECORDS: Final = 100
MAX_CHUNK_BYTES: Final = 64 * 1024
MAX_CACHE_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of the pages of all jobs together."""
MAX_CONCURRENT_READS: Final = 4
"""Bounds the memory that a thousand viewers take; redis-py also raises when more than a hundred read at once."""
RETRY_SECONDS: Final = 0.5
"""Wait between two attempts while Redis is away."""
Key = tuple[str, RecordId, int]
"""Job, the record that a chunk follows, and how many events share a point in it."""
CURVE_EVENTS: Final = frozenset({"progress", "epoch_done", "checkpoint_saved"})
"""Types of events of which only curves need more than the newest."""
MAX_POINTS: Final = 300
"""Most events of each of these types; a chart is about as many pixels wide."""


def stride_of(past: int) -> int:
    """Return how many events of the past share a point: a power of two, so that viewers share what was read."""
    return 1 << max(0, -(-past // MAX_POINTS) - 1).bit_length()


def thin(records: Sequence[StreamRecord], stride: int) -> Sequence[StreamRecord]:
    """Return the last of each type of curve event in each `stride` sequence numbers, and all other records.

    Progress with more memory in use than all before it stays, too.
    """
    if stride == 1:
        return records
    kept: dict[tuple[int, str, int], StreamRecord] = {}
    most = 0
    for record in records:
        attempt, number = record.number
        stays = record.type not in CURVE_EVENTS or record.used_memory_mib > most
        most = max(most, record.used_memory_mib)
        kept[attempt, record.type, -number if stays else number // stride] = record
    return sorted(kept.values(), key=lambda record: record.id)


class Pages:
    """Least-recently-used cache of chunks, by job, the record that they follow, and how much is left out of them."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._reads = asyncio.Semaphore(MAX_CONCURRENT_READS)
        self._chunks: OrderedDict[Key, Chunk] = OrderedDict()
        self._size = 0

    async def get(self, subscription: Subscription, after: RecordId, stride: int) -> Chunk | None:
        """Return events after a record that is before the tail, thinned; None after a pause where Redis is away.

        Raises:
            UnreadableStream: the key is no stream any more.
        """
        key = subscription.job_id, after, stride
        if (cached := self._find(key)) is not None:
            return cached
        async with self._reads:
            if (cached := self._find(key)) is not None:  # another viewer has read it meanwhile
                return cached
            try:
                return await self._load(subscription, after, stride)
            except RedisError as error:
                if is_unreadable(error):
                    raise UnreadableStream(subscription.job_id) from error
        await asyncio.sleep(RETRY_SECONDS)
        return None

    async def stride(self, job_id: str) -> int:
        """Return how thin the past of a job is sent to charts; raises `RedisError`."""
        return stride_of(int(await self._redis.xlen(keys.events(job_id))))

    def drop(self, job_id: str) -> None:
        """Drop the pages of a job."""
        for key in [key for key in self._chunks if key[0] == job_id]:
            self._remove(key)

    def _find(self, key: Key) -> Chunk | None:
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._chunks.move_to_end(key)
        return chunk

    async def _load(self, subscription: Subscription, after: RecordId, stride: int) -> Chunk:
        job_id, start = subscription.job_id, subscription.start
        raw = RAW_RECORDS.validate_python(
            await self._redis.xrange(keys.events(job_id), f"({format_id(after)}", count=MAX_PAGE_RECORDS) or []
        )
        records = parse_records(raw)
        if records and after == MIN_ID:
            records[:0] = await self._lifecycle_before(records[0], job_id)
        sent, size = 0, 0
        while sent < len(records) and size < MAX_CHUNK_BYTES:
            size += len(records[sent].text)
            sent += 1
        if sent < len(records):
            last = records[sent - 1].id
        elif len(raw) == MAX_PAGE_RECORDS:
            last = parse_id(raw[-1][0].decode())
        else:  # everything up to the tail, also where the stream was trimmed and ends before it
            last = max([start, *(parse_id(record_id.decode()) for record_id, _ in raw[-1:])])
        chunk = Chunk(last, b"".join(record.text for record in thin(records[:sent], stride)))
        if chunk.text:
            self._store((job_id, after, stride), chunk)
        return chunk

    async def _lifecycle_before(self, first: StreamRecord, job_id: str) -> list[StreamRecord]:
        """Return lifecycle events that the trimmed stream has lost: their own stream is never trimmed."""
        try:
            raw = RAW_RECORDS.validate_python(await self._redis.xrange(keys.lifecycle(job_id), count=PAGE_SIZE) or [])
        except RedisError as error:
            if is_unreadable(error):
                return []
            raise
        return [record for record in parse_records(raw) if record.number < first.number and record.id < first.id]

    def _store(self, key: Key, chunk: Chunk) -> None:
        self._remove(key)
        self._chunks[key] = chunk
        self._size += len(chunk.text)
        while self._size > MAX_CACHE_BYTES:
            self._remove(next(iter(self._chunks)))

    def _remove(self, key: Key) -> None:
        chunk = self._chunks.pop(key, None)
        self._size -= 0 if chunk is None else len(chunk.text)
