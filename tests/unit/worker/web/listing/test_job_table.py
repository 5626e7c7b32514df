"""The index of jobs: searches and estimates within their time."""

from dataclasses import dataclass

import pytest

from worker.web.listing import table
from worker.web.listing.fields import COLUMNS, Row
from worker.web.listing.grammar import parse_order, parse_search
from worker.web.listing.table import Ended, JobTable, TooSlow


@dataclass(frozen=True)
class Filled:
    table: JobTable
    jobs: int = 20_000


@pytest.fixture
def filled() -> Filled:
    """A table with finished jobs of one kind."""
    found = Filled(JobTable())
    same: Row = {"status": "finished", "running": False, "model": "cnn", "dataset": "mnist@2", "started": 0.0}
    rows: list[Row] = [
        {**dict.fromkeys(COLUMNS), **same, "job_id": str(number), "member": str(number), "words": str(number),
         "updated": float(number), "epochs": 3.0}
        for number in range(found.jobs)
    ]  # fmt: skip
    found.table.put({str(row["job_id"]): str(row["job_id"]) for row in rows}, rows)
    return found


def test_earlier_jobs_are_found_in_every_version_of_the_data(filled: Filled) -> None:
    """The newest ones first."""
    found = filled.table.finished_like("mnist", "cnn", None, 2)
    assert found == [Ended(filled.jobs - number, None, 3.0) for number in (1, 2)]
    assert filled.table.finished_like("mnist", "cnn", "fast", 2) == []


def test_an_estimate_that_takes_too_long_is_none(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form has no field `q` that could be corrected, as a search has."""
    monkeypatch.setattr(table, "SEARCH_SECONDS", -1.0)
    assert filled.table.finished_like("mnist", "cnn", None, 20) == []
    with pytest.raises(TooSlow) as refused:
        filled.table.find(parse_search("nobody"), (), parse_order(""), offset=0, limit=1)
    assert refused.value.field == "q"
