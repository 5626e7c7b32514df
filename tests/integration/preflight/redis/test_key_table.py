"""The table of keys: every key that is used is in it, and what it says of types and times to live holds."""

import ast
import inspect
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from redis import Redis
from rq import Queue
from support.web.service import serving
from support.worker.services import ROOT, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from preflight.redis.keys import DIFFERENT, KEYS, Key, kind_of
from preflight.redis.replies import text
from preflight.wire import FUNCTION
from worker.config.settings import Settings

NAMED = re.compile(r"^(?:rq|preflight):")
NO_KEYS = ("preflight: ",)
"""Texts of messages."""
KEPT = ("none", "a channel", "RQ")
"""How the time to live begins of a key that may have none."""


def used_by_scripts() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "client" / "preflight" / "redis" / "scripts").rglob("*.lua")):
        yield from ((path.name, name) for name in re.findall(r"'((?:rq|preflight):[^']*)'", path.read_text()))


def used_by_modules() -> Iterator[tuple[str, str]]:
    for path in sorted(path for room in ("preflight", "worker") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.match(node.value):
                yield str(path.relative_to(ROOT)), node.value


def begins_a_key(name: str) -> bool:
    """Whether a text of the source is the name of a key of the table, or its beginning."""
    found = [row.named(dict.fromkeys(DIFFERENT, "")).replace("{}", "{") for row in KEYS]
    return any(key.startswith(name.partition("{")[0]) for key in [*found, *(row.name for row in KEYS)])


def test_no_source_names_a_key_that_is_not_in_the_table() -> None:
    used = [*used_by_scripts(), *used_by_modules()]
    assert len(used) > 40
    assert [(where, name) for where, name in used if not (begins_a_key(name) or name.startswith(NO_KEYS))] == []


def test_every_function_of_the_module_makes_a_key_of_the_table() -> None:
    made: dict[str, Key | None] = {}
    for name, function in inspect.getmembers(keys, inspect.isfunction):
        if function.__module__ == keys.__name__ and name != kind_of.__name__:
            given = {"with_scheduler": True, "number": 0}
            parts = [given.get(part, f"<{part}>") for part in inspect.signature(function).parameters]
            made[name] = kind_of(str(function(*parts)))
    assert len(made) > 20
    assert {name for name, row in made.items() if row is None} == set()
    assert {row.name.partition(":")[0] for row in made.values() if row is not None} == {"rq", "preflight"}


def test_rows_are_whole_and_no_two_are_alike() -> None:
    assert len({row.name for row in KEYS}) == len(KEYS)
    for row in KEYS:
        assert all((row.writer, row.reader, row.bound, row.ttl)), row
        assert kind_of(row.named(dict.fromkeys(DIFFERENT, "x"))) == row


@contextmanager
def commands_of(connection: Redis) -> Iterator[list[str]]:
    """Collect what all clients and scripts send to Redis."""
    seen: list[str] = []
    with connection.monitor() as monitor:

        def collect() -> None:
            for command in monitor.listen():
                if "the end of the test" in command["command"]:
                    return
                seen.append(command["command"])

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        yield seen
        connection.echo("the end of the test")
        thread.join(20)
        assert not thread.is_alive()


def keys_in(command: str) -> Iterator[str]:
    """Return the words of a command that are keys; texts of scripts and payloads have spaces or quotes."""
    for word in command.split(" ")[1:]:
        if NAMED.match(word) and not re.search(r'["\\\']', word):
            yield word


def test_all_keys_of_a_real_run_are_in_the_table(
    raw: Redis, queue: Queue, client: Client, settings: Settings, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Workers with groups, jobs that finish, fail, wait, repeat and depend on each other, a client, the web service."""
    with commands_of(Redis.from_url(settings.redis_url)) as commands:
        start_worker(environment={"PREFLIGHT_GROUP": "on", "PREFLIGHT_SIGNING_KEY": ""})
        request = digits_job(job_id="done").model_dump(mode="json", exclude_unset=True)
        queue.enqueue(FUNCTION, args=(request,), job_id="other-id", on_success=None)
        client.enqueue(digits_job(job_id="fails", batch_size=60_000))
        failing = queue.enqueue(FUNCTION, args=({**request, "job_id": "late", "epochs": 0},), job_id="late")
        queue.enqueue(FUNCTION, args=({**request, "job_id": "after"},), job_id="after", depends_on=failing)
        queue.enqueue_in(timedelta(seconds=1), FUNCTION, args=({**request, "job_id": "timed"},), job_id="timed")
        raw.rpush(queue.key, b"\xff")
        with serving(settings, tmp_path) as service:
            for job_id in ("done", "fails", "timed"):
                wait_for(client, job_id)
            for path in (
                "/v1/jobs",
                "/v1/search",
                "/v1/jobs/done",
                "/v1/overview",
                "/metrics",
                "/v1/jobs/done/lifecycle",
            ):
                service.ask("GET", path)
        client.jobs()
        client.cancel("after")
        list(client.events("done", timeout=0.1))
        wait_until(lambda: raw.hlen(keys.QUARANTINE) == 1)
    used = {key for command in commands for key in keys_in(command)}
    assert {key for key in used if kind_of(key) is None and not key.startswith("rq:pubsub")} == set()
    assert {row.name for key in used if (row := kind_of(key))} >= {
        row.name for row in KEYS if row.writer == "worker"
        and not row.name.endswith((":accepted", ":plan", ":dataset", ":group", ":unscheduled:{number}"))
    }  # fmt: skip
    for key in sorted(map(text, raw.keys())):
        row = kind_of(key)
        assert row is not None, key
        assert text(raw.type(key)) == row.kind, key
        assert raw.ttl(key) > 0 or row.ttl.startswith(KEPT) or key.startswith(("rq:", keys.offers(""))), key
