"""Signed jobs on a real worker: a message is accepted once, and again for retries and requeues of its job."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import JsonValue, TypeAdapter
from redis import Redis
from rq import Queue, Retry
from rq.job import Job
from rq.serializers import JSONSerializer
from support.worker.services import RunWorker, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.queue.signing import Terms, sign
from preflight.redis import keys
from preflight.wire import FUNCTION, JOB_TIMEOUT
from worker.config.settings import Settings

KEY = "sixteen letters!"
SIGNED = {"PREFLIGHT_SIGNING_KEY": KEY}
RAW = TypeAdapter(dict[bytes, bytes])
SHORT_WINDOW = {**SIGNED, "PREFLIGHT_SIGNATURE_SECONDS": "60"}


@pytest.fixture
def producer(settings: Settings) -> Client:
    return Client(settings.redis_url, signing_key=KEY)


def enqueue_signed(queue: Queue, job_id: str, *, ago: int, retries: int = 2, **fields: object) -> None:
    """Enqueue a job signed some time ago, with RQ and without this package."""
    job = digits_job(job_id=job_id, **fields).model_dump(mode="json", exclude_unset=True)
    terms = Terms(signed_at=int(time.time()) - ago, timeout=JOB_TIMEOUT, retries=retries)
    keywords = {"signature": sign(job, terms, KEY), "signed_at": terms.signed_at, "retries": retries}
    retry = Retry(max=retries) if retries else None
    queue.enqueue(FUNCTION, args=(job,), kwargs=keywords, job_id=job_id, job_timeout=JOB_TIMEOUT, retry=retry)


def captured(raw: Redis, job_id: str) -> dict[bytes, bytes]:
    return RAW.validate_python(raw.hgetall(f"rq:job:{job_id}"))


def replay(raw: Redis, message: dict[bytes, bytes], rq_id: str) -> None:
    """Enqueue a captured job under an id of RQ."""
    raw.delete(f"rq:job:{rq_id}")
    raw.hset(f"rq:job:{rq_id}", mapping={name: value for name, value in message.items()})  # noqa: C416 - the type
    raw.hset(f"rq:job:{rq_id}", "status", "queued")
    raw.rpush("rq:queue:preflight", rq_id)


@pytest.mark.slow
def test_a_failed_job_is_not_replayed(producer: Client, raw: Redis, connection: Redis, run_worker: RunWorker) -> None:
    producer.enqueue(digits_job(job_id="j", epochs=4))
    message = captured(raw, "j")
    run_worker({**SIGNED, "PREFLIGHT_MAX_SAMPLES": "1500"})
    assert producer.status("j").field == "epochs"
    before = connection.hgetall(keys.state("j"))
    Job.fetch("j", connection=raw, serializer=JSONSerializer).requeue()
    replay(raw, message, "copy")
    run_worker(SIGNED)
    replay(raw, message, "j")
    replay(raw, message, "late-copy")
    worker = run_worker(SIGNED)
    assert connection.hgetall(keys.state("j")) == before
    for rq_id in ("copy", "late-copy"):
        refused = producer.status(rq_id)
        assert (refused.status, refused.reason, refused.field) == ("failed", "invalid_config", "signature")
    assert connection.hget("rq:job:j", "status") == "failed"
    assert "job_started" not in worker.output()


def test_a_copy_with_other_terms_is_refused(producer: Client, raw: Redis, run_worker: RunWorker) -> None:
    changes = {"timeout": "-1", "result_ttl": "-1", "failure_ttl": "-1", "ttl": "1000000", "retries_left": "9"}
    for name, value in changes.items():
        producer.enqueue(digits_job(job_id=name))
        raw.hset(f"rq:job:{name}", name, value)
    run_worker(SIGNED)
    assert {producer.status(name).field for name in changes} == {"signature"}


@pytest.mark.slow
def test_a_requeued_job_is_accepted_after_its_window(
    producer: Client, queue: Queue, connection: Redis, start_worker: StartWorker
) -> None:
    """Also where Redis lost the acceptance record; a copy is not."""
    enqueue_signed(queue, "j", ago=100, epochs=10_000)
    message = captured(queue.connection, "j")
    worker = start_worker(environment=SIGNED)
    wait_for(producer, "j", "running")
    connection.flushall()
    wait_until(lambda: connection.exists(keys.accepted("j")) == 1)
    worker.stop()
    replay(queue.connection, message, "copy")
    worker = start_worker(environment=SHORT_WINDOW)
    wait_until(lambda: producer.status("j").attempt == 2)
    assert producer.cancel("j")
    assert wait_for(producer, "j").status == "cancelled", worker.output()
    assert wait_for(producer, "copy").field == "signature"


def test_a_retried_job_is_accepted_again(
    producer: Client, queue: Queue, connection: Redis, run_worker: RunWorker, tmp_path: Path,
    install_package: Callable[..., None],
) -> None:  # fmt: skip
    enqueue_signed(queue, "j", ago=0, model="broken")
    message = captured(queue.connection, "j")
    source = "import os\n\ndef broken(*_: object) -> None:\n    os._exit(3)\n"
    install_package("preflight.models", {"broken": "broken:broken"}, "broken", source)
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    worker = run_worker({**SIGNED, "PYTHONPATH": path})
    assert producer.status("j").reason == "child_failed", worker.output()
    assert producer.status("j").attempt == 3
    assert connection.hget("rq:job:j", "retries_left") == "0"
    replay(queue.connection, message, "copy")
    run_worker({**SIGNED, "PYTHONPATH": path})
    assert producer.status("copy").field == "signature"


IN_NODE = """
const { createHmac } = require("node:crypto");
const canonical = (value) =>
  Array.isArray(value) ? `[${value.map(canonical).join(",")}]`
  : value !== null && typeof value === "object"
    ? `{${Object.keys(value).sort().map((name) => `${canonical(name)}:${canonical(value[name])}`).join(",")}}`
  : JSON.stringify(value).replace(/[\\u007f-\\uffff]/g, (c) => "\\\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
const job = JSON.parse(process.argv[1]);
const signed_at = Math.floor(Date.now() / 1000), retries = 1;
const signed = { job, signed_at, retries, timeout: 600, result_ttl: 700, failure_ttl: 800, ttl: null };
const signature = createHmac("sha256", process.env.KEY).update(canonical(signed)).digest("hex");
console.log(JSON.stringify(["worker.jobs.train", null, [job], { signature, signed_at, retries }]));
"""
IN_SHELL = """
set -eu
signed_at=$(date +%s)
signed='{"failure_ttl":null,"job":'$1',"result_ttl":700,"retries":0,"signed_at":'$signed_at',"timeout":600,"ttl":null}'
signature=$(printf %s "$signed" | openssl dgst -sha256 -hmac "$KEY" -r | cut -d' ' -f1)
printf '["worker.jobs.train",null,[%s],{"signature":"%s","signed_at":%s,"retries":0}]' "$1" "$signature" "$signed_at"
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("command", "hash_fields"), [
    (["node", "--eval", IN_NODE], {"timeout": "600", "result_ttl": "700", "failure_ttl": "800",
                                   "retries_left": "1"}),
    (["sh", "-c", IN_SHELL, "sh"], {"timeout": "600", "result_ttl": "700"}),
], ids=["node", "shell"])  # fmt: skip
def test_openssl_and_jq_sign_by_the_documentation(
    raw: Redis, producer: Client, run_worker: RunWorker, command: list[str], hash_fields: dict[str, str]
) -> None:
    """With HMAC-SHA256 and a JSON writer, docs/reference/wire.md is enough."""
    fields: dict[str, JsonValue] = digits_job(job_id="j").model_dump(mode="json", exclude_unset=True)
    if command[0] == "node":
        fields["augmentation"] = {"rotate_degrees": 10}
    job = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    try:
        done = subprocess.run([*command, job], env={**os.environ, "KEY": KEY}, capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed: nothing was signed with it")
    created = "2026-11-23T12:00:00.000000Z"
    sent = {"data": done.stdout.decode(), "status": "queued", "created_at": created, **hash_fields}
    raw.hset("rq:job:j", mapping={name: value for name, value in sent.items()})  # noqa: C416 - the type
    raw.rpush("rq:queue:preflight", "j")
    worker = run_worker(SIGNED)
    assert producer.status("j").status == "finished", worker.output()
