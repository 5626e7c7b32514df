"""A Redis that answers, and with which nothing runs or jobs get lost: said when a worker starts."""

from collections.abc import Iterator

import pytest
from redis import Redis
from support.worker.services import StartWorker

from preflight.redis.server.embedded import redis_server
from preflight.redis.server.faults import ServerFaults, find_faults

RENAMED = ("--rename-command", "EVAL", "", "--rename-command", "EVALSHA", "")
PASSWORD = "secret"  # noqa: S105 - it opens nothing
EVICTING = ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")


@pytest.fixture
def faulty(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server with the options of the test."""
    with redis_server(*request.param) as url:
        yield url


@pytest.mark.parametrize("faulty", [RENAMED], indirect=True)
def test_a_worker_does_not_start_where_scripts_are_refused(faulty: str, start_worker: StartWorker) -> None:
    """It waited for jobs that nobody could enqueue."""
    worker = start_worker("--burst", environment={"PREFLIGHT_REDIS_URL": faulty})
    assert worker.wait() == 1
    (line,) = [line for line in worker.output().splitlines() if line.startswith("preflight: ")]
    assert "refuses scripts" in line and "grant `+eval +evalsha +script|load` to its user" in line


@pytest.mark.parametrize("faulty", [EVICTING], indirect=True)
def test_a_worker_says_that_redis_evicts(faulty: str, start_worker: StartWorker) -> None:
    worker = start_worker("--burst", environment={"PREFLIGHT_REDIS_URL": faulty})
    assert worker.wait() == 0
    assert "maxmemory-policy is allkeys-lru" in worker.output()


def test_a_user_without_scripting_is_a_fault_of_the_same_kind(raw: Redis, redis_url: str) -> None:
    """And one who may not read INFO is none: managed services forbid CONFIG, and some INFO."""
    raw.execute_command("ACL", "SETUSER", "scriptless", "on", f">{PASSWORD}", "~*", "+@all", "-@scripting", "-info")
    raw.execute_command("ACL", "SETUSER", "blind", "on", f">{PASSWORD}", "~*", "+@all", "-info", "-config")
    try:
        path = redis_url.removeprefix("unix://")
        users = ("scriptless", "blind")
        found = {user: find_faults(Redis(unix_socket_path=path, username=user, password=PASSWORD)) for user in users}
    finally:
        raw.execute_command("ACL", "DELUSER", "scriptless", "blind")
    scripts = found["scriptless"].scripts
    assert scripts is not None and "no permissions" in scripts
    assert found["blind"] == ServerFaults()


@pytest.mark.parametrize(("policy", "limit", "is_fault"), [
    ("noeviction", "64mb", False), ("volatile-lru", "64mb", True), ("allkeys-random", "64mb", True),
    ("allkeys-lru", "0", False),
])  # fmt: skip
def test_only_a_redis_that_can_be_full_evicts(raw: Redis, policy: str, limit: str, is_fault: bool) -> None:
    raw.config_set("maxmemory-policy", policy)
    raw.config_set("maxmemory", limit)
    try:
        found = find_faults(raw).eviction
    finally:
        raw.config_set("maxmemory", 0)
        raw.config_set("maxmemory-policy", "noeviction")
    assert (found is not None) is is_fault
    assert found is None or f"maxmemory-policy is {policy}" in found
