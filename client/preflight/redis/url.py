"""The address of Redis, as clients and platforms write it, turned into one that redis-py takes.

Every address goes through `parse`: that of a setting and that of `preflight.Client`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from preflight.config.secrets import show_invalid_url
from preflight.config.values import clean, require_plain
from preflight.contract.registry import nearest
from preflight.errors import InvalidConfig
from preflight.redis.parameters import DATABASE, FAMILY, TLS, USED, is_ignored

SCHEMES: Final[Mapping[str, str]] = {
    "redis": "redis", "valkey": "redis",
    "rediss": "rediss", "valkeys": "rediss", "redis+ssl": "rediss", "redis+tls": "rediss",
    "unix": "unix", "redis+socket": "unix", "redis+unix": "unix", "redis-socket": "unix", "valkey+unix": "unix",
}  # fmt: skip
"""Scheme in an address -> scheme for redis-py."""
OTHER_KINDS: Final[Mapping[str, str]] = {
    "http": "is a REST address, which speaks HTTP; take the one that begins with redis:// or rediss://",
    "https": "is a REST address, which speaks HTTP; take the one that begins with redis:// or rediss://",
    "sentinel": "is an address of Sentinel, which preflight does not ask; name the server itself",
    "redis+sentinel": "is an address of Sentinel, which preflight does not ask; name the server itself",
    "redis-sentinel": "is an address of Sentinel, which preflight does not ask; name the server itself",
    "rediss+sentinel": "is an address of Sentinel, which preflight does not ask; name the server itself",
    "redis+cluster": "is an address of a cluster; preflight's scripts need a server without cluster-enabled",
}
"""Scheme -> predicate of the refusal."""
COMMAND: Final = re.compile(r"(export\s+)?\w*REDIS\w*\s*=|redis-cli\b", re.IGNORECASE)
"""Beginning of a copied line of a shell or of a .env file."""
MUST_BEGIN: Final = "must begin with redis://, rediss:// or unix://"
FORM: Final = "is no URL; write redis://[user:password@]host[:port][/db], / # ? @ as %2F %23 %3F %40"
MAX_SHOWN: Final = 200
"""Most characters of a wrong value in a message."""


PLAIN_ANSWERS: Final = ("Timeout connecting", "WRONG_VERSION_NUMBER", "wrong version number", "EOF occurred")
"""Parts of errors of TLS to a server that has none; Redis waits for the end of a line."""
TLS_ANSWERS: Final = ("Connection closed by server", "reset by peer", "closed the connection")
"""Parts of errors of a plain connection to a server that wants TLS."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """An address that `Redis.from_url` takes, with any version of redis-py from 6.0 on."""

    url: str
    ignored: tuple[str, ...] = ()
    """Parameters without an effect, by their names in the address."""

    def note(self, name: str) -> str | None:
        """Return the sentence on ignored parameters of the variable `name`; None where there are none."""
        if not self.ignored:
            return None
        several = len(self.ignored) > 1
        return (
            f"{name} has the {'parameters' if several else 'parameter'} {', '.join(self.ignored)}, "
            f"which {'have' if several else 'has'} no effect here and can be left out"
        )


def parse(given: str, name: str) -> RedisAddress:
    """Return the address for redis-py; `name` is that of the variable or argument, for messages.

    Raises:
        InvalidConfig: it is no address of a Redis server, or has a parameter that is unknown or has a wrong value;
            the message shows no password.
    """
    url = clean(given)
    require_plain(url, name, secret=False)
    parts = _split(url, name)
    scheme = SCHEMES[parts.scheme]
    used, ignored = _sort(parse_qsl(parts.query, keep_blank_values=True), name, tls=scheme == "rediss")
    _check_tls(used.pop(TLS.name, None), scheme, name)
    path, rest = _database(parts, scheme, used, name)
    query = urlencode(used, quote_via=quote, safe="/")
    address = parts._replace(scheme="redis", path=path, query=query).geturl().removeprefix("redis:")
    # The standard library drops the slashes of an empty host.
    return RedisAddress(f"{scheme}:{address if address.startswith('//') else f'//{address}'}", (*ignored, *rest))


def _sort(pairs: Sequence[tuple[str, str]], name: str, *, tls: bool) -> tuple[dict[str, str], list[str]]:
    """Return the parameters that count, under redis-py's names, and the names of those that are ignored.

    Without TLS those about certificates are; one without a value counts as left out, unless it is a switch.
    """
    used: dict[str, str] = {}
    ignored: list[str] = []
    for label, value in pairs:
        found = USED.get(label.lower())
        if found is None:
            if not is_ignored(label):
                raise _unknown(label, name)
            ignored.append(label)
            continue
        if not tls and found.name.startswith("ssl_"):
            ignored.append(label)
            continue
        if not value and not found.is_switch:
            continue
        understood = found.check(value)
        if understood is None:
            shown = ascii(value)[1:-1][:MAX_SHOWN]
            raise InvalidConfig(f"{name} has the parameter {label}={shown}, {found.explain(value)}", field=name)
        if used.setdefault(found.name, understood) != understood:
            raise InvalidConfig(f"{name} has {label} twice, with two values; leave one out", field=name)
    used.pop(FAMILY.name, None)
    return used, ignored


def _split(url: str, name: str) -> SplitResult:
    """Return the parts of a URL with a known scheme and a host, or a path for a Unix socket."""
    head, separator, _ = url.partition(":")
    scheme = head.lower()
    if COMMAND.match(url):
        raise InvalidConfig(f"{name} begins with a part of a command; write the address alone", field=name)
    if separator and scheme in OTHER_KINDS and "@" not in url and scheme not in ("http", "https"):
        raise InvalidConfig(f"{name} {OTHER_KINDS[scheme]}", field=name)
    if not separator or scheme not in SCHEMES or not url[len(head) :].startswith(":/"):
        why = OTHER_KINDS.get(scheme, "")
        shown = show_invalid_url(url)
        raise InvalidConfig(f"{name} is {shown!r}: {MUST_BEGIN}" + (f"; this one {why}" if why else ""), field=name)
    try:
        parts = urlsplit(url)
        port = parts.port  # raises for an invalid one, quoting a part of a password
    except ValueError:
        several = "," in url.rpartition("@")[2]
        wrong = "names several servers; name the one that takes writes" if several else FORM
        raise InvalidConfig(f"{name} is '***': {wrong}", field=name) from None
    own = ("password", "username", "ssl_")
    stray = "@" in parts.path or bool(set("# ") & set(url))
    stray = stray or any("@" in pair for pair in parts.query.split("&") if not pair.lower().startswith(own))
    if stray:
        raise InvalidConfig(f"{name} is '***': {FORM}", field=name)
    if SCHEMES[scheme] == "unix":
        if parts.hostname or len(parts.path) < 2:
            raise InvalidConfig(f"{name} names no socket; write unix:///path/of/the/socket", field=name)
    elif not parts.hostname and (parts.netloc or port):
        raise InvalidConfig(f"{name} has no host; write redis://[user:password@]host[:port][/db]", field=name)
    return parts


def _check_tls(given: str | None, scheme: str, name: str) -> None:
    """Refuse a parameter `tls` or `ssl` that contradicts the scheme."""
    if scheme == "redis" and given == "true":
        raise InvalidConfig(
            f"{name} asks for TLS by a parameter (tls or ssl), but begins with redis://, which goes without; "
            "write rediss:// or leave the parameter out",
            field=name,
        )
    if scheme == "rediss" and given == "false":
        raise InvalidConfig(
            f"{name} begins with rediss://, which is TLS, but has a parameter against it (tls or ssl); "
            "write redis:// or leave the parameter out",
            field=name,
        )


def _database(parts: SplitResult, scheme: str, used: Mapping[str, str], name: str) -> tuple[str, list[str]]:
    """Return the path for redis-py, and the part of it that has no effect; the database of the path must be a number.

    redis-py takes database 0 for any path that it does not understand, and a parameter rather than the path.
    """
    if scheme == "unix":
        return parts.path, []
    first, _, namespace = parts.path.strip("/").partition("/")
    if first and DATABASE.check(first) is None:
        raise InvalidConfig(
            f"{name} has the database {ascii(first)[:40]} behind the host, but it must be a whole number", field=name
        )
    if first and "db" in used and int(first) not in (0, int(used["db"])):
        raise InvalidConfig(
            f"{name} names database {first} in its path and database {used['db']} in a parameter; leave one out",
            field=name,
        )
    return parts.path if not namespace else f"/{first}", [f"/{namespace}"] if namespace else []


def _unknown(label: str, name: str) -> InvalidConfig:
    """Return the refusal; a strange name may be a part of a password."""
    if not re.fullmatch(r"[A-Za-z][\w.-]{0,39}", label, re.ASCII):
        return InvalidConfig(f"{name} is '***': {FORM}", field=name)
    return InvalidConfig(
        f"{name} has the parameter {label}, which is unknown{nearest(label, sorted(USED))}; correct it or leave it out",
        field=name,
    )


def other_scheme(url: str, error: str) -> str | None:
    """Return advice on an error that a server with TLS, or without, causes; None for another error."""
    if url.startswith("rediss://") and any(sign in error for sign in PLAIN_ANSWERS):
        return "a server without TLS answers like that: for one, write redis:// instead of rediss:// in REDIS_URL"
    if url.startswith("redis://") and any(sign in error for sign in TLS_ANSWERS):
        return "a server with TLS answers like that: for one, write rediss:// instead of redis:// in REDIS_URL"
    return None
