"""`preflight doctor`: which checks it runs and how they fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis
from support.worker.command_line import run

from preflight.redis import keys
from preflight.redis.server.embedded import redis_server

pytestmark = pytest.mark.usefixtures("command_environment")


def test_an_absent_redis_fails() -> None:
    """Exit code 1; the other checks run all the same, and no line shows the password."""
    result = run("doctor", "--json")
    checks = {line["name"]: line["status"] for line in map(json.loads, result.stdout.splitlines())}
    assert result.exit_code == 1
    assert (checks["redis"], checks["torch"], checks["cpu"]) == ("fail", "ok", "ok")
    assert "hunter2" not in result.output
    assert {"bytecode", "memory", "data_dir", "artifact_dir", "cache_dir", "data", "torchvision"} <= set(checks)
    assert "fail  redis" in run("doctor").stdout


def test_the_exit_code_is_0_where_no_check_fails(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", redis_url)
    result = run("doctor")
    assert result.exit_code == 0, result.stdout


def test_parts_of_a_worker_that_fail_are_shown(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    """As its record says; of one that says anything, what can be printed."""
    redis = Redis.from_url(redis_url)
    redis.flushall()
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", redis_url)
    redis.sadd("rq:workers:preflight", "rq:worker:a", "rq:worker:b", "rq:worker:c", b"\xff")
    redis.hset("rq:worker:a", keys.FAILING, "Scheduler: KeyError")
    redis.hset("rq:worker:b", keys.FAILING, b"\x1b[31m\xff" + b"x" * 100_000)
    redis.set("rq:worker:c", "another type")
    shown = [line for line in run("doctor").stdout.splitlines() if "worker parts" in line]
    assert len(shown) == 2
    assert "worker a: Scheduler: KeyError" in shown[0]
    assert "\x1b" not in shown[1]
    assert len(shown[1]) < 1000
    redis.flushall()


@pytest.mark.parametrize(("options", "expected", "code"), [
    (("--rename-command", "EVAL", "", "--rename-command", "EVALSHA", ""), ("redis scripts", "fail", "grant `+eval"), 1),
    (("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"), ("redis memory", "warn", "is allkeys-lru"), 0),
    (("--maxmemory", "64mb", "--maxmemory-policy", "volatile-ttl"), ("redis memory", "warn", "to noeviction"), 0),
    (("--maxmemory-policy", "allkeys-lru"), None, 0),
])  # fmt: skip
def test_a_redis_with_which_jobs_do_not_run_or_get_lost_is_named(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], expected: tuple[str, str, str] | None, code: int
) -> None:
    """Without a limit of memory nothing is evicted."""
    with redis_server(*options) as url:
        monkeypatch.setenv("PREFLIGHT_REDIS_URL", url)
        result = run("doctor", "--json")
    found = [line for line in map(json.loads, result.stdout.splitlines()) if line["name"].startswith("redis ")]
    assert result.exit_code == code
    assert [(line["name"], line["status"]) for line in found] == ([expected[:2]] if expected else [])
    assert expected is None or expected[2] in found[0]["detail"]


def test_missing_bytecode_is_a_warning(tmp_path: Path) -> None:
    """With an empty bytecode cache that Python may not write; in a new process, as torch may be imported here."""
    no_bytecode = {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-m", "worker.cli", "doctor"]
    done = subprocess.run(command, env={**os.environ, **no_bytecode}, capture_output=True, text=True)
    assert "warn  bytecode            there is no bytecode of torch" in done.stdout


def test_an_unwritable_directory_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PREFLIGHT_ARTIFACT_DIR", str(tmp_path / "file" / "artifacts"))
    assert "fail  artifact_dir" in run("doctor").stdout
