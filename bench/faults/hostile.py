"""What anybody who can write to Redis may put into a queue: hashes that are no jobs, made by hypothesis."""

import json
import os
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as some
from pydantic import JsonValue
from redis import Redis

Kind = Literal["hash", "string", "list", "set", "nothing"]


@dataclass(frozen=True, slots=True)
class Hostile:
    """One entry of a queue, and what lies under its job's key."""

    id: bytes
    kind: Kind
    """Type of the key; `nothing`: there is none."""
    fields: dict[bytes, bytes]

    def put(self, connection: Redis, queue_key: str) -> None:
        """Put it into Redis, and its id into the queue."""
        key = b"rq:job:" + self.id
        connection.delete(key)
        match self.kind:
            case "hash" if self.fields:
                connection.hset(key, mapping={name: value for name, value in self.fields.items()})  # noqa: C416
            case "string":
                connection.set(key, b"x")
            case "list":
                connection.rpush(key, b"x")
            case "set":
                connection.sadd(key, b"x")
        connection.rpush(queue_key, self.id)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._path}",)


FIELDS: Final = (
    "created_at", "data", "origin", "description", "enqueued_at", "started_at", "ended_at", "last_heartbeat", "timeout",
    "result_ttl", "failure_ttl", "ttl", "status", "dependency_ids", "allow_dependency_failures", "meta", "retries_left",
    "number_of_retries", "retry_intervals", "enqueue_at_front_on_retry", "repeats_left", "repeat_intervals", "group_id",
    "worker_name", "success_callback_name", "success_callback_timeout", "failure_callback_name",
    "failure_callback_timeout", "stopped_callback_name", "stopped_callback_timeout", "webhooks", "serializer",
)  # fmt: skip
"""Those that RQ reads."""
HARMLESS: Final[JsonValue] = {"type": "preflight.train.v1", "dataset": "no-such-data", "model": "cnn"}
"""A request that fails at once even where everything around it is let through."""


def hostile(count: int, number: int, tripwire: Path) -> list[Hostile]:
    """Return `count` hostile entries, the same for the same `number`; what is executed of them makes `tripwire`."""
    found: dict[bytes, Hostile] = {}

    @seed(number)
    @settings(
        max_examples=count, phases=[Phase.generate], database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(entries(tripwire))
    def collect(entry: Hostile) -> None:
        number = f"-{len(found)}".encode() if entry.id in found else b""  # it likes to try the same twice
        found[entry.id + number] = replace(entry, id=entry.id + number)

    collect()
    return list(found.values())


def entries(tripwire: Path) -> some.SearchStrategy[Hostile]:
    """Return the strategy of entries: wild keys, wild hashes, and good hashes with some fields gone wild."""
    ids = some.one_of(
        some.binary(min_size=1, max_size=40),
        some.text(min_size=1, max_size=80).map(lambda text: text.encode(errors="surrogateescape")),
        some.from_regex(rb"\A[A-Za-z0-9._-]{1,64}\Z"),
    )  # fmt: skip
    values = some.one_of(
        some.binary(max_size=60),
        some.text(max_size=60).map(lambda text: text.encode(errors="replace")),
        some.integers().map(lambda number: str(number).encode()),
        some.floats().map(lambda number: str(number).encode()),
        some.sampled_from((b"os.system", b"bomb.call", b"started", b"finished", b"null", b"[]", b"{}", b"-1")),
    )  # fmt: skip
    data = bodies(tripwire)
    wild = some.dictionaries(some.sampled_from(FIELDS).map(str.encode), values, max_size=12)
    good = some.fixed_dictionaries(
        {b"created_at": some.just(b"2026-01-01T00:00:00.000000Z"), b"status": some.just(b"queued"), b"data": data}
    )
    fields = some.one_of(wild, good, some.tuples(good, wild).map(lambda pair: {**pair[0], **pair[1]}))
    kinds: some.SearchStrategy[Kind] = some.sampled_from(
        ("hash", "hash", "hash", "hash", "hash", "hash", "string", "list", "set", "nothing")
    )
    return some.builds(Hostile, id=ids, kind=kinds, fields=fields)


def bodies(tripwire: Path) -> some.SearchStrategy[bytes]:
    """Return the strategy of what a job calls: pickles that do harm, forbidden functions, and no calls at all."""
    touch = f"touch {tripwire}"
    calls: list[JsonValue] = [
        ["os.system", None, [touch], {}],
        ["subprocess.check_output", None, [["touch", str(tripwire)]], {}],
        ["builtins.eval", None, [f"__import__('pathlib').Path({str(tripwire)!r}).touch()"], {}],
        ["bomb.call", None, [], {}],
        ["system", "os", [touch], {}],
        ["worker.jobs.train", {"py/object": "os.system"}, [HARMLESS], {}],
        ["worker.jobs.train", None, [HARMLESS, HARMLESS], {}],
        ["worker.jobs.train", None, [{**HARMLESS, "job_id": "../../x"}], {}] if isinstance(HARMLESS, dict) else [],
    ]
    trees: some.SearchStrategy[JsonValue] = some.recursive(
        some.one_of(some.none(), some.booleans(), some.integers(), some.floats(), some.text(max_size=20)),
        lambda inner: some.one_of(
            some.lists(inner, max_size=5), some.dictionaries(some.text(max_size=8), inner, max_size=5)
        ),
        max_leaves=20,
    )
    pickles = [
        pickle.dumps(Bomb(tripwire)),
        pickle.dumps(("os.system", None, (touch,), {})),
        pickle.dumps(("touch", tripwire, (), {})),
    ]
    deep = b"[" * 100_000
    plain = some.one_of(
        some.sampled_from(calls).map(lambda call: json.dumps(call).encode()),
        some.sampled_from(pickles),
        some.tuples(some.just("worker.jobs.train"), some.none(), some.lists(trees, max_size=3), some.just({})).map(
            lambda call: json.dumps(call).encode()
        ),
        trees.map(lambda tree: json.dumps(tree).encode()),
        some.binary(max_size=80),
        some.just(deep),
    )
    packed = plain.map(zlib.compress)
    torn = some.tuples(packed, some.integers(0, 100)).map(lambda pair: pair[0][: pair[1]])
    return some.one_of(packed, packed, plain, torn, some.just(zlib.compress(bytes(64 << 20))))
