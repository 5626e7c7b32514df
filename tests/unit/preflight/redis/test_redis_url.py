"""Addresses of Redis as other clients and platforms write them: understood, or refused in one sentence."""

import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from redis import Redis

from preflight import Client
from preflight.errors import InvalidConfig
from preflight.redis.parameters import IGNORED_NAMES, USED
from preflight.redis.url import parse


def options(url: str) -> Mapping[str, object]:
    """Return what redis-py makes of an address, without the defaults."""
    with Redis.from_url(parse(url, "REDIS_URL").url) as connection:
        connection.connection_pool.make_connection()  # raises TypeError for a parameter that it does not know
        given = connection.connection_pool.connection_kwargs
    wanted = ("host", "port", "db", "username", "password", "path")
    return {name: given[name] for name in given if name in wanted or name.startswith("ssl_")}


@pytest.mark.parametrize(("url", "expected"), [
    ("redis://127.0.0.1:6379/0?family=0", {"host": "127.0.0.1", "port": 6379, "db": 0}),  # Railway, ioredis
    ("redis://default:pw@redis.railway.internal:6379?family=6",
     {"host": "redis.railway.internal", "port": 6379, "username": "default", "password": "pw"}),
    ("rediss://:p%40w@ec2.amazonaws.com:11469?ssl_cert_reqs=CERT_NONE",  # Heroku with Celery
     {"host": "ec2.amazonaws.com", "port": 11469, "password": "p@w", "ssl_cert_reqs": "none"}),
    ("rediss://default:pw@eu1.upstash.io:6379",
     {"host": "eu1.upstash.io", "port": 6379, "username": "default", "password": "pw"}),
    ("rediss://h:1/0?ssl_cert_reqs=ssl.CERT_REQUIRED", {"host": "h", "port": 1, "db": 0, "ssl_cert_reqs": "required"}),
    ("rediss://h?ssl_check_hostname=False", {"host": "h", "ssl_check_hostname": False}),
    ("redis://h:1/2?ssl_cert_reqs=none&ssl_ca_certs=/dev/null", {"host": "h", "port": 1, "db": 2}),
    ("rediss://h?tls=true&ssl=1", {"host": "h"}),
    ("redis://h?tls=false", {"host": "h"}),
    ("rediss://h:1/3?dial_timeout=5s&read_timeout=-1&pool_size=10&skip_verify=true&client_name=x",  # go-redis
     {"host": "h", "port": 1, "db": 3, "ssl_cert_reqs": "none"}),
    ("rediss://h/0?rejectUnauthorized=true&maxRetriesPerRequest=null&enableReadyCheck=false",  # BullMQ
     {"host": "h", "db": 0, "ssl_cert_reqs": "required"}),
    ("redis://h/0?keyPrefix=app:&connectTimeout=10000&lazyConnect=true&db=4", {"host": "h", "db": 4}),
    ("redis://h/5?socket_timeout=0.5&decode_responses=True&protocol=3&max_connections=2&retry_on_timeout=true",
     {"host": "h", "db": 5}),
    ("redis://h/0?virtual_host=7&visibility_timeout=3600&health_check_interval=30", {"host": "h", "db": 7}),  # Kombu
    ("redis://h/1/cache", {"host": "h", "db": 1}),  # redis-store of Rails: a namespace
    ("redis://h?timeout=10s&clientName=x&database=2&verifyPeer=FULL", {"host": "h", "db": 2}),  # Lettuce
    ("redis+socket:///run/redis.sock?virtual_host=2", {"path": "/run/redis.sock", "db": 2}),
    ("unix://u:p@/run/redis.sock?db=1", {"path": "/run/redis.sock", "db": 1, "username": "u", "password": "p"}),
    ("unix:/run/redis.sock", {"path": "/run/redis.sock"}),
    ("valkeys://h:1", {"host": "h", "port": 1}),
    ("REDIS://h", {"host": "h"}),
    ("redis://[fd00::1]:6379/0", {"host": "fd00::1", "port": 6379, "db": 0}),
    ("redis://", {}),
    ("redis://h/1?ssl_ca_certs=/nowhere&ssl_cert_reqs=whatever&db=&password=&", {"host": "h", "db": 1}),
    ("rediss://h?skip_verify&ssl_keyfile=", {"host": "h", "ssl_cert_reqs": "none"}),
    ("redis://h?username=u&password=p%2Fw", {"host": "h", "username": "u", "password": "p/w"}),
    (" \"redis://h:1/0\"\r\n", {"host": "h", "port": 1, "db": 0}),
])  # fmt: skip
def test_an_address_is_understood(url: str, expected: Mapping[str, object]) -> None:
    """Whatever other clients add to it; redis-py gets what it knows, with values that it takes."""
    assert options(url) == expected


@pytest.mark.parametrize(("url", "words"), [
    ("redis://h?db=x", "has the parameter db=x, but it must be a whole number"),
    ("redis://h/x", "has the database 'x' behind the host, but it must be a whole number"),
    ("redis://h/1?db=2", "names database 1 in its path and database 2 in a parameter; leave one out"),
    ("redis://h?db=1&database=2", "has database twice, with two values; leave one out"),
    ("redis://h?tls=true", "asks for TLS by a parameter (tls or ssl), but begins with redis://"),
    ("rediss://h?ssl=false", "begins with rediss://, which is TLS, but has a parameter against it"),
    ("redis://h?family=x", "has the parameter family=x, but it must be 0, 4 or 6"),
    ("rediss://h?ssl_cert_reqs=maybe", "has the parameter ssl_cert_reqs=maybe, but it must be none, optional or"),
    ("rediss://h?rejectUnauthorized=maybe", "has the parameter rejectUnauthorized=maybe, but it must be true or false"),
    ("rediss://h?ssl_cert_req=none", "ssl_cert_req, which is unknown (did you mean 'ssl_cert_reqs'?)"),
    ("rediss://h?ssl_ca_certs=/nowhere", "ssl_ca_certs=/nowhere, which cannot be read (No such file or directory)"),
    ("redis://h?hunter2", "has the parameter hunter2, which is unknown"),
    ("redis://:6379/0", "has no host"),
    ("redis://:pw@/0", "has no host"),
    ("unix://run/redis.sock", "names no socket; write unix:///path/of/the/socket"),
    ("redis://a:1,b:2/0", "names several servers"),
    ("redis://:${REDIS_PASSWORD}@h", "holds the placeholder ${REDIS_PASSWORD}, which nothing has replaced"),
    ("https://eu1.upstash.io", "is 'https://eu1.upstash.io': must begin with redis://"),
    ("https://eu1.upstash.io", "is a REST address"),
    ("redis-sentinel://h:26379/mymaster", "is an address of Sentinel"),
    ("REDIS_URL=redis://h", "begins with a part of a command"),
    ("redis-cli --tls -u redis://default:hunter2@h", "begins with a part of a command"),
    ("h.redis.cache.windows.net:6380,password=hunter2,ssl=True", "must begin with redis://"),
    ("redis://h\n.example", "has a control character in it (\\n)"),
    ("'redis://h", "has a quotation mark on one side only"),
])  # fmt: skip
def test_a_wrong_address_is_refused_in_one_sentence(url: str, words: str) -> None:
    """With the variable's name, the parameter and what would be right."""
    with pytest.raises(InvalidConfig) as caught:
        parse(url, "REDIS_URL")
    assert caught.value.message.startswith("REDIS_URL ")
    assert words in caught.value.message
    assert "hunter2" not in caught.value.message or url == "redis://h?hunter2"


@pytest.mark.parametrize("url", [
    "redis://u:12?hunter2@h", "redis://u:12?hunter2=x@h", "redis://u:12/hunter2@h", "redis://u:12#hunter2@h",
    "redis://u:hunter2 @h", "redis://h?password=a&12=hunter2@h", "redis://h:1?%68unter2=hunter2@",
])  # fmt: skip
def test_a_password_that_is_not_escaped_is_not_shown(url: str) -> None:
    """A part of it can look like a parameter, a path or a fragment."""
    with pytest.raises(InvalidConfig, match="is no URL; write") as caught:
        parse(url, "REDIS_URL")
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("name", IGNORED_NAMES)
def test_what_has_no_effect_is_named(name: str) -> None:
    """In snake case, in camel case and with hyphens; none is a parameter that counts."""
    first, *rest = name.split("_")
    labels = (name, first + "".join(part.capitalize() for part in rest), name.replace("_", "-"))
    for label in labels:
        address = parse(f"redis://h/1?{label}=5", "REDIS_URL")
        assert (address.url, address.ignored) == ("redis://h/1", (label,))
    assert name not in USED


def test_ignored_parameters_are_one_sentence() -> None:
    """For the log; None where all count."""
    assert parse("redis://h?db=1&family=0", "REDIS_URL").note("REDIS_URL") is None
    one, two = (parse(f"redis://h?timeout=5{more}", "X").note("X") for more in ("", "&poolSize=3"))
    assert one == "X has the parameter timeout, which has no effect here and can be left out"
    assert two == "X has the parameters timeout, poolSize, which have no effect here and can be left out"


def test_the_client_takes_the_same_addresses(redis_url: str, tmp_path: Path) -> None:
    """It warns of what has no effect, and refuses what is wrong before a connection."""
    with pytest.warns(UserWarning, match="redis_url has the parameter timeout, which has no effect"):
        client = Client(f"'{redis_url}?family=0&timeout=5'\n", outbox=tmp_path)
    assert client.jobs() == []
    with pytest.raises(InvalidConfig, match="redis_url has the parameter db=x"):
        Client("redis://localhost?db=x")


@pytest.mark.parametrize("command", [("jobs",), ("doctor",), ("worker", "--burst")])
def test_every_command_names_the_variable(command: tuple[str, ...], tmp_path: Path) -> None:
    """Exit code 2 at once, and nothing on stdout."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker.cli", *command], capture_output=True, text=True,
        env={"REDIS_URL": "redis://u:hunter2@localhost:1/0?tls=true", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("preflight: REDIS_URL asks for TLS by a parameter")
    assert "hunter2" not in done.stderr


def test_no_warning_without_a_reason(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="error"):
        Client("redis://localhost:1/0?ssl=false&family=4", outbox=tmp_path)
