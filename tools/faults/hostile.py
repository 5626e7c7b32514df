"""Entries that anybody who can write to Redis may put into a queue: job hashes mutated from valid ones, and worse.

The same number makes the same entries each time. Most are close to valid ones, because those get furthest: one or
more changes at any level of the request, or edges of the fields that RQ 2 and 3 write around it.
"""

import copy
import gzip
import json
import math
import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal

from pydantic import JsonValue
from redis import Redis

from preflight.wire import FUNCTION

Kind = Literal["hash", "string", "list", "set", "zset", "stream", "nothing"]


@dataclass(frozen=True, slots=True)
class Hostile:
    """One entry of a queue, and the value of its job's key."""

    id: bytes
    kind: Kind
    """Type of the key; `nothing`: there is none."""
    fields: dict[bytes, bytes]

    def put(self, connection: Redis, queue_key: str) -> None:
        """Put the value into Redis, and the id into the queue."""
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
            case "zset":
                connection.zadd(key, {b"x": 1.0})
            case "stream":
                connection.xadd(key, {b"x": b"x"})
        connection.rpush(queue_key, self.id)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._path}",)


VALID: Final[Sequence[dict[str, JsonValue]]] = (
    {"type": "preflight.train.v1", "dataset": "no-such-data", "model": "cnn"},
    {"type": "preflight.train.v1", "dataset": "digits", "job_id": "own", "epochs": 3, "batch_size": 64,
     "learning_rate": 0.01, "seed": 7, "optimizer": "sgd", "schedule": "one-cycle", "validation_samples": 100,
     "deterministic": True, "calibrate": False},
    {"type": "preflight.train.v1", "dataset": "digits", "augmentation": {"rotate_degrees": 10.0, "translate": 0.1,
     "dots_probability": 0.5, "dots_count": 3, "morphology_kernel": 3}, "plan": {"threads": 1, "micro_batch": 16,
     "eval_batch": 32, "precision": "float32", "allocator": "default"}, "calibration_samples": 100,
     "calibration_seconds": 2.0, "calibration_knobs": ["threads", "precision"]},
)  # fmt: skip
"""Requests that mutants grow from; two of them are for a data set that every worker has."""
NUMBERS: Final[Sequence[JsonValue]] = (
    0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, 0.0, -0.0, 0.5, 1.0, 201.0,
    5e-324, 1.7e308, -1.7e308, math.nan, math.inf, -math.inf, True, False,
)  # fmt: skip
TEXTS: Final = (
    "", " ", ".", "..", "../../x", "/etc/passwd", "\0", "\n", "\x1b[2J", "\ud800", "a\udfffb", "\u202e", "\ufeff",
    "\U0001f4a3", "x" * 257, "x" * 2001, "x" * 70_000, "os.system", "null", "1", "{}", "${jndi:ldap://x}", "%s%n",
    "{job_id}",
)  # fmt: skip
NESTED: Final[Sequence[JsonValue]] = ([], {}, [[]], [None], {"": {}}, [1] * 3000, {str(n): n for n in range(3000)})
NAMES: Final = (*TEXTS[:12], "x" * 2001, "x" * 2000, "job_id", "type", "__class__", "signature", "Epochs", "epochs ")
WHOLE: Final = (
    b"0", b"-1", b"-2", b"1", b"2", b"+1", b" 1", b"1.0", b"1e3", b"nan", b"", b"x", b"9" * 18, b"9" * 19, b"9" * 400,
    b"2592000", b"2592001", b"315360001", b"\xff", b"\xd9\xa3", b"0x10", b"None", b"[]",
)  # fmt: skip
DATES: Final = (
    b"", b"0", b"2026-01-01T00:00:00.000000Z", b"2026-01-01T00:00:00Z", b"2026-13-45T99:99:99Z",
    b"0001-01-01T00:00:00Z", b"9999-12-31T23:59:59.999999Z", b"2026-01-01T00:00:00+99:99", b"\xff\xfe", b"Z" * 300,
)  # fmt: skip
NAMED: Final = (b"", b"os.system", b"bomb.call", b"worker.jobs.train", b"\xff", b"x" * 3000, b"null", b"..", b"a\nb")
LISTS: Final = (b"", b"[]", b"[0]", b"[1,2,3]", b"{}", b"null", b"[" * 5000, b'["a","b"]', b"\xff", b"NaN", b"[1e999]")
EDGES: Final[Mapping[str, Sequence[bytes]]] = {
    "status": (b"queued", b"started", b"finished", b"failed", b"canceled", b"stopped", b"deferred", b"scheduled",
               b"created", b"", b"x", b"\xff", b"QUEUED"),
    "timeout": WHOLE, "ttl": WHOLE, "result_ttl": WHOLE, "failure_ttl": WHOLE, "retries_left": WHOLE,
    "number_of_retries": WHOLE, "repeats_left": WHOLE, "rate_limit_concurrency": WHOLE,
    "success_callback_timeout": WHOLE,
    "failure_callback_timeout": WHOLE, "stopped_callback_timeout": WHOLE, "enqueue_at_front": WHOLE,
    "enqueue_at_front_on_retry": WHOLE, "allow_dependency_failures": WHOLE, "created_at": DATES, "enqueued_at": DATES,
    "started_at": DATES, "ended_at": DATES, "last_heartbeat": DATES, "origin": NAMED, "description": NAMED,
    "group_id": NAMED, "worker_name": NAMED, "dependency_id": NAMED, "rate_limit_key": NAMED, "serializer": NAMED,
    "success_callback_name": NAMED, "failure_callback_name": NAMED, "stopped_callback_name": NAMED,
    "retry_intervals": LISTS, "repeat_intervals": LISTS, "dependency_ids": LISTS, "webhooks": LISTS, "meta": LISTS,
    "result": LISTS, "exc_info": LISTS,
}  # fmt: skip
"""Fields that RQ 2 and 3 write around a request, and the edges of each."""
OTHERS: Final[Sequence[Kind]] = ("string", "list", "set", "zset", "stream", "nothing")
ODD_IDS: Final = (
    b"\xff\xfe%d", b"a b%d", b"a:b%d", b"{x}%d", b"../%d", b"\x00%d", b"x" * 65 + b"%d", b"x" * 3000 + b"%d", b"m\n%d",
)  # fmt: skip
MOST_CHANGES: Final = 3


def hostile(count: int, number: int, tripwire: Path) -> list[Hostile]:
    """Return `count` hostile entries, the same for the same `number`; one that is executed makes `tripwire`."""
    grow = Grower(Random(number), tripwire)  # noqa: S311 - dice
    return [grow.entry(index) for index in range(count)]


class Grower:
    """Grows entries, each by throws of the dice."""

    def __init__(self, random: Random, tripwire: Path) -> None:
        self._random = random
        self._harmful = list(_harmful(tripwire))

    def entry(self, index: int) -> Hostile:
        """Return the next entry; `index` makes its id differ from the others'."""
        kind: Kind = self._random.choice(OTHERS) if self._one_in(20) else "hash"
        return Hostile(self._id(index), kind, self._hash(index))

    def _one_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0

    def _id(self, index: int) -> bytes:
        if not self._one_in(12):
            return b"m%d" % index
        return self._random.choice(ODD_IDS) % index

    def _hash(self, index: int) -> dict[bytes, bytes]:
        fields = {b"created_at": b"2026-01-01T00:00:00.000000Z", b"status": b"queued", b"data": self._data(index)}
        for name in self._random.sample(sorted(EDGES), self._random.choice((0, 0, 1, 1, 2, 5))):
            fields[name.encode()] = self._random.choice(EDGES[name])
        if self._one_in(20):
            fields |= {b"f%d" % number: b"x" for number in range(self._random.choice((20, 61, 62, 500)))}
        if self._one_in(20):
            fields.pop(self._random.choice(sorted(fields)))
        if self._one_in(50):
            fields[self._random.choice(sorted(fields))] = b"x" * 300_000
        return fields

    def _data(self, index: int) -> bytes:
        raw = self._random.choice(self._harmful) if self._one_in(10) else self._call(index)
        match self._random.randrange(20):
            case 0:
                return raw
            case 1:
                return zlib.compress(raw)[: self._random.randrange(60)]
            case 2:
                return zlib.compress(zlib.compress(raw))
            case 3:
                return gzip.compress(raw, mtime=0)
            case 4:
                return zlib.compress(raw) + b"x"
            case 5:
                damaged = bytearray(zlib.compress(raw))
                damaged[self._random.randrange(len(damaged))] ^= 1 << self._random.randrange(8)
                return bytes(damaged)
        return zlib.compress(raw)

    def _call(self, index: int) -> bytes:
        """Return a call of the allowed function with a mutant of a valid request, as JSON or nearly so."""
        valid = copy.deepcopy(self._random.choice(VALID))
        if "job_id" in valid and not self._one_in(5):  # else other entries have the same id
            valid["job_id"] = f"own{index}"
        request: JsonValue = valid
        for _ in range(self._random.randint(0, MOST_CHANGES)):
            request = self._changed(request)
        call: JsonValue = [FUNCTION, None, [request], {}]
        if self._one_in(10):
            call = self._changed(call)
        text = json.dumps(call, ensure_ascii=self._random.random() < 0.8)
        if self._one_in(30):  # twice the same name
            text = text.replace('"dataset":', '"dataset": "mnist", "dataset":', 1)
        if self._one_in(30):
            text = text[: self._random.randrange(len(text))]
        return text.encode(errors=self._random.choice(("surrogatepass", "replace", "ignore")))

    def _changed(self, tree: JsonValue) -> JsonValue:
        """Return `tree` with one change at a random place in it."""
        if isinstance(tree, dict) and tree and not self._one_in(3):
            name = self._random.choice(sorted(tree))
            match self._random.randrange(8):
                case 0:
                    return {other: value for other, value in tree.items() if other != name}
                case 1:
                    return {**tree, self._random.choice(NAMES): self._value()}
                case 2:
                    renamed = self._random.choice(NAMES)
                    return {renamed if other == name else other: value for other, value in tree.items()}
            return {**tree, name: self._changed(tree[name])}
        if isinstance(tree, list) and tree and not self._one_in(3):
            at = self._random.randrange(len(tree))
            match self._random.randrange(6):
                case 0:
                    return tree[:at] + tree[at + 1 :]
                case 1:
                    return [*tree, self._value()]
            return [*tree[:at], self._changed(tree[at]), *tree[at + 1 :]]
        if isinstance(tree, dict) and self._one_in(2):
            return {**tree, self._random.choice(NAMES): self._value()}
        return self._value()

    def _value(self) -> JsonValue:
        """Return an odd value."""
        match self._random.randrange(6):
            case 0:
                return None
            case 1 | 2:
                return self._random.choice(NUMBERS)
            case 3:
                return self._random.choice(NESTED)
            case 4:
                return self._deep(self._random.choice((3, 31, 32, 33, 200)))
        return self._random.choice(TEXTS)

    def _deep(self, levels: int) -> JsonValue:
        value: JsonValue = 1
        for _ in range(levels):
            value = [value] if self._one_in(2) else {"a": value}
        return value


def _harmful(tripwire: Path) -> Iterator[bytes]:
    """Yield data that do harm where they are executed, unpickled or unpacked: forbidden calls, pickles, bombs."""
    touch = f"touch {tripwire}"
    request = dict(VALID[0])
    calls: list[JsonValue] = [
        ["os.system", None, [touch], {}],
        ["subprocess.check_output", None, [["touch", str(tripwire)]], {}],
        ["builtins.eval", None, [f"__import__('pathlib').Path({str(tripwire)!r}).touch()"], {}],
        ["bomb.call", None, [], {}],
        ["system", "os", [touch], {}],
        [FUNCTION, {"py/object": "os.system"}, [request], {}],
        [FUNCTION, None, [request, request], {}],
        [FUNCTION, None, [request], {"signature": "0" * 64}],
        [FUNCTION, None, [request], {"x" * 2001: 1}],
        [FUNCTION, None, [{**request, "x" * 2001: 1}], {}],
        ["x" * 2001, None, [request], {}],
    ]
    yield from (json.dumps(call).encode() for call in calls)
    yield pickle.dumps(Bomb(tripwire))
    yield pickle.dumps(("os.system", None, (touch,), {}))
    yield pickle.dumps(("touch", tripwire, (), {}))
    yield b"[" * 100_000
    yield b'{"a":' * 100_000
    yield bytes(4 << 20)
    yield b"1" * 100_000
    yield b"\xff" * 80
