"""Metrics for Prometheus, of an overview."""

import pytest

from worker.web.listing.overview import Overview
from worker.web.routes.service import Snapshot, exposition


@pytest.mark.parametrize(("pace", "shown"), [(None, []), (0.0, ["0.0"]), (90.0, ["90.0"])])
def test_jobs_an_hour_have_no_sample_until_they_are_known(pace: float | None, shown: list[str]) -> None:
    overview = Overview(queue="q", depth=1, running=0, workers=(), jobs_per_hour=pace)
    lines = exposition(Snapshot(overview, totals={}, running=(), viewers=0)).decode().splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("preflight_jobs_per_hour ")] == shown
    assert "# TYPE preflight_jobs_per_hour gauge" in lines
