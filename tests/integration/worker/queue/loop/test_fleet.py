"""Several workers on one queue: what an idle one costs Redis, and that each job is taken once."""

import time
from collections import Counter

import pytest
from pydantic import TypeAdapter
from redis import Redis
from rq import Queue
from support.worker.services import StartWorker, digits_job, wait_until

from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import FUNCTION

SETTLE_SECONDS = 14.0
"""After the start: the first chores are done, and the second look at shared keys."""
WATCH_SECONDS = 30.0
MOST_COMMANDS = 2.0
"""A second and worker, those that scripts call too."""
MOST_CONNECTIONS = 2
WORKERS = 5
"""Of which three maintain the queue."""
CALLS = TypeAdapter(dict[str, dict[str, float]])
RESULTS = TypeAdapter(list[tuple[bytes, dict[bytes, bytes]]])


def commands(raw: Redis) -> float:
    """Return the commands that Redis has run so far, except the test's."""
    own = ("cmdstat_info", "cmdstat_smembers", "cmdstat_scard", "cmdstat_client|list")
    stats = CALLS.validate_python(raw.info("commandstats"))
    return sum(each["calls"] for name, each in stats.items() if name not in own)


@pytest.mark.slow
def test_an_idle_worker_costs_two_commands_a_second(raw: Redis, start_worker: StartWorker) -> None:
    """Over all workers of a small fleet, maintainers included."""
    others = raw.info("clients")["connected_clients"]
    for count in range(1, WORKERS + 1):
        start_worker()
        wait_until(lambda: raw.scard("rq:workers") == count, 30)  # noqa: B023 - called now
    time.sleep(SETTLE_SECONDS)
    before, began = commands(raw), time.monotonic()
    time.sleep(WATCH_SECONDS)
    sent, seconds = commands(raw) - before, time.monotonic() - began
    print(f"{sent:.0f} commands in {seconds:.1f} s")
    assert 0 < sent / seconds / WORKERS <= MOST_COMMANDS
    assert raw.info("clients")["connected_clients"] - others <= WORKERS * MOST_CONNECTIONS


def test_a_fleet_takes_each_job_once(raw: Redis, queue: Queue, start_worker: StartWorker) -> None:
    """97 jobs are refused, 3 are trained for a step."""
    job = digits_job().model_dump(mode="json", exclude_unset=True)
    for _ in range(4):
        start_worker(environment={"PREFLIGHT_STANDBY": "off"})
    wait_until(lambda: raw.scard("rq:workers") == 4, 60)
    trained = {f"j-{number}" for number in (10, 40, 70)}
    names = [f"j-{number}" for number in range(100)]
    for name in names:
        request = {**job, "max_steps": 1, "calibrate": False} if name in trained else {**job, "epochs": 0}
        queue.enqueue(FUNCTION, args=(request,), job_id=name)
    statuses = {name: "finished" if name in trained else "failed" for name in names}
    wait_until(lambda: {name: state(raw, name) for name in names} == statuses, 120)
    results = {name: RESULTS.validate_python(raw.xrange(keys.rq_results(name))) for name in names}
    assert {len(ends) for ends in results.values()} == {1}
    workers = Counter(ends[0][1][b"worker_name"] for ends in results.values())
    assert len(workers) > 1
    lifecycle = {name: RESULTS.validate_python(raw.xrange(keys.lifecycle(name))) for name in names}
    ended = {name: [event[b"type"] for _, event in events] for name, events in lifecycle.items()}
    assert all(ended[name].count(b"job_started") == 1 for name in trained)
    assert all(ended[name] == [b"job_failed"] for name in names if name not in trained)
    assert not raw.exists(queue.key, queue.intermediate_queue_key, queue.started_job_registry.key)


def state(raw: Redis, rq_id: str) -> str:
    return text(raw.hget(keys.rq_job(rq_id), "status") or b"")
