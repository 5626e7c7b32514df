"""Connections behind one address that leads to another server after a failover, while the old ones stay open."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
from support.worker.services import wait_until

from preflight.redis.connection import PATIENCE, open_async_redis, open_redis
from preflight.redis.primary import ROLE_INTERVAL, NotPrimary, is_refusal_of_replica, may_be_over_elsewhere
from preflight.redis.server import embedded as embedded_redis
from preflight.redis.server.embedded import redis_server
from tools.faults.machines import Pair, RedisServer, command, new_pair

NEWER = Path(__file__).parents[4] / "build" / "redis-server"
"""The newer one that tests/system.sh installs."""
BOUND = 10 * ROLE_INTERVAL


@pytest.fixture(params=["bundled", "of Debian"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A primary and its replica, and the way to the primary."""
    if request.param == "of Debian":
        if not NEWER.exists():
            pytest.skip("no newer Redis could be installed")
        monkeypatch.setattr(embedded_redis, "executable", lambda: NEWER)
        monkeypatch.setattr("tools.faults.machines.executable", lambda: NEWER)
    with new_pair(tmp_path / "pair") as pair:
        yield pair


def seconds_until(holds: Callable[[], bool]) -> float:
    began = time.monotonic()
    wait_until(holds, BOUND)
    return time.monotonic() - began


def script(redis: Redis, body: str) -> Callable[[], object]:
    """Return a call of a script that this connection's server knows already, as after a start."""
    call = redis.register_script(body)
    call(keys=["known"])
    return lambda: call(keys=["known"])


def piped(redis: Redis, *commands: tuple[str, ...], transaction: bool = True) -> Callable[[], object]:
    """Return a call of a pipeline."""

    def call() -> object:
        pipe = redis.pipeline(transaction=transaction)
        for words in commands:
            pipe.execute_command(*words)
        return pipe.execute()

    return call


SET = ("SET", "x", "1")
GET = ("GET", "x")
INCREMENT = "return redis.call('INCR', KEYS[1])"
WRITES: dict[str, Callable[[Redis], Callable[[], object]]] = {
    "a write": lambda redis: lambda: redis.set("x", "1"),
    "a script": lambda redis: script(redis, INCREMENT),
    "a script that passes an error on": lambda redis: script(redis, "return redis.pcall('INCR', KEYS[1])"),
    "a transaction": lambda redis: piped(redis, GET, SET),
    "a script in a transaction": lambda redis: piped(redis, GET, ("EVAL", INCREMENT, "1", "n")),
    "a pipeline": lambda redis: piped(redis, GET, SET, GET, transaction=False),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", WRITES)
def test_a_write_that_a_replica_refuses_ends_all_connections_to_it(pair: Pair, kind: str) -> None:
    """A worker's connection fails once, a client's not at all; each is carried out once."""
    worker, client = open_redis(pair.proxy.url), open_redis(pair.proxy.url, retries=PATIENCE)
    calls = [WRITES[kind](redis) for redis in (worker, client)]
    other = worker.pubsub()
    other.subscribe("channel")
    assert other.get_message(timeout=1) is not None
    for call in calls:
        call()
    pair.fail_over()
    with pytest.raises(NotPrimary):
        calls[0]()
    for call in calls:
        call()
    wait_until(lambda: heard(other, pair.primary), BOUND)


def test_a_command_that_waits_while_its_server_becomes_a_replica_ends(pair: Pair) -> None:
    redis = open_redis(pair.proxy.url, seconds=60)
    caught: list[RedisError] = []

    def wait() -> None:
        try:
            redis.execute_command("BLMOVE", "queue", "taken", "LEFT", "RIGHT", 50)
        except RedisError as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: b"blocked_clients:1" in command(pair.primary, "INFO", "clients"))
    pair.fail_over()
    waiting.join(BOUND)
    assert [type(error) for error in caught] == [NotPrimary]
    assert redis.set("x", "1")


@pytest.mark.parametrize("direction", ["there", "and back"])
def test_a_connection_that_only_reads_notices_within_seconds(pair: Pair, direction: str) -> None:
    """A replica answers reads for ever; one that is a replica of nobody would give old data."""
    redis = open_redis(pair.proxy.url)
    redis.set("x", "old")
    if direction == "and back":
        pair.fail_over()
        assert seconds_until(lambda: read(redis, "x") == b"old") < BOUND
    pair.lag()
    pair.fail_over_behind()
    command(pair.primary, "SET", "x", "new")
    command(pair.replica, "REPLICAOF", "127.0.0.1", "1")  # cut off: it stays behind
    command(pair.primary, "SET", "x", "newest")
    seconds = seconds_until(lambda: read(redis, "x") == b"newest")
    print(f"read from the new primary after {seconds:.1f} s")


def read(redis: Redis, key: str) -> object:
    try:
        return redis.get(key)
    except NotPrimary:
        return None


def test_a_client_for_asyncio_notices_within_seconds(pair: Pair) -> None:
    """Of what it writes none fails; what it reads is of the new primary after some seconds."""

    async def main() -> None:
        redis = open_async_redis(pair.proxy.url, retries=PATIENCE)
        await redis.set("x", "1")
        pair.fail_over()
        assert await redis.set("x", "2")
        assert command(pair.primary, "GET", "x") == b"2"
        pair.fail_over()
        pipe = redis.pipeline(transaction=True)
        pipe.set("x", "3")
        assert await pipe.execute() == [True]
        pair.lag()
        pair.fail_over_behind()
        command(pair.replica, "REPLICAOF", "127.0.0.1", "1")  # cut off: it stays behind
        command(pair.primary, "XADD", "stream", "*", "number", "1")
        began = time.monotonic()
        while not await redis.xread({"stream": "0"}, block=100):
            assert time.monotonic() - began < BOUND
        print(f"a stream is read from the new primary after {time.monotonic() - began:.1f} s")
        await redis.aclose()

    asyncio.run(main())


def test_a_new_connection_to_a_replica_is_refused(pair: Pair) -> None:
    """An address may lead to the old primary for a while: nothing is read there; a client tries again meanwhile."""
    command(pair.primary, "SET", "x", "1")
    pair.proxy.target = pair.replica.path
    worker, client = open_redis(pair.proxy.url), open_redis(pair.proxy.url, retries=PATIENCE)
    with pytest.raises(NotPrimary, match="its role is replica"):
        worker.get("x")
    threading.Timer(0.5, lambda: setattr(pair.proxy, "target", pair.primary.path)).start()
    assert client.get("x") == b"1"
    assert worker.get("x") == b"1"


def test_a_server_that_loads_its_data_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis", options=("--appendonly", "no", "--rdbcompression", "no"))
    server.start()
    with Redis.from_url(server.url) as plain:
        plain.mset({f"key-{number}": "1" * 1_000_000 for number in range(30)})
        plain.save()
    server.kill()
    server.options = (*server.options, "--key-load-delay", "30000")  # microseconds
    server.start(ready=False)
    redis = open_redis(server.url)
    seen: set[type[RedisError]] = set()

    def answers() -> bool:
        try:
            return bool(redis.set("key-0", "2"))
        except RedisError as error:
            seen.add(type(error))
            return False

    try:
        wait_until(answers, BOUND)
        assert BusyLoadingError in seen
        assert redis.dbsize() == 30
    finally:
        server.kill()


def test_a_user_that_may_not_ask_the_role_is_served() -> None:
    with redis_server() as url:
        admin = Redis.from_url(url)
        admin.acl_setuser("poor", enabled=True, passwords=["+pass"], keys=["*"], commands=["+get", "+set", "+hello"])
        poor = open_redis(url.replace("unix://", "unix://poor:pass@"))
        assert poor.set("x", "1")
        admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(NotPrimary):
            poor.set("x", "2")


def test_a_primary_without_replicas_is_left_for_another(pair: Pair) -> None:
    """One that was cut off refuses writes, too; the error stays what it is."""
    redis = open_redis(pair.proxy.url)
    redis.set("x", "1")
    command(pair.primary, "CONFIG", "SET", "min-replicas-to-write", "2")
    pair.promote()
    with pytest.raises(ResponseError, match="NOREPLICAS"):
        redis.set("x", "2")
    assert redis.set("x", "3")
    assert command(pair.primary, "GET", "x") == b"3"


def test_a_lost_connection_ends_the_others_of_its_pool(pair: Pair) -> None:
    """The old primary may close only some: a subscription that stays would be silent."""
    redis = open_redis(pair.proxy.url)
    subscription = redis.pubsub()
    subscription.subscribe("channel")
    assert subscription.get_message(timeout=1) is not None
    redis.get("x")
    pair.promote()
    command(pair.replica, "CLIENT", "KILL", "TYPE", "normal")
    wait_until(lambda: read_any(redis), BOUND)
    wait_until(lambda: heard(subscription, pair.primary), BOUND)


def read_any(redis: Redis) -> bool:
    try:
        redis.get("x")
    except RedisError:
        return False
    return True


def heard(subscription: PubSub, server: RedisServer) -> bool:
    """Whether a subscription hears what is published at a server."""
    command(server, "PUBLISH", "channel", "word")
    message = subscription.get_message(timeout=0.1)
    return message is not None and message["data"] == b"word"


@pytest.mark.parametrize(
    ("text", "refused", "elsewhere"),
    [
        ("READONLY You can't write against a read only replica.", True, False),
        ("Error running script (call to f_1): @user_script:1: -READONLY You can't write against a read only replica.",
         True, False),
        ("Transaction discarded because of: READONLY You can't write against a read only replica.", True, False),
        ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", True, False),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", True, False),
        ("NOREPLICAS Not enough good replicas to write.", False, True),
        ("MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.", False, True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", False, True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False, False),
        ("unknown command 'READONLYX'", False, False),
    ],
)  # fmt: skip
def test_answers_are_told_apart(text: str, refused: bool, elsewhere: bool) -> None:
    error = ResponseError(text)
    assert (is_refusal_of_replica(error), may_be_over_elsewhere(error)) == (refused, elsewhere)
