"""List the jobs of a queue; the cost grows with the limit, not with the number of jobs."""

from collections.abc import Collection, Mapping
from heapq import nlargest
from typing import Final

from rq import Queue

from preflight.client.job_ids import find_job_ids, read_pages, sources_of
from preflight.client.job_state import JobRecord, read_jobs, with_requests
from preflight.client.results import PAGE_SIZE
from preflight.wire import ACTIVE_STATUSES, JobState, Status

MIN_PAGE_SIZE: Final = 50
"""Ids per source and read; a short list then needs no second read for jobs that it skips."""
MAX_PAGES: Final = 5
"""Pages of a source that one list reads."""
ORDER_FIELDS: Final = ("status", "updated_at", "rq_id")

Order = tuple[bool, float]
"""Whether a job runs, and its last update."""


def list_jobs(queue: Queue, *, limit: int, statuses: Collection[Status]) -> list[JobState]:
    """Return jobs as `Client.jobs` does."""
    found: dict[str, Order] = {}
    job_ids: dict[str, str] = {}
    size = max(limit, MIN_PAGE_SIZE)
    missing = dict.fromkeys(sources_of(queue, statuses), limit)
    for number in range(MAX_PAGES):
        pages = read_pages(queue.connection, [*missing], number, size)
        new = dict.fromkeys(rq_id for page in pages for rq_id in page.ids if job_ids.get(rq_id) not in found)
        job_ids |= find_job_ids(queue.connection, new)
        found |= _read_order(queue, {job_ids[rq_id]: rq_id for rq_id in new}, statuses)
        more = {
            source: count - sum(job_ids[rq_id] in found for rq_id in page.ids)
            for (source, count), page in zip(missing.items(), pages, strict=True) if page.entries == size
        }  # fmt: skip
        missing = {source: count for source, count in more.items() if count > 0}
        if not missing:
            break
    rq_ids = {job_id: rq_id for rq_id, job_id in job_ids.items()}
    newest = {job_id: rq_ids[job_id] for job_id in nlargest(limit, found, key=found.__getitem__)}
    records = [record for record in read_jobs(queue.connection, newest) if _matches(record, statuses)]
    return [record.state() for record in with_requests(queue.connection, records)]


def list_ids(queue: Queue, *, active: bool) -> list[str]:
    """Return up to a page of ids per source, the newest ones; `active`: queued and running jobs only."""
    pages = read_pages(queue.connection, sources_of(queue, ACTIVE_STATUSES if active else ()), 0, PAGE_SIZE)
    rq_ids = dict.fromkeys(rq_id for page in pages for rq_id in page.ids)
    return [*dict.fromkeys(find_job_ids(queue.connection, rq_ids).values())]


def _read_order(queue: Queue, ids: Mapping[str, str], statuses: Collection[Status]) -> dict[str, Order]:
    """Return the sort keys of the existing jobs of `statuses`; `ids` as for `read_jobs`."""
    records = read_jobs(queue.connection, ids, ORDER_FIELDS)
    return {
        record.job_id: (record.status == "running", record.updated_at)
        for record in records if _matches(record, statuses)
    }  # fmt: skip


def _matches(record: JobRecord, statuses: Collection[Status]) -> bool:
    return record.status != "unknown" and (not statuses or record.status in statuses)
