"""`GET /v1/search` and the index behind it, against a real Redis."""

import time
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from redis import Redis
from rq import Queue
from support.redis.listed_jobs import fill
from support.web.service import Answer, Service
from support.worker.services import StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from worker.state.supervision import Supervisor
from worker.web.listing.indexer import Indexer


@pytest.fixture
def indexer(queue: Queue) -> Iterator[Indexer]:
    found, supervisor = Indexer(queue), Supervisor()
    found.start(supervisor)
    yield found
    supervisor.close()
    found.close()


def search(service: Service, **parameters: object) -> Answer:
    return service.ask("GET", f"/v1/search?{urlencode(parameters, doseq=True)}")


def ids(answer: Answer) -> list[object]:
    assert answer.status == 200, answer.body
    jobs = answer["jobs"]
    assert isinstance(jobs, list)
    return [job["job_id"] for job in jobs]


def total(indexer: Indexer) -> int:
    """Compare the index with the registries, and return its number of jobs."""
    time.sleep(0.51)  # an index that was just compared is not compared again
    return sum(indexer.refresh().counts.values())


def test_jobs_are_found_sorted_and_paged(service: Service, raw: Redis) -> None:
    fill(raw, 300)
    best, slow = (text(found) for found in raw.zrange("rq:finished:preflight", 0, 1))
    raw.hset(
        keys.state(best), mapping={"test_accuracy": 0.999, "model": "resnet18", "batch_size": 64, "recipe": "best"}
    )
    raw.hset(keys.state(slow), "started_at", time.time() - 86_400)
    every = search(service, limit=200)
    counts = every["counts"]
    assert isinstance(counts, dict)
    assert every["matching"] == counts
    assert sum(counts.values()) == 300
    assert every["complete"] is True
    assert ids(search(service, limit=200, offset=200)) != ids(every)
    assert len({*ids(every), *ids(search(service, limit=200, offset=200))}) == 300
    assert ids(search(service, q="model:resnet accuracy>99.5% batch_size=64 recipe=best")) == [best]
    assert ids(search(service, sort="-accuracy", limit=1)) == [best]
    assert ids(search(service, q="took>1h status:finished")) == [slow]
    assert ids(search(service, sort="-took", limit=1)) == [slow]
    assert ids(search(service, q=best)) == [best]
    failed = search(service, status="failed", q="model:cnn", limit=200)
    assert len(ids(failed)) == counts["failed"]
    assert ids(search(service, q="<script>alert(1)</script>")) == []


def test_a_wrong_search_is_one_sentence(service: Service) -> None:
    for name, value in (
        ("q", "modle:cnn"), ("q", "accuracy>high"), ("sort", "job_id; DROP TABLE jobs"), ("limit", 0),
        ("status", "asleep"), ("q", "x" * 300),
    ):  # fmt: skip
        refused = search(service, **{name: value})
        assert (refused.status, refused["reason"], refused["field"]) == (422, "invalid_config", name)


def test_a_queued_job_has_its_place(service: Service, client: Client) -> None:
    for number in range(3):
        client.enqueue(digits_job(job_id=f"job-{number}"))
    jobs = search(service, sort="id")["jobs"]
    assert isinstance(jobs, list)
    assert [job["position"] for job in jobs] == [0, 1, 2]
    assert {(job["model"], job["dataset"]) for job in jobs} == {("small", "digits")}
    assert len(ids(search(service, q="model:small dataset:digits batch_size=32"))) == 3
    assert service.ask("GET", "/v1/jobs/job-2")["position"] == 2


def test_the_index_follows_the_registries(indexer: Indexer, client: Client, raw: Redis, queue: Queue) -> None:
    """Jobs that are enqueued, cancelled, deleted or expire; that never expire; and a Redis that lost its data."""
    client.enqueue(digits_job(job_id="one"))
    client.enqueue(digits_job(job_id="two"))
    assert indexer.refresh().counts == {"queued": 2}
    client.cancel("one")
    assert total(indexer) == 2
    assert indexer.refresh().counts == {"queued": 1, "cancelled": 1}
    for job_id, score in (
        ("soon", time.time() + 2),
        ("never", float("inf")),
        ("also", -1),
        ("later", time.time() + 60),
    ):
        raw.hset(keys.rq_job(job_id), mapping={"status": "finished", "created_at": "2026-01-01T00:00:00Z"})
        raw.zadd("rq:finished:preflight", {job_id: score})
    assert total(indexer) == 6
    wait_until(lambda: total(indexer) == 5)  # `soon` has expired, though no worker has cleaned the registry
    raw.zrem("rq:finished:preflight", "never", "later")
    assert total(indexer) == 3
    raw.delete(queue.key)
    assert total(indexer) == 2
    raw.flushall()
    assert total(indexer) == 0


def test_a_job_that_rq_has_under_several_ids_is_one(indexer: Indexer, raw: Redis) -> None:
    for rq_id in ("theirs", "again"):
        raw.hset(keys.rq_job(rq_id), "status", "finished")
        raw.zadd("rq:finished:preflight", {rq_id: time.time() + 60})
        raw.set(keys.alias(rq_id), "mine")
    raw.hset(keys.state("mine"), mapping={"status": "finished", "rq_id": "again", "attempt": 1, "updated_at": 1})
    assert indexer.refresh().counts == {"finished": 1}
    raw.zrem("rq:finished:preflight", "again")
    assert total(indexer) == 1
    raw.zrem("rq:finished:preflight", "theirs")
    assert total(indexer) == 0


def test_keys_of_another_type_stop_no_search(service: Service, client: Client, raw: Redis) -> None:
    client.enqueue(digits_job(job_id="there"))
    for name in ("finished", "failed", "wip", "scheduled"):
        raw.set(f"rq:{name}:preflight", "no registry")
    raw.set(keys.state("there"), "no hash")
    assert ids(search(service)) == ["there"]


@pytest.mark.covers_children
def test_a_job_is_found_by_what_it_was_run_with(service: Service, client: Client, start_worker: StartWorker) -> None:
    """From a real worker: model, batch size, result."""
    client.enqueue(digits_job(job_id="real", epochs=1))
    start_worker("--burst")
    wait_for(client, "real")
    wait_until(lambda: ids(search(service, q="dataset:digits batch_size:32 accuracy>0.1 took<10m")) == ["real"])


def text(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def test_an_index_whose_thread_ends_is_not_complete_and_goes_on(
    queue: Queue, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said so for ever, with the jobs of that moment."""
    client.enqueue(digits_job(job_id="first"))
    found, supervisor = Indexer(queue), Supervisor()
    compare = found._compare
    failures = iter([RecursionError("deep"), MemoryError()])

    def fail() -> None:
        for failure in failures:
            raise failure
        compare()

    monkeypatch.setattr(found, "_compare", fail)
    found.start(supervisor)
    assert not found.refresh().complete
    wait_until(lambda: total(found) == 1 and found.refresh().complete)
    (state,) = supervisor.states()
    assert (state.name, state.state, state.restarts) == ("indexer", "recovering", 2)
    supervisor.close()
    found.close()
