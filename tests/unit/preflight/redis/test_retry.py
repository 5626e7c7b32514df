"""Retries of Redis operations: they end on success, on permanent errors, and when `on_retry` raises."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError, RedisError, ResponseError
from structlog.testing import capture_logs
from support.worker.services import out_of_memory, read_only, without_retries

from preflight.redis import outage, retry
from preflight.redis.outage import Outage
from preflight.redis.retry import describe_error, retry_until_available
from preflight.redis.server.embedded import redis_server
from tools.faults.machines import RedisServer
from worker.config.settings import Settings


class Enough(Exception):
    """Ends the wait."""


class Look:
    """Counts calls between the tries, and ends the wait at one of them."""

    def __init__(self, last: int = 1_000_000) -> None:
        self.times = 0
        self._last = last

    def __call__(self) -> None:
        self.times += 1
        if self.times >= self._last:
            raise Enough


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "BASE_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(retry, "MAX_PAUSE_SECONDS", 0.002)


@pytest.fixture
def nowhere(tmp_path: Path) -> Redis:
    """A Redis that does not exist."""
    return without_retries(f"unix://{tmp_path}/none")


def test_an_answer_is_returned_at_the_first_try(connection: Redis) -> None:
    look = Look()
    assert retry_until_available(lambda: connection.incr("x"), "count", look) == 1
    assert (connection.get("x"), look.times) == ("1", 0)


def test_a_redis_that_is_away_is_retried(server: RedisServer) -> None:
    raw = without_retries(server.url)
    server.kill()

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 5:
            server.start()
            server.halt()
        if len(looks) == 7:
            server.go_on()

    looks: list[int] = []
    assert retry_until_available(raw.ping, "ask", look)
    assert len(looks) >= 7


def test_a_full_redis_is_retried(settings: Settings) -> None:
    raw = without_retries(settings.redis_url)
    look = Look()

    def room() -> None:
        look()
        if look.times == 3:
            raw.config_set("maxmemory", 0)

    with out_of_memory(raw):
        retry_until_available(lambda: raw.set("x", "1"), "write", room)
    assert (raw.get("x"), look.times) == (b"1", 3)


def test_an_exception_of_on_retry_ends_the_wait(nowhere: Redis) -> None:
    tries: list[int] = []

    def action() -> None:
        tries.append(len(tries))
        nowhere.ping()

    with pytest.raises(Enough):
        retry_until_available(action, "ask", Look(4))
    assert len(tries) == 4


def test_a_refused_password_is_not_retried() -> None:
    with redis_server("--requirepass", "right") as url:
        for wrong in (url, url.replace("unix://", "unix://:wrong@")):
            look = Look()
            with pytest.raises(AuthenticationError):
                retry_until_available(without_retries(wrong).ping, "ask", look)
            assert look.times == 0


def test_a_missing_permission_is_not_retried(settings: Settings) -> None:
    raw, look = Redis.from_url(settings.redis_url), Look()
    raw.acl_setuser("poor", enabled=True, passwords=["+pass"], keys=["none"], categories=["+@all"])
    poor = without_retries(settings.redis_url.replace("unix://", "unix://poor:pass@"))
    try:
        with pytest.raises(NoPermissionError):
            retry_until_available(lambda: poor.get("x"), "read", look)
    finally:
        raw.acl_deluser("poor")
    assert look.times == 0


@pytest.mark.parametrize("script", [False, True])
def test_a_key_of_another_type_is_not_retried(connection: Redis, script: bool) -> None:
    connection.set("x", "1")
    look = Look()
    call = connection.register_script("return redis.call('HGET', KEYS[1], 'a')")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        retry_until_available(lambda: call(keys=["x"]) if script else connection.hget("x", "a"), "read", look)
    assert look.times == 0


def test_other_exceptions_are_not_retried() -> None:
    look = Look()
    with pytest.raises(ZeroDivisionError):
        retry_until_available(lambda: 1 // 0, "divide", look)
    assert look.times == 0


def test_an_outage_is_logged_at_its_start_at_intervals_and_at_its_end(
    nowhere: Redis, connection: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for any number of waits; the last one says how many events were delivered, once all are."""
    monkeypatch.setattr(retry, "REDIS", Outage(describe_error))
    with capture_logs() as log, pytest.raises(Enough):
        retry_until_available(nowhere.ping, "ask", Look(20))
    with capture_logs() as more, pytest.raises(Enough):
        retry_until_available(nowhere.ping, "ask again", Look(20))
    (line,) = [*log, *more]
    assert (line["event"], line["to"], line["log_level"]) == ("redis_away", "ask", "warning")
    assert line["message"].startswith("Redis cannot be reached")
    monkeypatch.setattr(outage, "LOG_INTERVAL", 0.0)
    retry.REDIS.note_failure(ConnectionError("gone"))  # the interval that began with the last line
    waiting = [14]
    retry.REDIS.backlog = lambda: waiting[0]
    with capture_logs() as log:
        retry_until_available(connection.ping, "ask", Look())
        assert log == []  # it is over when nothing waits any more
        waiting[0] = 0
        retry_until_available(connection.ping, "ask", Look())
        retry_until_available(connection.ping, "ask", Look())
    (line,) = log
    assert (line["event"], line["delivered"], line["log_level"]) == ("redis_back", 14, "info")
    assert re.fullmatch(r"Redis is back after \d+ s; 14 events delivered", line["message"])


def failed(action: Callable[[], object]) -> str:
    """Return the description of the error that `action` raises."""
    with pytest.raises(RedisError) as caught:
        action()
    return describe_error(caught.value)


def test_conditions_of_redis_are_named(server: RedisServer, nowhere: Redis) -> None:
    """Special conditions before general ones."""
    raw, url = without_retries(server.url), server.url
    assert failed(nowhere.ping).startswith("Redis cannot be reached: ")
    raw.set("text", "1")
    assert failed(lambda: raw.hget("text", "a")).startswith("Redis refuses: WRONGTYPE")
    with out_of_memory(raw):
        assert failed(lambda: raw.set("x", "1")).startswith("Redis is full: ")
    with read_only(Redis.from_url(url)):
        assert failed(lambda: raw.set("x", "1")).startswith("Redis is a read-only replica: ")
    raw.acl_setuser("poor", enabled=True, passwords=["+pass"], keys=["none"], categories=["+@all"])
    poor, stranger = (without_retries(url.replace("unix://", f"unix://poor:{word}@")) for word in ("pass", "wrong"))
    assert failed(lambda: poor.get("x")).startswith("Redis refuses a command: ")
    assert failed(stranger.ping).startswith("Redis refuses the password: ")
    server.halt()
    assert failed(raw.ping).startswith("Redis does not answer in time: ")
