"""Unfinished searches: noted, counted, bounded, and gone where they can serve no more."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.calibration.findings import FINDING, OWN, TCMALLOC, doubtful

from calibration.cache.lock import calibration_lock, idle_lock, job_calibrates
from calibration.cache.plan_cache import PlanCache
from calibration.cache.trial_log import TrialLog
from calibration.cache.unfinished import (
    MAX_SEARCHES,
    MAX_TRIES,
    SCHEMA,
    UnfinishedSearch,
    UnfinishedSearches,
    is_cut_short,
)
from calibration.choose import IDLE_WHY, _is_as_good
from preflight.contract.spec import TrainSpec

SPEC = TrainSpec(dataset="digits", model="cnn", batch_size=32, epochs=2)


def search(key: str = "a", age_s: float = 0.0) -> UnfinishedSearch:
    """Return a search that was noted `age_s` seconds ago."""
    return UnfinishedSearch(
        schema=SCHEMA, key=key, trials_key="t", created=time.time() - age_s, spec=SPEC, own=OWN,
        store=Path("/data/digits"), samples=None, seconds=45.0, knobs=("threads",), peak_bytes=1 << 20,
    )  # fmt: skip


@pytest.fixture
def searches(tmp_path: Path) -> UnfinishedSearches:
    """Searches of an empty cache."""
    return UnfinishedSearches(tmp_path)


def test_the_newest_goes_on_first(searches: UnfinishedSearches) -> None:
    """Its workload is the likeliest to come again."""
    first, second = search("a", age_s=60), search("b")
    for each in (second, first):
        searches.add(each)
    assert searches.waiting() == [second, first]
    searches.remove(second)
    assert searches.waiting() == [first]


def test_only_so_many_are_kept(searches: UnfinishedSearches) -> None:
    for number in range(MAX_SEARCHES + 3):
        searches.add(search(f"{number}", age_s=1000 - number))
    kept = [each.key for each in searches.waiting()]
    assert kept == [f"{number}" for number in range(MAX_SEARCHES + 2, 2, -1)]


def test_none_is_tried_for_ever(searches: UnfinishedSearches) -> None:
    """A try that was stopped for a job does not count."""
    searches.add(search())
    for tries in range(MAX_TRIES):
        (waiting,) = searches.waiting()
        assert waiting.tries == tries
        searches.begin(waiting)
        searches.excuse(waiting)
        assert searches.waiting() == [waiting]
        searches.begin(waiting)
    assert searches.waiting() == []
    searches.excuse(search())
    assert searches.waiting() == []  # what is done, or given up, does not come back


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": "preflight.unfinished.v0"}', b"\xff" * 100_000])
def test_what_cannot_serve_is_deleted(searches: UnfinishedSearches, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "unfinished" / "a.json"
    path.parent.mkdir()
    path.write_bytes(content)
    assert searches.waiting() == []
    assert not path.exists()


@pytest.mark.parametrize("age_s", [8 * 86_400, -3600])
def test_an_old_one_is_deleted(searches: UnfinishedSearches, age_s: float) -> None:
    searches.add(search(age_s=age_s))
    assert searches.waiting() == []


def test_a_file_under_another_name_is_none(searches: UnfinishedSearches, tmp_path: Path) -> None:
    searches.add(search("a"))
    (tmp_path / "unfinished" / "a.json").rename(tmp_path / "unfinished" / "b.json")
    assert searches.waiting() == []


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "unfinished").write_text("in the way")
    searches = UnfinishedSearches(tmp_path)
    searches.add(search())
    assert searches.waiting() == []
    with pytest.raises(OSError, match="exists"):
        searches.begin(search())  # nothing is begun that cannot be counted


def test_clearing_the_cache_forgets_them(searches: UnfinishedSearches, tmp_path: Path) -> None:
    searches.add(search("abc"))
    assert PlanCache(tmp_path).keys() == ["abc"]
    assert PlanCache(tmp_path).clear() == 1
    assert searches.waiting() == []


def test_a_killed_search_leaves_no_suspicion(searches: UnfinishedSearches, tmp_path: Path) -> None:
    """The plan that was being measured did not kill it."""
    path = tmp_path / "trials" / "t.jsonl"
    if os.fork() == 0:
        TrialLog(path).attempt(TCMALLOC)
        os._exit(9)
    os.wait()
    assert TrialLog(path).crashed_before(TCMALLOC)
    if os.fork() == 0:
        TrialLog(path, reuse=True).mark_ok(TCMALLOC)
        TrialLog(path).attempt(TCMALLOC)
        os._exit(9)
    os.wait()
    searches.end_attempts(search())
    assert not TrialLog(path).crashed_before(TCMALLOC)


def test_what_was_left_out_is_cut_short() -> None:
    assert not is_cut_short(FINDING)  # what cannot gain was skipped
    assert is_cut_short(replace(FINDING, searched_epochs=3))
    assert is_cut_short(replace(FINDING, cut_short=True))
    assert is_cut_short(replace(FINDING, confidence="low"))


def test_a_doubtful_finding_replaces_none_that_is_sure() -> None:
    assert _is_as_good(FINDING, doubtful())
    assert not _is_as_good(doubtful(), FINDING)
    assert FINDING.memory is not None
    less = replace(FINDING, memory=replace(FINDING.memory, max_feasible=64))
    assert not _is_as_good(less, FINDING)  # made in less memory than a job has
    assert _is_as_good(FINDING, less)
    more = replace(FINDING, memory=replace(FINDING.memory, max_feasible=512))
    assert _is_as_good(FINDING, more)  # its plan would have fitted
    assert "queue was empty" in IDLE_WHY


def test_one_calibration_of_idle_time_at_once_and_none_beside_a_job(tmp_path: Path) -> None:
    with idle_lock(tmp_path) as first, idle_lock(tmp_path) as second:
        assert (first, second) == (True, False)
    with calibration_lock(tmp_path, lambda: None, 0.0) as had:
        assert had
        assert job_calibrates(tmp_path)
        with idle_lock(tmp_path) as idle:
            assert not idle
    assert not job_calibrates(tmp_path)


def test_a_job_waits_for_the_end_of_idle_time(tmp_path: Path) -> None:
    """And has idle time end: that sees the job's lock while it waits."""
    idle = idle_lock(tmp_path)
    assert idle.__enter__()
    seen: list[bool] = []

    def tick() -> None:
        seen.append(job_calibrates(tmp_path))
        idle.__exit__(None, None, None)

    with calibration_lock(tmp_path, tick, 0.0) as had:
        assert had
    assert seen == [True]
