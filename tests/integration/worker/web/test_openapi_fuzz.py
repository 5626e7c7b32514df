"""Schemathesis against `preflight serve`: what its OpenAPI description promises, it keeps."""

import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from support.redis.garbage import all_keys, corrupt
from support.web.service import TOKEN, Service, serving

from preflight import Client
from preflight.container.resources import status_sizes
from preflight.redis import keys
from worker.config.settings import Settings

SEED = 20
KNOWN = ("0", "00", "a", "A", "1", "-", "_")
"""Ids that Hypothesis tries first."""
GIANT = 4 << 20
NOT_YET = "ensure_resource_availability"
"""The check that takes a data set for created whose import was accepted."""
NO_SERVER_ERROR = "not_a_server_error"
"""The check that takes 503 for a fault of the service: here the queue itself may be of another type."""
MEMORY_BOUND = 256 << 20


REJECTED = re.compile(r"^- (ST\d+)", re.MULTILINE)
"""Code of a finding of schemathesis."""
ARITHMETIC = re.compile(r"max_steps is \d+, but epochs is \d+, which makes \d+ steps")
"""Refusal of a job by a product of its fields, which JSON Schema cannot describe."""


def keeps_its_description(found: "subprocess.CompletedProcess[str]") -> bool:
    """Whether nothing was found but valid jobs that are refused for a product of their fields."""
    codes = REJECTED.findall(found.stdout)
    refused = len(ARITHMETIC.findall(found.stdout))
    return found.returncode == 0 or (set(codes) == {"ST202"} and len(codes) == refused)


@contextmanager
def cancelling(redis_url: str) -> Iterator[None]:
    """Cancel every job soon after it was enqueued: streams of events end with their jobs."""
    client, over = Client(redis_url), threading.Event()

    def cancel() -> None:
        while not over.wait(0.1):
            for job_id in client.ids(active=True):
                client.cancel(job_id)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def write_keys(redis_url: str) -> None:
    """Write every key that the web service reads, for ids that it is asked for."""
    redis = Redis.from_url(redis_url)
    for job_id in KNOWN:
        for hash_key in (keys.state(job_id), keys.rq_job(job_id)):
            redis.hset(hash_key, mapping={"status": "failed", "request": "{}", "data": "[]", "members": "[]"})
        for stream in (keys.events(job_id), keys.lifecycle(job_id), keys.rq_results(job_id)):
            redis.xadd(stream, {"type": "warning", "message": "x"})
        redis.set(keys.result(job_id), "{}")
        redis.set(keys.alias(job_id), job_id)
        redis.rpush("rq:queue:preflight", job_id)
        for registry in ("finished", "failed", "canceled", "scheduled", "deferred", "wip"):
            redis.zadd(f"rq:{registry}:preflight", {job_id: 4e9})
    redis.rpush("rq:queue:preflight:intermediate", KNOWN[0])
    redis.sadd("rq:workers:preflight", "rq:worker:w")
    redis.hset("rq:worker:w", mapping={"state": "busy", "current_job": KNOWN[0]})
    redis.hset(keys.TOTALS, "attempts", 1)


@contextmanager
def writing_garbage(redis_url: str) -> Iterator[None]:
    """Write every kind of garbage into the keys that the service reads, while it is asked."""
    redis, over = Redis.from_url(redis_url), threading.Event()
    chance = random.Random(SEED)  # noqa: S311 - the same garbage in each run

    def write() -> None:
        for number in range(10**9):
            with suppress(ResponseError):  # a key is of another type now
                if number % 200 == 0:  # what was replaced is read again
                    redis.flushall()
                    write_keys(redis_url)
                if number % 50 == 0:
                    redis.hset(keys.state(chance.choice(KNOWN)), "message", b"x" * GIANT)
                    redis.rpush("rq:queue:preflight", b"x" * GIANT)
                    redis.hset(keys.state(chance.choice(KNOWN)), "members", "[" * 100_000)
                corrupt(redis, chance.choice(all_keys(redis)), chance.randrange(10**6))
            if over.wait(0.02):
                return

    write_keys(redis_url)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def schemathesis(service: Service, directory: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run every check at a fixed seed, and print what it found."""
    found = subprocess.run(
        [Path(sys.executable).parent / "schemathesis", "run", f"{service.url}/openapi.json", "--checks", "all",
         "--max-examples", "6", "--seed", str(SEED), "--generation-database", "none", "--request-timeout", "60",
         "--suppress-health-check", "all", "--no-color", *options],
        cwd=directory, capture_output=True, text=True,
    )  # fmt: skip
    print(found.stdout)
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_service_keeps_its_description_with_a_hostile_redis(redis_url: str, tmp_path: Path) -> None:
    """Garbage of every kind in every key that it reads: no failure, no exception, no part that ended, in 256 MiB."""
    Redis.from_url(redis_url).flushall()
    with serving(Settings(redis_url=redis_url), tmp_path) as service, writing_garbage(redis_url):
        options = ("--phases", "coverage,fuzzing", "--exclude-checks", NO_SERVER_ERROR)
        found = schemathesis(service, tmp_path, *options)
        health, peak = service.ask("GET", "/healthz"), status_sizes(service.process.pid)["VmHWM"]
    Redis.from_url(redis_url).flushall()
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Traceback" not in service.log.read_text()
    assert health["status"] == "ok", health.body
    assert peak < MEMORY_BOUND


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("token", "phases"),
    [
        pytest.param(None, "coverage,fuzzing,stateful", id="open", marks=pytest.mark.slow),
        pytest.param(TOKEN, "fuzzing", id="token", marks=pytest.mark.slow),
    ],
)
def test_the_service_keeps_its_description(redis_url: str, tmp_path: Path, token: str | None, phases: str) -> None:
    """Every check of schemathesis, at a fixed seed: no failure, no error, no traceback in the log."""
    Redis.from_url(redis_url).flushall()
    header = [] if token is None else ["--header", f"Authorization: Bearer {token}"]
    settings = Settings.model_validate({"redis_url": redis_url, "api_token": token})
    with serving(settings, tmp_path) as service, cancelling(redis_url):
        found = schemathesis(service, tmp_path, "--phases", phases, "--exclude-checks", NOT_YET, *header)
    assert keeps_its_description(found), found.stdout + found.stderr
    (cases,) = re.findall(r"(\d+) generated", found.stdout)
    assert int(cases) > 20
    assert "Traceback" not in service.log.read_text()
