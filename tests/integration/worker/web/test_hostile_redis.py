"""The web service beside a Redis in which somebody else writes: no value ends it, stops it or takes its memory."""

import json
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from redis import Redis
from redis.typing import EncodableT, FieldT
from support.web.crowd import MEMORY_BOUND
from support.web.service import Service, serving
from support.worker.services import wait_until

from preflight.container.resources import status_sizes
from preflight.redis import keys
from preflight.redis.server.embedded import redis_server
from preflight.wire import STATE_TTL
from worker.config.settings import Settings

GIANT = 64 << 20
DEEP = "[" * 100_000
HALF = '{"dataset": "\\ud800"}'
"""Half a character, which no answer in UTF-8 can have."""
BAD_NUMBERS = (
    "9" * 30,
    "-" + "9" * 30,
    "1e400",
    "9" * 5000,
    "NaN",
    "-Infinity",
    DEEP,
    '{"a":' * 5000,
    '"\\ud800"',
    "",
    HALF,
)
BAD_TEXTS = (b"\xff\xfe", b"\x00", b'"\\ud800"', DEEP.encode(), b"x" * 3000)
EVENT: dict[FieldT, EncodableT] = {"v": "1", "seq": "1", "attempt": "1", "ts": "1795000000"}


@pytest.fixture(scope="module")
def service(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(Settings(redis_url=redis_url), tmp_path_factory.mktemp("hostile")) as running:
        yield running


@pytest.fixture
def redis(redis_url: str, service: Service) -> Iterator[Redis]:
    """A Redis with one job of ours, `ours`, that waits."""
    connection = Redis.from_url(redis_url)
    connection.flushall()
    assert service.enqueue("ours").status == 201
    yield connection
    connection.flushall()


def enqueue(redis: Redis, job_id: str, data: bytes = b"") -> None:
    """Enqueue as anybody may who has the rights of a producer."""
    redis.hset(keys.rq_job(job_id), mapping={"data": data or b"[]", "status": "queued", "origin": "preflight"})
    redis.rpush("rq:queue:preflight", job_id)


def assert_ours_is_served(service: Service) -> None:
    """Each view answers, with our job in it; nothing has ended."""
    time.sleep(0.6)  # longer than an answer is kept
    assert "ours" in {job["job_id"] for job in service.ask("GET", "/v1/jobs").objects}
    wait_until(lambda: searched(service) >= {"ours"})
    for path in ("/v1/jobs/ours", "/v1/overview", "/metrics", "/readyz", "/v1/compare?job=ours"):
        assert service.ask("GET", path).status == 200, path
    health = service.ask("GET", "/healthz")
    assert health["status"] == "ok", health.body
    assert "Traceback" not in service.log.read_text()


def searched(service: Service) -> set[object]:
    answer = service.ask("GET", "/v1/search")
    assert answer.status == 200, answer.body
    jobs = answer["jobs"]
    assert isinstance(jobs, list)
    return {job["job_id"] for job in jobs} if answer["complete"] else set()


def test_deep_json_in_one_event_ends_no_stream_of_another_job(service: Service, redis: Redis) -> None:
    enqueue(redis, "evil")
    hello: dict[FieldT, EncodableT] = {**EVENT, "type": "warning", "job_id": "ours", "message": "hello"}
    with service.events("ours") as ours, service.events("evil") as theirs:
        time.sleep(0.3)
        for name, value in (("request", DEEP), ("request", '"\\ud800"'), ("epochs", "9" * 5000), ("worker", b"\xff")):
            record: dict[FieldT, EncodableT] = {**EVENT, "type": "job_started", "job_id": "evil", name: value}
            redis.xadd(keys.events("evil"), record)
        redis.xadd(keys.events("evil"), {f"field-{number}": "x" for number in range(5000)})
        redis.xadd(keys.events("ours"), {**hello, "seq": "2"})
        redis.xadd(keys.events("evil"), {**hello, "job_id": "evil", "message": "still here"})
        assert json.loads(next(ours)[2])["message"] == "hello"
        assert json.loads(next(theirs)[2])["message"] == "still here"
    assert_ours_is_served(service)


def test_garbage_in_a_state_harms_that_job_alone(service: Service, redis: Redis) -> None:
    """Whatever a field of one state holds, lists and searches show the others, and the job once it is repaired."""
    fields = ("members", "request", "batch_size", "epochs", "attempt", "updated_at", "started_at", "loss", "workers")
    for number, value in enumerate(BAD_NUMBERS):
        enqueue(redis, f"bad-{number}")
        redis.hset(keys.state(f"bad-{number}"), mapping={"status": "queued", **dict.fromkeys(fields, value)})
    for number, raw in enumerate(BAD_TEXTS):
        enqueue(redis, f"text-{number}")
        texts = dict.fromkeys(("worker", "model", "dataset", "reason", "message", "status", "rq_id", "request"), raw)
        redis.hset(keys.state(f"text-{number}"), mapping=dict(texts.items()))
    assert_ours_is_served(service)
    assert len(service.ask("GET", "/v1/jobs").objects) == 1 + len(BAD_NUMBERS) + len(BAD_TEXTS)
    for job_id in ("bad-0", "bad-6", "text-0", "text-2"):
        for path in ("", "/request", "/files"):
            assert service.ask("GET", f"/v1/jobs/{job_id}{path}").status in (200, 404)
        redis.delete(keys.state(job_id))
    assert service.enqueue("later").status == 201
    time.sleep(0.6)
    wait_until(lambda: searched(service) >= {"later", "bad-0", "text-2"})


@pytest.mark.timeout(400)
def test_giants_in_any_key_take_no_memory(service: Service, redis: Redis) -> None:
    """An id, a field, an event and a result of 64 MiB each: all is served, within 256 MiB."""
    giant = b"x" * GIANT
    now = time.time()
    for job_id in ("large", "ended"):
        enqueue(redis, job_id)
    redis.rpush("rq:queue:preflight", giant)
    redis.zadd("rq:finished:preflight", {giant: now + STATE_TTL, b"ended": now + STATE_TTL})
    redis.hset(keys.state("large"), mapping={"status": "running", "message": giant, "request": giant})
    redis.hset(keys.state("ended"), mapping={"status": "finished"})
    redis.set(keys.result("ended"), giant)
    redis.hset(keys.rq_job("large"), mapping={"status": giant, "data": giant, "enqueued_at": giant})
    redis.xadd(keys.events("large"), {**EVENT, "type": "warning", "job_id": "large", "message": giant})
    redis.sadd("rq:workers:preflight", "rq:worker:w", giant)
    redis.hset("rq:worker:w", mapping={"state": giant, "hostname": "here"})
    redis.hset(keys.TOTALS, giant, "1")
    del giant
    for path in ("/v1/jobs/large", "/v1/jobs/ended", "/v1/compare?job=large&job=ended", "/v1/jobs/large/request"):
        assert service.ask("GET", path).status in (200, 404), path
    assert_ours_is_served(service)
    redis.hset(keys.state("large"), "status", "failed")
    redis.hset(keys.rq_job("large"), "status", "failed")
    with service.events("large") as theirs:
        assert [kind for _, kind, _ in theirs] == ["warning", "end"]
    assert status_sizes(service.process.pid)["VmHWM"] < MEMORY_BOUND


@pytest.mark.timeout(400)
def test_payloads_that_unpack_to_much_more_have_a_budget(service: Service, redis: Redis) -> None:
    """1,000 waiting jobs of 400 bytes each, which unpack to 100 KiB of empty lists: parsed, they would take 2 GB."""
    bomb = zlib.compress(b'["worker.jobs.train",null,[[' + b"[]," * 33_000 + b"[]]],{}]", 9)
    for number in range(1000):
        enqueue(redis, f"bomb-{number}", bomb)
    for path in ("/v1/jobs?limit=1000", "/v1/jobs/nobody", "/v1/search?limit=200"):
        assert service.ask("GET", path).status in (200, 404), path
    wait_until(lambda: service.ask("GET", "/v1/search")["complete"] is True, seconds=120)
    assert status_sizes(service.process.pid)["VmHWM"] < MEMORY_BOUND


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_many_small_fields_take_no_memory(service: Service, redis: Redis) -> None:
    """Records of 8,000 fields, and jobs of 5,000: each unknown field would cost half a kilobyte to refuse."""
    many: dict[FieldT, EncodableT] = {f"field-{number}": "x" for number in range(8000)}
    request = json.dumps({"type": "preflight.train.v1", **{f"f{number}": 1 for number in range(5000)}})
    for number in range(20):
        job_id = f"many-{number}"
        enqueue(redis, job_id, f'["worker.jobs.train",null,[{request}],{{}}]'.encode())
        redis.hset(keys.state(f"told-{number}"), mapping={"status": "running", "request": request})
        for stream in (keys.lifecycle(job_id), keys.events(job_id)):
            for _ in range(3):
                redis.xadd(stream, {**EVENT, "type": "warning", "job_id": job_id, **many})
    compared = "&".join(f"job=many-{number}" for number in range(5))
    for path in (f"/v1/compare?{compared}", "/v1/jobs/told-1", "/v1/jobs/many-1", "/v1/jobs/many-1/request"):
        assert service.ask("GET", path).status == 200, path
    assert_ours_is_served(service)
    assert status_sizes(service.process.pid)["VmHWM"] < MEMORY_BOUND


def test_a_search_has_a_number_of_terms(service: Service, redis: Redis) -> None:
    """One of 120 letters held the index for seconds; repeated terms count once."""
    refused = service.ask("GET", f"/v1/search?{urlencode({'q': ' '.join('abcdefghijklm')})}")
    assert (refused.status, refused["reason"], refused["field"]) == (422, "invalid_config", "q")
    assert "13 terms, but may have 12" in str(refused["message"])
    assert redis.ping()
    assert service.ask("GET", f"/v1/search?{urlencode({'q': 'o u r s ' * 20})}").status == 200


def test_a_redis_without_scripts_is_not_ready(tmp_path: Path) -> None:
    """Nothing can be enqueued, taken or ended there; `readyz` and the log say so, with the remedy."""
    with redis_server("--rename-command", "EVAL", "", "--rename-command", "EVALSHA", "") as url:
        with serving(Settings(redis_url=url), tmp_path) as service:
            answer = service.ask("GET", "/readyz")
            assert (answer.status, answer["reason"]) == (503, "redis_unusable")
            assert "grant `+eval" in str(answer["message"])
            assert service.ask("GET", "/healthz").status == 200
            assert "redis_without_scripts" in service.log.read_text()
        with serving(Settings(redis_url=url, web_readonly="on"), tmp_path) as service:
            assert service.ask("GET", "/readyz").status == 200


def test_a_redis_that_evicts_is_named_at_the_start(tmp_path: Path) -> None:
    with redis_server("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru") as url:
        with serving(Settings(redis_url=url), tmp_path) as service:
            assert service.ask("GET", "/readyz").status == 200
        assert "maxmemory-policy is allkeys-lru" in service.log.read_text()
