"""`preflight serve` as a process: jobs, states and events over real HTTP."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from redis import Redis
from rq.suspension import suspend
from support.web.service import JOB, JSON, OBJECTS, TOKEN, Answer, Service, serving
from support.worker.services import ROOT, StartWorker, digits_job, wait_until

from preflight import Client
from preflight.events.state import publish
from preflight.redis import keys
from preflight.wire import STATE_TTL, AnyEvent, JobFailed, JobStarted, JobWarning, Progress
from tools.faults.machines import RedisServer
from worker.config.settings import Settings, service_environment
from worker.web.auth import MAX_BODY_BYTES
from worker.web.streams.pages import stride_of

pytestmark = pytest.mark.covers_children


@pytest.fixture(scope="module")
def shared_settings(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of the service that most tests share."""
    Redis.from_url(redis_url).flushall()
    directory = tmp_path_factory.mktemp("serve")
    names = ("data", "artifact", "cache", "state")
    return Settings.model_validate({"redis_url": redis_url} | {f"{name}_dir": directory / name for name in names})


@pytest.fixture(scope="module")
def service(shared_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(shared_settings, tmp_path_factory.mktemp("logs")) as running:
        yield running


@pytest.fixture
def redis(shared_settings: Settings) -> Redis:
    connection = Redis.from_url(shared_settings.redis_url)
    connection.flushall()
    return connection


def say(redis: Redis, *events: AnyEvent) -> None:
    for event in events:
        publish(redis, event, ttl=STATE_TTL)


def started(job_id: str, attempt: int = 1) -> JobStarted:
    return JobStarted(seq=1, job_id=job_id, attempt=attempt, ts=time.time(), worker="w", dataset="digits", model="cnn",
                      epochs=1, batch_size=32)  # fmt: skip


def progress(job_id: str, seq: int, loss: float = 0.5) -> Progress:
    return Progress(seq=seq, job_id=job_id, attempt=1, ts=time.time(), epoch=1, epochs=1, step=seq, steps=100,
                    loss=loss, accuracy=0.5, samples_per_s=1000, eta_s=1)  # fmt: skip


def failed(job_id: str, seq: int, reason: str = "diverged") -> JobFailed:
    return JobFailed(seq=seq, job_id=job_id, attempt=1, ts=time.time(), reason=reason, message="it failed")


def test_a_job_is_enqueued_once_and_shown(service: Service, redis: Redis) -> None:
    """201 with its location; 409 for the same id; the job is listed, shown, and in RQ's queue."""
    first = service.enqueue("once")
    again = service.enqueue("once", epochs=7)
    assert (first.status, first["job_id"], first["created"]) == (201, "once", True)
    assert first.headers["location"] == "/v1/jobs/once"
    assert (again.status, again["job_id"], again["created"], again["same_request"]) == (409, "once", False, False)
    assert service.enqueue("once")["same_request"] is True
    shown = service.ask("GET", "/v1/jobs/once")
    assert (shown.status, shown["status"]) == (200, "queued")
    assert [job["job_id"] for job in service.ask("GET", "/v1/jobs").objects] == ["once"]
    assert redis.lrange("rq:queue:preflight", 0, -1) == [b"once"]
    assert service.ask("POST", "/v1/jobs", JOB)["created"] is True  # an id is made up


@pytest.mark.usefixtures("redis")
def test_jobs_are_listed_by_status_newest_first(service: Service) -> None:
    """`status` may be repeated, `limit` bounds the list, and an invalid status is refused by name."""
    for number in range(3):
        service.enqueue(f"job-{number}")
    service.ask("POST", "/v1/jobs/job-1/cancel", {})
    time.sleep(0.6)  # a list serves everybody for half a second
    queued = service.ask("GET", "/v1/jobs?status=queued").objects
    assert [job["job_id"] for job in queued] == ["job-2", "job-0"]
    both = service.ask("GET", "/v1/jobs?status=queued&status=cancelled").objects
    assert {job["status"] for job in both} == {"queued", "cancelled"}
    assert len(service.ask("GET", "/v1/jobs?limit=1").objects) == 1
    refused = service.ask("GET", "/v1/jobs?status=asleep")
    assert refused.status == 422
    assert "status" in str(refused["field"])
    assert "'asleep'" in str(refused["message"])


def test_a_job_is_cancelled_in_the_queue(service: Service, redis: Redis) -> None:
    """202 and cancelled; 409 the second time; 404 for an unknown job."""
    service.enqueue("gone")
    first = service.ask("POST", "/v1/jobs/gone/cancel", {})
    assert (first.status, first["status"]) == (202, "cancelled")
    for job_id, refusal in (("gone", (409, "already_ended")), ("never", (404, "unknown_job"))):
        refused = service.ask("POST", f"/v1/jobs/{job_id}/cancel", {})
        assert (refused.status, refused["reason"]) == refusal
    assert redis.lrange("rq:queue:preflight", 0, -1) == []


@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize("job_id", ["never", "..", "%2e%2e", "a%0ab", "<script>", "x" * 200])
def test_an_invalid_job_id_is_not_found(service: Service, job_id: str) -> None:
    """No id reaches another key or breaks the response."""
    for path in ("", "/events"):
        answer = service.ask("GET", f"/v1/jobs/{job_id}{path}")
        assert answer.status == 404, (path, answer.body)


@pytest.mark.parametrize(("body", "headers", "status", "said"), [
    (b"{", JSON, 400, "is not JSON"),
    (b"\xff\xfe", JSON, 400, "is not JSON"),
    (b"[" * 50_000, JSON, 400, "is not JSON"),
    (b"", JSON, 400, "is not JSON"),
    (b"{}", {"content-type": "text/plain"}, 415, "must be 'application/json'"),
    (b"{}", {}, 415, "must be 'application/json'"),
    (b"[]", JSON, 422, "must be an object"),
    (b"{}", JSON, 422, "type is None"),
    ({**JOB, "epochs": 0}, JSON, 422, "epochs is 0, but must be"),
    ({**JOB, "epochs": "3"}, JSON, 422, "epochs is '3'"),
    ({**JOB, "epocs": 3}, JSON, 422, "did you mean 'epochs'"),
    ({**JOB, "job_id": "../../etc"}, JSON, 422, "job_id is"),
    ({**JOB, "plan": {"threads": -1}}, JSON, 422, "plan.threads is -1"),
    (b'{"type": "preflight.train.v1", "dataset": "digits", "learning_rate": NaN}', JSON, 422, "learning_rate"),
], ids=str)  # fmt: skip
def test_a_bad_body_is_refused_in_one_sentence(
    service: Service, redis: Redis, body: object, headers: dict[str, str], status: int, said: str
) -> None:
    answer = service.ask("POST", "/v1/jobs", body, headers)
    assert answer.status == status
    assert said in str(answer["message"])
    assert answer["reason"] and "\n" not in str(answer["message"])
    assert redis.llen("rq:queue:preflight") == 0


def test_ten_megabytes_are_refused_before_they_are_read(service: Service) -> None:
    """By `content-length`, and for a chunked body by the bytes received."""
    announced = service.ask("POST", "/v1/jobs", headers={**JSON, "content-length": str(10 << 20)})
    assert (announced.status, announced["reason"]) == (413, "too_large")
    with closing(service.connect()) as connection:
        connection.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        chunk = b"%x\r\n" % MAX_BODY_BYTES + b" " * MAX_BODY_BYTES + b"\r\n"
        connection.sendall(chunk + chunk)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413")


def test_a_thousand_posts_of_one_id_are_one_job(service: Service, redis: Redis) -> None:

    def post(_: int) -> int:
        return service.enqueue("crowd").status

    with ThreadPoolExecutor(50) as crowd:
        assert Counter(crowd.map(post, range(1000))) == {201: 1, 409: 999}
    assert redis.lrange("rq:queue:preflight", 0, -1) == [b"crowd"]


def test_events_are_followed_resumed_and_end(service: Service, redis: Redis) -> None:
    """Stored events, then new ones; with Last-Event-ID only later ones; `end` after the last."""
    service.enqueue("told")
    say(redis, started("told"), progress("told", 2))
    with service.events("told") as events:
        first, second = next(events), next(events)
        assert (first[1], second[1]) == ("job_started", "progress")
        assert json.loads(second[2])["samples_per_s"] == 1000
        say(redis, progress("told", 3, loss=0.25))
        third = next(events)
        assert json.loads(third[2])["loss"] == 0.25
        with service.events("told", **{"Last-Event-ID": second[0]}) as resumed:
            assert next(resumed) == third
            say(redis, failed("told", 4))
            redis.hset("rq:job:told", "status", "failed")
            assert [event for _, event, _ in events] == ["job_failed", "end"]
            assert [event for _, event, _ in resumed] == ["job_failed", "end"]


def test_the_documented_curl_commands_work(service: Service, redis: Redis) -> None:
    """Those of docs/reference/http.md, with another port; the job is cancelled while they follow it."""
    (lines,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "reference" / "http.md").read_text(), re.DOTALL)
    program = lines.replace("localhost:8000", f"localhost:{service.port}")
    assert program != lines
    running = subprocess.Popen(["/bin/sh", "-ec", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_until(lambda: redis.llen("rq:queue:preflight") == 1)
    assert service.ask("POST", "/v1/jobs/my-first/cancel", b"").status == 202
    said, _ = running.communicate(timeout=30)
    for words in (b'"created":true', b"event: job_cancelled", b"event: end", b'"status":"cancelled"', b"already_ended"):
        assert words in said, said


def test_lifecycle_events_survive_the_trimming_of_the_stream(service: Service, redis: Redis) -> None:
    """The lifecycle stream is never trimmed."""
    service.enqueue("longest")
    say(redis, started("longest"))
    time.sleep(0.01)  # record ids differ in their millisecond
    say(redis, progress("longest", 2), progress("longest", 3))
    redis.xtrim(keys.events("longest"), maxlen=1, approximate=False)
    with service.events("longest") as events:
        told = [json.loads(next(events)[2]) for _ in range(2)]
    assert [(event["type"], event["seq"]) for event in told] == [("job_started", 1), ("progress", 3)]


def test_a_retried_failure_does_not_end_the_stream(service: Service, redis: Redis) -> None:
    """RQ's status decides: the job is queued again, and its next attempt is followed."""
    service.enqueue("again")
    say(redis, started("again"), failed("again", 2))
    with service.events("again") as events:
        assert [next(events)[1], next(events)[1]] == ["job_started", "job_failed"]
        time.sleep(1.5)  # several checks whether the job is active
        say(redis, started("again", attempt=2))
        assert next(events)[1] == "job_started"
        redis.hset("rq:job:again", "status", "finished")
        say(redis, failed("again", 3))
        assert [event for _, event, _ in events] == ["job_failed", "end"]


def readers(redis: Redis) -> int:
    """Wait 20 ms, and count the connections that are blocked in a read.

    Counting by last command is wrong: a connection of the pool keeps `xread` as its last command while it is idle.
    """
    time.sleep(0.02)
    return sum("b" in one["flags"] for one in redis.client_list())


def test_many_viewers_cost_one_reader(service: Service, redis: Redis) -> None:
    """A hundred viewers of one job receive every event through one blocked connection."""
    service.enqueue("watched")
    say(redis, started("watched"))
    ready = threading.Barrier(101)

    def follow() -> list[str]:
        with service.events("watched") as events:
            next(events)
            ready.wait(60)
            return [event for _, event, _ in events]

    with ThreadPoolExecutor(100) as crowd:
        viewers = [crowd.submit(follow) for _ in range(100)]
        ready.wait(60)
        # Between two reads the reader also checks whether the job is active.
        looks = [readers(redis) for _ in range(100)]
        assert max(looks) == 1
        assert b"preflight_event_viewers 100.0" in service.ask("GET", "/metrics").body
        say(redis, progress("watched", 2), failed("watched", 3))
        redis.hset("rq:job:watched", "status", "failed")
        assert all(viewer.result(60) == ["progress", "job_failed", "end"] for viewer in viewers)


def test_slow_and_leaving_viewers_do_not_delay_others(service: Service, redis: Redis) -> None:
    """One reads nothing, one disconnects; a third receives 2,000 long events in order."""
    service.enqueue("long")
    request = b"GET /v1/jobs/long/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
    slow, leaving = service.connect(), service.connect()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for viewer in (slow, leaving):
        viewer.sendall(request)
    message = "x" * 1000
    say(redis, *(JobWarning(seq=seq, job_id="long", attempt=1, ts=1, message=message) for seq in range(1, 2001)))
    assert leaving.recv(1000)
    leaving.close()
    with service.events("long") as events:
        assert [json.loads(next(events)[2])["seq"] for _ in range(2000)] == list(range(1, 2001))
    slow.close()
    assert service.ask("GET", "/healthz").status == 200


def test_the_runbook_is_answered_by_reason(service: Service) -> None:
    """For reasons that it has; whatever else is named is refused."""
    assert str(service.ask("GET", "/v1/advice/diverged")["text"]).startswith("The loss")
    assert service.ask("GET", "/v1/advice/of_nobody")["reason"] == "unknown_reason"
    assert service.ask("GET", "/v1/advice/..%2F..%2Fetc").status in (404, 422)


def test_a_long_past_is_thinned_where_it_is_asked_for(service: Service, redis: Redis) -> None:
    """Progress only, and none of the newest; another viewer of the same job still gets all of it."""
    service.enqueue("old")
    warned = JobWarning(seq=7, job_id="old", attempt=1, ts=1, message="slow")
    say(redis, *(warned if seq == warned.seq else progress("old", seq) for seq in range(1, 2001)), failed("old", 2001))
    redis.hset("rq:job:old", "status", "failed")
    with service.events("old", "?thin=true") as events:
        thinned = [(kind, json.loads(data).get("seq")) for _, kind, data in events]
    assert [kind for kind, _ in thinned if kind != "progress"] == ["warning", "job_failed", "end"]
    told = [seq for _, seq in thinned if seq]
    assert 250 < len(told) < 600
    assert max(later - earlier for earlier, later in pairwise(told)) <= 2 * stride_of(2001)
    assert told[-2:] == [2000, 2001]
    with service.events("old") as events:
        assert [json.loads(data).get("seq") for _, _, data in events] == [*range(1, 2002), None]


def test_other_records_of_a_stream_are_skipped(service: Service, redis: Redis) -> None:
    """Foreign records, a newer version, invalid UTF-8; markup stays data."""
    service.enqueue("odd")
    redis.xadd(keys.events("odd"), {b"\xff": b"\xfe"})
    redis.xadd(keys.events("odd"), {"type": "dance", "v": "2"})
    say(redis, JobWarning(seq=1, job_id="odd", attempt=1, ts=1, message="<script>alert(1)</script>\ndata: forged"))
    with service.events("odd") as events:
        _, kind, data = next(events)
    assert (kind, json.loads(data)["message"]) == ("warning", "<script>alert(1)</script>\ndata: forged")


def test_a_key_of_a_wrong_type_stops_only_its_own_viewers(service: Service, redis: Redis) -> None:
    """Before and during a subscription: its viewers get a `problem`, those of another job every event."""
    for job_id in ("spoiled", "spoiled-later", "sound"):
        service.enqueue(job_id)
    redis.set(keys.events("spoiled"), 1)
    say(redis, started("spoiled-later"), started("sound"))
    with service.events("sound") as sound, service.events("spoiled-later") as spoiled:
        assert next(sound)[1] == next(spoiled)[1] == "job_started"
        refused = service.ask("GET", "/v1/jobs/spoiled/events")
        assert (refused.status, refused["reason"]) == (409, "unreadable_events")
        assert repr(keys.events("spoiled")) in str(refused["message"])
        redis.set(keys.events("spoiled-later"), 1)
        (problem,) = spoiled
        assert (problem[1], json.loads(problem[2])["reason"]) == ("problem", "unreadable_events")
        say(redis, progress("sound", 2))
        assert next(sound)[1] == "progress"
    redis.delete(keys.events("spoiled"))
    say(redis, started("spoiled"))
    with service.events("spoiled") as mended:
        assert next(mended)[1] == "job_started"


def test_invalid_records_stop_no_viewer(service: Service, redis: Redis) -> None:
    """A record with the largest id, a lifecycle key of another type, invalid numbers."""
    for job_id in ("last-id", "odd-lifecycle", "heard"):
        service.enqueue(job_id)
    say(redis, started("last-id"), started("odd-lifecycle"), started("heard"))
    redis.set(keys.lifecycle("odd-lifecycle"), 1)
    redis.xadd(keys.events("last-id"), {"type": "progress", "seq": "9" * 5000, "ts": "nan"})
    redis.xadd(keys.events("last-id"), {"x": "y"}, id=f"{2**64 - 1}-{2**64 - 1}")
    with service.events("last-id") as last, service.events("odd-lifecycle") as odd, service.events("heard") as heard:
        assert next(last)[1] == next(odd)[1] == next(heard)[1] == "job_started"
        with service.events("last-id", **{"Last-Event-ID": f"{2**64 - 1}-{2**64 - 1}"}) as behind:
            say(redis, progress("heard", 2), progress("odd-lifecycle", 2))
            assert next(heard)[1] == next(odd)[1] == "progress"
            redis.hset("rq:job:last-id", "status", "failed")
            assert [event for _, event, _ in last] == [event for _, event, _ in behind] == ["end"]


@pytest.mark.parametrize("after", ["0", "99999999999999999999-0", "x", f"{2**64 - 1}-{2**64}", ""])
def test_an_invalid_last_event_id_begins_at_the_beginning(service: Service, redis: Redis, after: str) -> None:
    service.enqueue("placed")
    say(redis, started("placed"))
    with service.events("placed", **{"Last-Event-ID": after}) as events:
        assert next(events)[1] == "job_started"


def test_the_overview_shows_queue_and_workers(service: Service, redis: Redis) -> None:
    """Depth, workers with their jobs and silence; an expired worker is left out."""
    service.ask("POST", "/v1/jobs", JOB)
    redis.sadd("rq:workers:preflight", "rq:worker:here", "rq:worker:gone")
    redis.hset(
        "rq:worker:here", mapping={"state": "busy", "current_job": "j", "last_heartbeat": "2026-01-01T00:00:00.0Z"}
    )
    time.sleep(0.6)
    answer = service.ask("GET", "/v1/overview")
    assert (answer["queue"], answer["depth"], answer["running"]) == ("preflight", 1, 0)
    assert answer["suspended"] is False
    (worker,) = workers(answer)
    assert (worker["name"], worker["state"], worker["job_id"]) == ("here", "busy", "j")
    assert isinstance(worker["silent_s"], float) and worker["silent_s"] > 0


def workers(answer: Answer) -> list[dict[str, object]]:
    return OBJECTS.validate_python(answer["workers"])


def test_metrics_are_correct_and_valid_for_promtool(service: Service, redis: Redis) -> None:
    """Outcomes, durations and kills of all jobs, each counted once; whether workers are suspended."""
    suspend(redis)
    say(redis, started("a"), failed("a", 2, reason="out_of_memory"))
    redis.hset(keys.TOTALS, mapping={"job_seconds:15": 2, "job_seconds": 11.5, "ended:finished:": 2, "junk": "x"})
    time.sleep(0.6)
    answer = service.ask("GET", "/metrics")
    shown = dict(line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if not line.startswith("#"))
    assert float(shown['preflight_jobs_ended_total{outcome="failed",reason="out_of_memory"}']) == 1
    assert float(shown['preflight_jobs_ended_total{outcome="finished",reason=""}']) == 2
    assert float(shown['preflight_jobs_ended_total{outcome="failed",reason="diverged"}']) == 0
    assert float(shown["preflight_attempts_total"]) == 1
    assert float(shown["preflight_suspended"]) == 1
    assert float(shown["preflight_oom_kills_total"]) == 1
    assert float(shown['preflight_job_duration_seconds_bucket{le="5"}']) == 0
    assert float(shown['preflight_job_duration_seconds_bucket{le="60"}']) == 2
    assert float(shown["preflight_job_duration_seconds_sum"]) == 11.5
    promtool = shutil.which("promtool") or shutil.which(ROOT / "build" / "promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus): the format was not checked by it")
    checked = subprocess.run([promtool, "check", "metrics"], input=answer.body, capture_output=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("PUT", "/v1/jobs", "GET, HEAD, POST"), ("PUT", "/v1/jobs/x", "DELETE, GET, HEAD"),
    ("GET", "/v1/jobs/x/cancel", "POST"),
    ("POST", "/healthz", "GET, HEAD"), ("OPTIONS", "/v1/jobs", "GET, HEAD, POST"), ("POST", "/", "GET, HEAD"),
])  # fmt: skip
def test_another_method_is_refused(service: Service, method: str, path: str, allowed: str) -> None:
    """405 with `allow`, which names the methods of every route at that path."""
    answer = service.ask(method, path)
    assert (answer.status, answer["reason"]) == (405, "no_such_route")
    assert answer.headers["allow"] == allowed


def test_head_is_get_without_the_body(service: Service, redis: Redis) -> None:
    """Health checks, the page, lists, refusals; a stream of events ends with its head. POST has no HEAD."""
    service.enqueue("watched")
    say(redis, started("watched"))
    for path in (
        "/healthz", "/readyz", "/", "/page/app.js", "/metrics", "/openapi.json", "/v1/jobs", "/v1/jobs/watched",
        "/v1/jobs/watched/events", "/v1/jobs/never", "/nothing",
    ):  # fmt: skip
        with service.events("watched") if path.endswith("/events") else closing(service.connect()):
            head = service.ask("HEAD", path)
        assert head.body == b""
        if not path.endswith("/events"):
            whole = service.ask("GET", path)
            assert (head.status, head.headers) == (whole.status, whole.headers), path
    assert (head.status, service.ask("HEAD", "/v1/jobs/watched/events").status) == (404, 200)
    refused = service.ask("HEAD", "/v1/jobs/watched/cancel")
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    wait_until(lambda: b"preflight_event_viewers 0.0" in service.ask("GET", "/metrics").body)


def test_whole_numbers_with_a_fraction_are_integers(service: Service, redis: Redis) -> None:
    """As in JSON Schema: `201.0` is enqueued as 201."""
    body = b'{"type": "preflight.train.v1", "dataset": "digits", "job_id": "whole", "epochs": 201.0, "seed": 2e3}'
    assert service.ask("POST", "/v1/jobs", body).status == 201
    data = redis.hget("rq:job:whole", "data")
    assert isinstance(data, bytes)
    assert b'"epochs": 201,' in zlib.decompress(data)


@pytest.mark.parametrize("key", ["rq:queue:preflight", "rq:wip:preflight", "rq:workers:preflight", "rq:worker:odd"])
def test_a_key_of_a_wrong_type_does_not_fail_the_overview(service: Service, redis: Redis, key: str) -> None:
    """It counts as empty; the metrics answer, too."""
    redis.sadd("rq:workers:preflight", "rq:worker:odd", "rq:worker:here")
    redis.hset("rq:worker:here", mapping={"state": "idle", "current_job": "no id!", "last_heartbeat": "0001-01-01T00Z"})
    for name in (key, keys.TOTALS):
        redis.delete(name)
        redis.set(name, 1)
    time.sleep(0.6)
    answer = service.ask("GET", "/v1/overview")
    assert answer.status == 200
    assert [worker["name"] for worker in workers(answer)] == (["here"] if key != "rq:workers:preflight" else [])
    assert service.ask("GET", "/metrics").status == 200


def test_openapi_describes_every_route(service: Service) -> None:
    described = service.ask("GET", "/openapi.json")
    paths, components = described["paths"], described["components"]
    assert isinstance(paths, dict) and isinstance(components, dict)
    assert set(paths) == {
        "/v1/jobs", "/v1/jobs/{job_id}", "/v1/jobs/{job_id}/cancel", "/v1/jobs/{job_id}/events", "/v1/overview",
        "/v1/jobs/{job_id}/files", "/v1/jobs/{job_id}/files/{name}", "/v1/jobs/{job_id}/predict",
        "/v1/jobs/{job_id}/request", "/v1/jobs/{job_id}/retry", "/v1/cancel", "/v1/compare", "/v1/search",
        "/v1/models", "/v1/models/{alias}", "/v1/models/{alias}/predict", "/v1/models/{alias}/promote",
        "/v1/models/{alias}/rollback",
        "/v1/choices", "/v1/check", "/v1/jobs/{job_id}/notes", "/v1/advice/{reason}",
        "/v1/datasets", "/v1/datasets/{name}", "/v1/datasets/{name}/samples", "/v1/datasets/{name}/relabel",
        "/v1/datasets/{name}/samples/{sample}", "/v1/datasets/{name}/issues", "/v1/datasets/{name}/duplicates",
        "/v1/imports/{import_id}", "/v1/imports/{import_id}/events", "/v1/imports/{import_id}/cancel",
        "/metrics", "/healthz", "/readyz",
    }  # fmt: skip
    assert {"TrainJob", "Event", "JobDetail", "Problem", "Progress"} <= set(components["schemas"])
    references = set(re.findall(r"#/components/schemas/([\w-]+)", described.body.decode()))
    assert references <= set(components["schemas"])


def test_every_answer_carries_the_security_headers(service: Service) -> None:
    """The page may load from and connect to its own host only."""
    for path in ("/", "/healthz", "/v1/jobs/never", "/page/none"):
        headers = service.ask("GET", path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"


def test_dns_rebinding_is_refused(service: Service) -> None:
    """Without a token only names of this machine are accepted."""
    assert service.ask("GET", "/v1/jobs", headers={"host": "evil.example"}).status == 421
    for host in ("localhost", f"localhost:{service.port}", "127.0.0.1", f"[::1]:{service.port}", "[::1]"):
        assert service.ask("GET", "/healthz", headers={"host": host}).status == 200, host


def test_a_token_is_needed_where_there_is_one(shared_settings: Settings, tmp_path: Path) -> None:
    """Missing, wrong or in the address: refused; page and health checks need none. It is in no log."""
    with serving(shared_settings, tmp_path, "--host", "::", PREFLIGHT_API_TOKEN=TOKEN) as service:
        socket.create_connection(("::1", service.port), timeout=20).close()
        right = {"authorization": f"Bearer {TOKEN}"}
        for path in ("/v1/jobs", "/v1/overview", "/metrics", "/v1/jobs/x/events"):
            assert service.ask("GET", path).status == 401
            assert service.ask("GET", path, headers={"authorization": f"Bearer {TOKEN}x"}).status == 401
            for wrong in ("", f"{TOKEN}x"):  # 401 would have a browser forget the password of a proxy
                assert service.ask("GET", path, headers={"x-preflight-token": wrong}).status == 403
            basic = service.ask("GET", path, headers={"authorization": "Basic x"})
            assert (basic.status, "a token is missing" in str(basic["message"])) == (401, True)
        in_url = service.ask("GET", f"/v1/jobs?token={TOKEN}", headers=right)
        assert (in_url.status, in_url["reason"]) == (400, "token_in_url")
        beside = {"authorization": "Basic bWU6c2VjcmV0", "x-preflight-token": TOKEN}  # the former is for a proxy
        for accepted in (right, beside):
            assert service.ask("GET", "/v1/jobs", headers=accepted).status == 200
            assert service.ask("HEAD", "/metrics", headers=accepted).status == 200
        assert service.ask("HEAD", "/metrics").status == 401
        assert service.ask("GET", "/", headers={"host": "preflight.example"}).status == 200
        assert service.ask("GET", "/healthz").status == 200
    assert TOKEN not in service.log.read_text()


@pytest.mark.slow
def test_a_prefix_that_a_proxy_leaves_in_the_requests(shared_settings: Settings, tmp_path: Path) -> None:
    """All answers below it as without it, the token is needed there too, and addresses in answers begin with it."""
    right = {"x-preflight-token": TOKEN}
    with serving(
        shared_settings, tmp_path, PREFLIGHT_WEB_PREFIX="/tools/preflight/", PREFLIGHT_API_TOKEN=TOKEN
    ) as service:
        for prefix in ("/tools/preflight", ""):
            assert service.ask("GET", f"{prefix}/healthz").status == 200
            assert service.ask("GET", f"{prefix}/page/app.js").status == 200
            assert service.ask("GET", f"{prefix}/v1/jobs").status == 401
            assert service.ask("GET", f"{prefix}/v1/jobs", headers=right).status == 200
        for path in ("/tools/v1/jobs", "/tools/preflighty/v1/jobs", "/tools/preflight/tools/preflight/v1/jobs"):
            assert service.ask("GET", path, headers=right).status == 404
        alone = service.ask("GET", "/tools/preflight")
        assert (alone.status, alone.headers["location"]) == (308, "/tools/preflight/")
        created = service.ask("POST", "/tools/preflight/v1/jobs", JOB | {"job_id": "below"}, {**JSON, **right})
        assert created.headers["location"] == "/tools/preflight/v1/jobs/below"
        assert service.ask("GET", created.headers["location"], headers=right)["job_id"] == "below"
        assert service.ask("GET", "/openapi.json")["servers"] == [{"url": "/tools/preflight"}]


def test_an_invalid_prefix_is_refused(shared_settings: Settings) -> None:
    for prefix in ("preflight", "https://host/preflight", "/a b", "//"):
        code, sentence = refusal(shared_settings, PREFLIGHT_WEB_PREFIX=prefix)
        assert (code, "PREFLIGHT_WEB_PREFIX" in sentence) == (2, True), sentence


def test_an_outage_of_redis(shared_settings: Settings, server: RedisServer, tmp_path: Path) -> None:
    """503 for requests and `readyz`, open streams stay open; all recovers afterwards."""
    with serving(shared_settings.model_copy(update={"redis_url": server.url}), tmp_path) as service:
        service.enqueue("patient")
        with service.events("patient") as events:
            say(Redis.from_url(server.url), started("patient"))
            assert next(events)[1] == "job_started"
            server.kill()
            for answer in (service.ask("POST", "/v1/jobs", JOB), service.ask("GET", "/readyz")):
                assert (answer.status, answer["reason"]) == (503, "redis_unreachable")
                assert "retry-after" in answer.headers
            assert str(tmp_path).encode() not in answer.body  # `readyz` needs no token
            assert service.ask("GET", "/healthz").status == 200
            server.start()
            say(Redis.from_url(server.url), progress("patient", 2))
            assert next(events)[1] == "progress"
            assert service.ask("GET", "/readyz").status == 200


def refusal(settings: Settings, *options: str, **environment: str) -> tuple[int, str]:
    """Return exit code and message of a service that does not start."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "worker.cli", "serve", *options], capture_output=True, text=True, timeout=30,
        env={**service_environment(settings), **environment},
    )  # fmt: skip
    (sentence,) = ended.stderr.strip().splitlines()
    return ended.returncode, sentence


def test_a_public_address_needs_a_token(shared_settings: Settings) -> None:
    public = refusal(shared_settings, "--host", "0.0.0.0")  # noqa: S104 - it is refused
    assert (public[0], "PREFLIGHT_API_TOKEN is not set" in public[1]) == (2, True)
    short = refusal(shared_settings, PREFLIGHT_API_TOKEN="short")  # noqa: S106 - it is refused
    assert (short[0], "PREFLIGHT_API_TOKEN" in short[1], "'short'" in short[1]) == (2, True, False)


def test_a_port_in_use_is_named(shared_settings: Settings, service: Service) -> None:
    """Exit 1 and a message; the port comes from the option, else from `PORT`."""
    port = str(service.port)
    for code, sentence in (refusal(shared_settings, "--port", port), refusal(shared_settings, PORT=port)):
        assert code == 1
        assert f"port {port}" in sentence and "in use" in sentence


@pytest.mark.usefixtures("redis", "signals_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_shutdown_closes_open_streams(shared_settings: Settings, tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM and SIGHUP with a viewer of a silent job: exit 0, no traceback."""
    with serving(shared_settings, tmp_path) as service:
        service.enqueue("silent")
        with service.events("silent") as events:
            os.kill(service.process.pid, number)
            assert list(events) == []
    written = service.log.read_text()
    assert "Traceback" not in written, written[written.find("Traceback") :]


@pytest.mark.usefixtures("redis")
def test_a_job_from_http_to_its_result(service: Service, shared_settings: Settings, start_worker: StartWorker) -> None:
    service.enqueue("real", **digits_job().model_dump(mode="json", exclude_unset=True))
    start_worker("--burst")
    with service.events("real") as events:
        kinds = [kind for _, kind, _ in events]
    assert kinds[0] == "job_started"
    assert kinds[-2:] == ["training_done", "end"]
    shown = service.ask("GET", "/v1/jobs/real")
    assert shown["status"] == "finished"
    result = shown["result"]
    assert isinstance(result, dict)
    assert result["test_accuracy"] > 0.5
    assert Client(shared_settings.redis_url).result("real") is not None
    time.sleep(0.6)
    assert b'preflight_jobs_ended_total{outcome="finished",reason=""} 1.0' in service.ask("GET", "/metrics").body
