"""Rate limits of RQ 3 on a real Redis; older versions of RQ have none."""

import pytest
from redis import Redis
from rq import Queue

from preflight.queue.untrusted_job import fetch_job
from preflight.wire import FUNCTION
from worker.admission.rate_limits import fill_rate_limit, rate_limits
from worker.queue.maintenance.scheduler import Scheduler

rate_limit = pytest.importorskip("rq.rate_limit")

JOB = {"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}


@pytest.fixture
def limited(queue: Queue) -> Queue:
    """A queue whose limit of one lets the first of three jobs through."""
    for name in ("first", "second", "third"):
        queue.enqueue(FUNCTION, args=(JOB,), job_id=name, rate_limit=rate_limit.RateLimit("gpu", concurrency=1))
    return queue


def end(queue: Queue, name: str, status: str = "finished") -> None:
    queue.connection.lrem(queue.key, 0, name)
    queue.connection.hset(f"rq:job:{name}", "status", status)


def test_an_end_lets_the_next_job_through(raw: Redis, limited: Queue) -> None:
    """While the first one waits or runs, nothing changes."""
    assert fetch_job("first", raw).options.rate_limit == "gpu"
    for status in ("queued", "started"):
        raw.hset("rq:job:first", "status", status)
        fill_rate_limit(raw, "gpu")
        assert limited.get_job_ids() == ["first"]
    end(limited, "first")
    fill_rate_limit(raw, "gpu")
    assert limited.get_job_ids() == ["second"]
    assert fetch_job("second", raw).status == "queued"


def test_a_job_that_still_runs_keeps_its_slot(raw: Redis, limited: Queue) -> None:
    """It was cancelled, but its execution lives."""
    end(limited, "first", "canceled")
    raw.zadd("rq:executions:first", {"e": 2**40})
    fill_rate_limit(raw, "gpu")
    assert limited.get_job_ids() == []


def test_the_scheduler_frees_slots_that_leaked(raw: Redis, limited: Queue) -> None:
    """A job that was deleted; at the end RQ's keys of the limit are gone."""
    assert rate_limits(raw) == [b"gpu"]
    raw.delete("rq:job:first", "rq:job:second")
    limited.empty()
    Scheduler(raw, limited, "me").step()
    assert limited.get_job_ids() == ["third"]
    end(limited, "third")
    Scheduler(raw, limited, "me").step()
    assert (rate_limits(raw), raw.keys("rq:rl:*")) == ([], [])


def test_a_scheduled_job_waits_for_a_slot_when_it_is_due(raw: Redis, limited: Queue) -> None:
    raw.hset("rq:job:later", mapping={"status": "scheduled", "origin": "preflight", "rate_limit_key": "gpu",
                                      "rate_limit_concurrency": 1})  # fmt: skip
    raw.zadd(limited.scheduled_job_registry.key, {"later": 1})
    Scheduler(raw, limited, "me").step()
    assert limited.get_job_ids() == ["first"]
    for name in ("first", "second", "third"):
        end(limited, name)
        fill_rate_limit(raw, "gpu")
    assert limited.get_job_ids() == ["later"]


@pytest.mark.parametrize("key", ["rq:rl:gpu", "rq:rl:gpu:allowed", "rq:rl:gpu:rate_limited"])
def test_a_key_of_a_wrong_type_harms_its_limit_only(raw: Redis, limited: Queue, key: str) -> None:
    end(limited, "first")
    raw.delete(key)
    raw.set(key, "x")
    fill_rate_limit(raw, "gpu")
    Scheduler(raw, limited, "me").step()
    assert limited.get_job_ids() == []
