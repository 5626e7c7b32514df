"""The log of a worker whose Redis is killed while it trains."""

import json
import time

import pytest
from support.worker.services import StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.events.sentences import as_sentence
from tools.faults.machines import RedisServer


@pytest.mark.slow
def test_an_outage_is_one_line_at_its_start_and_one_at_its_end(server: RedisServer, start_worker: StartWorker) -> None:
    """Both with the job's id; the last one says how long it took and how many events were delivered."""
    worker = start_worker("--burst", environment={"PREFLIGHT_REDIS_URL": server.url})
    client = Client(server.url)
    client.enqueue(digits_job(job_id="long", epochs=10_000))
    assert wait_for(client, "long", "running").status == "running", worker.output()
    wait_until(lambda: client.status("long").step is not None, 90)
    server.kill()
    wait_until(lambda: "redis_away" in worker.output(), 60)
    time.sleep(3)  # every wait of the worker and its supervisor has failed meanwhile
    server.start()
    wait_until(lambda: "redis_back" in worker.output(), 60)
    client.cancel("long")
    worker.wait()
    records = [json.loads(line) for line in worker.output().splitlines()]
    away, back = (record for record in records if record["event"] in ("redis_away", "redis_back"))
    assert (away["event"], back["event"]) == ("redis_away", "redis_back")
    assert away["job_id"] == back["job_id"] == "long"
    assert back["delivered"] >= 1
    seconds, _, rest = back["message"].removeprefix("Redis is back after ").partition(" s; ")
    assert int(seconds) >= 2
    assert rest.endswith("delivered.")
    assert all(record["message"] == as_sentence(record["message"]) for record in records if "." not in record["event"])
