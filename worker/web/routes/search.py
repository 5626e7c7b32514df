"""Search: jobs by field and value, sorted, in pages; comparison of a few of them."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

from fastapi import FastAPI, Query
from redis import Redis

from preflight import Client
from preflight.client.job_state import JobRecord, read_jobs, with_requests
from preflight.client.notes import Notes, read_notes
from preflight.wire import Count, JobState, Status
from worker.web.listing.comparison import compare
from worker.web.listing.fields import FIELDS
from worker.web.listing.grammar import MAX_LENGTH, parse_order, parse_search
from worker.web.listing.indexer import Indexer
from worker.web.listing.models import Comparison
from worker.web.listing.snapshot import MAX_JOBS
from worker.web.models import ApiModel
from worker.web.routes.errors import problems
from worker.web.routes.jobs import require_job
from worker.web.routes.reads import Slots, TtlCache

MAX_PAGE: Final = 200
"""Jobs in one response."""
SEARCH_THREADS: Final = 1
"""One thread: the index has one lock, and a search has a time limit."""
MAX_WAITING: Final = 16
MAX_COMPARED: Final = 5
COMPARE_THREADS: Final = 1
ORDER: Final = rf"^(-?({'|'.join(FIELDS)}))?$"


class ListedJob(JobState):
    """State of a job in a list."""

    position: Count | None = None
    """Number of jobs before it in the queue."""
    note: str | None = None
    tags: tuple[str, ...] | None = None


class SearchResult(ApiModel):
    """A page of the jobs that match a search, and the numbers of jobs at the same moment."""

    jobs: tuple[ListedJob, ...]
    matching: Mapping[Status, Count]
    """Status -> number of matching jobs, also of those statuses that were not asked for."""
    counts: Mapping[Status, Count]
    """Status -> number of all jobs."""
    complete: bool
    """Whether all jobs were searched; false while the service reads them for the first time."""
    most: Count = MAX_JOBS
    """Jobs of each of RQ's registries that are searched: the newest, and of the queue the next to run."""


Question = tuple[str, frozenset[Status], str, int, int]
"""Search, statuses, order, offset and limit."""


class SearchRoutes:
    """The routes /v1/search and /v1/compare."""

    def __init__(self, client: Client, redis: Redis, indexer: Indexer) -> None:
        self._client = client
        self._redis = redis
        self._indexer = indexer
        self._found = TtlCache(self._search)
        self._slots = Slots(SEARCH_THREADS, MAX_WAITING)
        self._comparisons = Slots(COMPARE_THREADS, MAX_WAITING)

    def register(self, app: FastAPI) -> None:
        """Add the routes to `app`."""
        app.get("/v1/search", response_model_exclude_none=True, tags=["jobs"], responses=problems(422, 429))(
            self.search
        )
        app.get("/v1/compare", response_model_exclude_none=True, tags=["jobs"], responses=problems(404, 422, 429))(
            self.compare
        )

    async def search(
        self,
        q: Annotated[
            str, Query(max_length=MAX_LENGTH, description="`cnn accuracy>0.99`; see docs/reference/http.md")
        ] = "",
        status: Annotated[list[Status] | None, Query(description="only these")] = None,
        sort: Annotated[str, Query(pattern=ORDER, description="a field; `-` before it: descending")] = "",
        offset: Annotated[int, Query(ge=0, le=10 * MAX_JOBS)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    ) -> SearchResult:
        """Search jobs, without an order running ones first, then the others, newest first."""
        question = q, frozenset(status or ()), sort, offset, limit
        return await self._slots.run(partial(self._found.get, question))

    async def compare(self, job: Annotated[list[str], Query(min_length=1, max_length=MAX_COMPARED)]) -> Comparison:
        """Return settings, results, plans and curves of up to five jobs."""
        return await self._comparisons.run(lambda: self._compare(job))

    def _search(self, question: Question) -> SearchResult:
        q, statuses, sort, offset, limit = question
        conditions, order = parse_search(q), parse_order(sort)
        index = self._indexer.refresh()
        found = self._indexer.table.find(conditions, statuses, order, offset=offset, limit=limit)
        records = with_requests(self._redis, read_jobs(self._redis, found.ids))
        notes = read_notes(self._redis, [record.job_id for record in records])
        return SearchResult(
            jobs=tuple(
                _listed(record, index.positions, notes.get(record.job_id))
                for record in records if record.status != "unknown"
            ),
            matching=found.matching, counts=index.counts, complete=index.complete,
        )  # fmt: skip

    def _compare(self, job: list[str]) -> Comparison:
        states = {state.job_id: state for state in (require_job(self._client, job_id) for job_id in job)}
        return compare(self._client, self._redis, [*states.values()])


def _listed(record: JobRecord, positions: Mapping[str, int], notes: Notes | None) -> ListedJob:
    position = positions.get(record.rq_id) if record.status == "queued" else None
    note, tags = (None, None) if notes is None else (notes.note or None, notes.tags or None)
    return ListedJob(**record.state().model_dump(exclude_none=True), position=position, note=note, tags=tags)
