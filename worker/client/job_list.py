"""List the jobs of a queue; the cost grows with the limit, not with the number of jobs."""

from collections.abc import Collection, Sequence
from heapq import nlargest
from typing import Final

from rq import Queue

from worker.client.job_state import JobRecord, read_jobs
from worker.client.results import PAGE_SIZE
from worker.client.rq_ids import read_pages, sources_of
from worker.wire import ACTIVE_STATUSES, JobState, Status

MIN_PAGE_SIZE: Final = 50
"""Ids per source and read; a short list then needs no second read for jobs that it skips."""
MAX_PAGES: Final = 5
"""Pages of a source that one list reads."""
ORDER_FIELDS: Final = ("status", "updated_at")

Order = tuple[bool, float]
"""Whether a job runs, and its last update."""


def list_jobs(queue: Queue, *, limit: int, statuses: Collection[Status]) -> list[JobState]:
    """Return jobs as `Client.jobs` does."""
    found: dict[str, Order] = {}
    size = max(limit, MIN_PAGE_SIZE)
    missing = dict.fromkeys(sources_of(queue, statuses), limit)
    for number in range(MAX_PAGES):
        pages = read_pages(queue.connection, [*missing], number, size)
        ids = dict.fromkeys(job_id for page in pages for job_id in page.ids if job_id not in found)
        found |= _read_order(queue, [*ids], statuses)
        more = {
            source: count - sum(job_id in found for job_id in page.ids)
            for (source, count), page in zip(missing.items(), pages, strict=True) if page.entries == size
        }  # fmt: skip
        missing = {source: count for source, count in more.items() if count > 0}
        if not missing:
            break
    newest = nlargest(limit, found, key=found.__getitem__)
    return [record.state() for record in read_jobs(queue.connection, newest) if _matches(record, statuses)]


def list_ids(queue: Queue, *, active: bool) -> list[str]:
    """Return up to a page of ids per source, the newest ones; `active`: queued and running jobs only."""
    pages = read_pages(queue.connection, sources_of(queue, ACTIVE_STATUSES if active else ()), 0, PAGE_SIZE)
    return [*dict.fromkeys(job_id for page in pages for job_id in page.ids)]


def _read_order(queue: Queue, ids: Sequence[str], statuses: Collection[Status]) -> dict[str, Order]:
    """Return the sort keys of the existing jobs of `statuses`."""
    records = read_jobs(queue.connection, ids, ORDER_FIELDS)
    return {
        record.job_id: (record.status == "running", record.updated_at)
        for record in records if _matches(record, statuses)
    }  # fmt: skip


def _matches(record: JobRecord, statuses: Collection[Status]) -> bool:
    return record.status != "unknown" and (not statuses or record.status in statuses)
