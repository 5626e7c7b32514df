"""Waiting for Redis: it ends when Redis is there, when waiting is in vain, and when something else ends it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from faults.machines import RedisServer
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry
from structlog.testing import capture_logs

from worker.broker import retry as patience
from worker.broker.embedded_redis import redis_server
from worker.broker.retry import insist, trouble
from worker.config.settings import Settings


class Enough(Exception):
    """What ends the waiting."""


class Look:
    """Counts the looks between the tries, and ends the wait at one of them."""

    def __init__(self, last: int = 1_000_000) -> None:
        self.times = 0
        self._last = last

    def __call__(self) -> None:
        self.times += 1
        if self.times >= self._last:
            raise Enough


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for long."""
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(patience, "LONGEST_PAUSE", 0.002)


def connected(url: str) -> Redis:
    return Redis.from_url(url, socket_timeout=0.2, socket_connect_timeout=0.2, retry=Retry(NoBackoff(), 0))


@pytest.fixture
def nowhere(tmp_path: Path) -> Redis:
    """A Redis that is not there."""
    return connected(f"unix://{tmp_path}/none")


def test_what_redis_answers_is_returned(connection: Redis) -> None:
    """At the first try, without a look."""
    look = Look()
    assert insist(lambda: connection.incr("x"), "count", look) == 1
    assert (connection.get("x"), look.times) == ("1", 0)


def test_a_redis_that_is_away_is_waited_for(server: RedisServer) -> None:
    """Killed and standing still, as often as it takes."""
    raw = connected(server.url)
    server.kill()

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 5:
            server.start()
            server.halt()
        if len(looks) == 7:
            server.go_on()

    looks: list[int] = []
    assert insist(raw.ping, "ask", look)
    assert len(looks) >= 7


def test_a_full_redis_is_waited_for(settings: Settings) -> None:
    """Room may be made."""
    raw = connected(settings.redis_url)
    raw.config_set("maxmemory", 1)
    look = Look()

    def room() -> None:
        look()
        if look.times == 3:
            raw.config_set("maxmemory", 0)

    try:
        insist(lambda: raw.set("x", "1"), "write", room)
    finally:
        raw.config_set("maxmemory", 0)
    assert (raw.get("x"), look.times) == (b"1", 3)


def test_what_a_look_raises_ends_the_wait(nowhere: Redis) -> None:
    """The signal, the superseded attempt: it is heard between two tries, and no further try is made."""
    tries: list[int] = []

    def action() -> None:
        tries.append(len(tries))
        nowhere.ping()

    with pytest.raises(Enough):
        insist(action, "ask", Look(4))
    assert len(tries) == 4


def test_a_wrong_password_is_not_waited_for() -> None:
    """It is raised at the first try, whether none or another was sent."""
    with redis_server("--requirepass", "right") as url:
        for wrong in (url, url.replace("unix://", "unix://:wrong@")):
            look = Look()
            with pytest.raises(AuthenticationError):
                insist(connected(wrong).ping, "ask", look)
            assert look.times == 0


def test_a_missing_right_is_not_waited_for(settings: Settings) -> None:
    """Nor is it."""
    raw, look = Redis.from_url(settings.redis_url), Look()
    raw.acl_setuser("poor", enabled=True, passwords=["+pass"], keys=["none"], categories=["+@all"])
    poor = connected(settings.redis_url.replace("unix://", "unix://poor:pass@"))
    try:
        with pytest.raises(NoPermissionError):
            insist(lambda: poor.get("x"), "read", look)
    finally:
        raw.acl_deluser("poor")
    assert look.times == 0


@pytest.mark.parametrize("script", [False, True])
def test_a_key_of_another_type_is_not_waited_for(connection: Redis, script: bool) -> None:
    """Nor does a key become what it should be, in a script or outside of one."""
    connection.set("x", "1")
    look = Look()
    call = connection.register_script("return redis.call('HGET', KEYS[1], 'a')")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        insist(lambda: call(keys=["x"]) if script else connection.hget("x", "a"), "read", look)
    assert look.times == 0


def test_our_own_mistakes_are_not_waited_for() -> None:
    """Whatever is no error of Redis comes through at once."""
    look = Look()
    with pytest.raises(ZeroDivisionError):
        insist(lambda: 1 // 0, "divide", look)
    assert look.times == 0


def test_a_long_wait_is_said_once_in_a_while(nowhere: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its beginning, with what is waited for, and not at every try; then again and again."""
    with capture_logs() as log, pytest.raises(Enough):
        insist(nowhere.ping, "ask", Look(20))
    assert [(line["event"], line["to"], line["log_level"]) for line in log] == [("waiting_for_redis", "ask", "warning")]
    monkeypatch.setattr(patience, "SAY_EVERY", 0.0)
    with capture_logs() as log, pytest.raises(Enough):
        insist(nowhere.ping, "ask", Look(20))
    assert len(log) == 20


def failed(action: Callable[[], object]) -> str:
    """Return what is said of the error of Redis that `action` raises."""
    with pytest.raises(RedisError) as caught:
        action()
    return trouble(caught.value)


def test_what_is_the_matter_is_named(server: RedisServer, nowhere: Redis) -> None:
    """In words, with Redis's own after them; the special case before the general one."""
    raw, url = connected(server.url), server.url
    assert failed(nowhere.ping).startswith("Redis cannot be reached: ")
    raw.set("text", "1")
    assert failed(lambda: raw.hget("text", "a")).startswith("Redis refuses: WRONGTYPE")
    raw.config_set("maxmemory", 1)
    assert failed(lambda: raw.set("x", "1")).startswith("Redis is full: ")
    raw.config_set("maxmemory", 0)
    raw.execute_command("REPLICAOF", "127.0.0.1", "1")
    assert failed(lambda: raw.set("x", "1")).startswith("Redis is a read-only replica: ")
    raw.execute_command("REPLICAOF", "NO", "ONE")
    raw.acl_setuser("poor", enabled=True, passwords=["+pass"], keys=["none"], categories=["+@all"])
    poor = connected(url.replace("unix://", "unix://poor:pass@"))
    assert failed(lambda: poor.get("x")).startswith("Redis refuses a command: ")
    stranger = connected(url.replace("unix://", "unix://poor:wrong@"))
    assert failed(stranger.ping).startswith("Redis refuses the password: ")
    server.halt()
    assert failed(raw.ping).startswith("Redis does not answer in time: ")
