"""Hostile jobs are read within bounds or quarantined, and nothing of them is run."""

import json
import pickle
import zlib
from pathlib import Path

import pytest
from hypothesis import event, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import JsonValue
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError
from rq import Callback, Queue, Retry
from rq.exceptions import NoSuchJobError
from rq.job import Dependency
from rq.serializers import JSONSerializer
from support.worker.command_line import run
from support.worker.services import RunWorker, digits_job, without_retries

from preflight import Client
from preflight.errors import InvalidConfig
from preflight.queue.payload import MAX_PAYLOAD_BYTES, PoisonMessage
from preflight.queue.untrusted_job import FIELDS, MAX_FIELD_BYTES, MAX_FIELDS, MAX_TIMEOUT, fetch_job, parse
from preflight.redis import keys
from preflight.redis.server.embedded import redis_server
from preflight.wire import FUNCTION, JOB_TIMEOUT, JobFailed, TrainJob
from worker.admission import quarantine
from worker.admission.admit import admit
from worker.admission.refusal import quarantine_job
from worker.config.settings import Settings

JOB: dict[str, JsonValue] = {"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn"}


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


PAYLOAD = as_json([FUNCTION, None, [JOB], {}])


class Tripwire:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"open({str(self.path)!r}, 'w')",)


Fields = dict[str | bytes, bytes]

numbers = st.sampled_from(
    [b"", b"0", b"-1", b"1", b"180", b"1.5", b"1e9", b"-2", b"9" * 17, b"9" * 400, b"nan", b"inf", b"6h", b"0x10",
     b" 1", b"1_0", b"\xd9\xa1", b"-", b"--1"]
)  # fmt: skip
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("\ud800\x1b\n")
json_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
bodies: st.SearchStrategy[JsonValue] = st.fixed_dictionaries(
    {"type": st.just("preflight.train.v1"), "dataset": st.just("mnist") | leaves, "model": st.just("cnn")},
    optional={
        "job_id": st.sampled_from(["a", "..", "a/b", "x" * 65, "a\n"]) | leaves,
        **{name: st.integers(1, 9) | leaves for name in ("epochs", "batch_size", "seed")},
        **dict.fromkeys(("plan", "augmentation", "learning_rate", "unknown"), json_values),
    },
)  # fmt: skip
functions = st.just(FUNCTION) | st.sampled_from(["os.system", "", "builtins.eval", "\ud800", "x" * 200])
keywords: st.SearchStrategy[dict[str, JsonValue]] = st.just({}) | st.dictionaries(
    st.sampled_from(["signature", "self", "x"]), leaves
)
calls = st.tuples(functions, st.none() | json_values, st.lists(bodies, min_size=1, max_size=1), keywords)
calls |= st.tuples(functions, st.none(), st.lists(bodies | json_values, max_size=2), keywords)
texts = st.one_of(
    (json_values | st.tuples(json_values, json_values, json_values, json_values)).map(as_json),
    st.builds(pickle.dumps, leaves, st.integers(0, 5)),
    st.sampled_from([opening * depth for opening in (b"[", b'{"a":') for depth in (10, 33, 900, 1100, 60_000)]),
    st.sampled_from(
        [b"[" + b" " * size + b"]" for size in (MAX_PAYLOAD_BYTES - 3, MAX_PAYLOAD_BYTES, 5 * MAX_PAYLOAD_BYTES)]
    ),
    st.binary(),
    numbers,
)
data = texts.map(zlib.compress) | texts | texts.map(zlib.compress).map(lambda packed: packed[:-3])
names = st.sampled_from(
    ["status", "timeout", "result_ttl", "failure_ttl", "ttl", "retries_left", "number_of_retries", "retry_intervals",
     "enqueue_at_front", "enqueue_at_front_on_retry", "origin", "worker_name", "meta", "created_at", "enqueued_at",
     "started_at", "ended_at", "last_heartbeat", "success_callback_name", "failure_callback_name",
     "stopped_callback_name", "success_callback_timeout", "webhooks", "dependency_id", "dependency_ids", "group_id",
     "allow_dependency_failures", "repeats_left", "repeat_intervals", "result", "exc_info", "description"]
)  # fmt: skip
stored_values = numbers | texts | st.sampled_from(
    [b"queued", b"started", b"finished", b"os.abort", b"2026-01-01T00:00:00Z", b"{}", b"[1]",
     b'[{"url": "http://127.0.0.1:1/", "status": "failed"}]']
)  # fmt: skip
rest: st.SearchStrategy[Fields] = st.dictionaries(names | st.binary(max_size=9), stored_values, max_size=9)
ids = st.sampled_from(["A.b-c_9", "..", "", "a:b", "a b", "a\n", "x" * 65, "../a", "é", b"\xff", b"a"]) | st.binary()


@hypothesis_settings(max_examples=200)
@given(job_id=st.just("a") | ids, stored=rest, data=st.none() | data)
@example("a", {}, zlib.compress(b"[" * 10**8))
@example("a", {"timeout": b"9" * 300_000}, PAYLOAD)
@example("a", {"unused": bytes(10**7)}, PAYLOAD)
def test_any_hash_is_a_job_or_poison(redis_url: str, job_id: bytes | str, stored: Fields, data: bytes | None) -> None:
    assert_known_outcome(redis_url, job_id, stored if data is None else {**stored, "data": data}, None)


@pytest.mark.slow
@hypothesis_settings(max_examples=200)
@given(call=calls, stored=rest, key=st.none() | st.just("sixteen letters!"))
def test_any_call_is_a_job_or_refused(redis_url: str, call: object, stored: Fields, key: str | None) -> None:
    assert_known_outcome(redis_url, "a", {**stored, "data": as_json(call), "timeout": b"180"}, key)


def assert_known_outcome(redis_url: str, job_id: bytes | str, stored: Fields, key: str | None) -> None:
    """It is admitted, refused, poison or none: no other exception, and every message is one plain line.

    A job that was read can be saved and reads back as the same, whatever else its hash holds.
    """
    raw = Redis.from_url(redis_url)
    raw.flushall()
    queue = Queue("preflight", connection=raw)
    put_hash(raw, job_id, stored)
    try:
        job = fetch_job(job_id, raw)
    except NoSuchJobError:
        event("none")
        assert not stored
        return
    except PoisonMessage as error:
        event("poison")
        assert_plain(str(error))
        quarantine.put(raw, queue, error.job_id, str(error))
        assert len(quarantine.entries(raw)) == 1
        return
    admitted: TrainJob | None = None
    try:
        admitted = admit(job, raw, Settings.model_validate({"signing_key": key, "max_epochs": 5}))
    except InvalidConfig as error:
        assert_plain(error.message)
    event("refused" if admitted is None else "admitted")
    assert key is None or admitted is None
    assert parse(job.id, job.fields) == job


def put_hash(raw: Redis, job_id: bytes | str, stored: Fields) -> None:
    name = job_id if isinstance(job_id, bytes) else job_id.encode()
    if stored:
        raw.hset(b"rq:job:" + name, mapping={field: value for field, value in stored.items()})  # noqa: C416 - the type


def assert_plain(message: str) -> None:
    assert message.isprintable()
    assert message.isascii()
    assert len(message) < 500


BAD: dict[str, tuple[Fields, str]] = {
    "pickle": ({"data": zlib.compress(pickle.dumps(("os.system", None, ("true",), {})))}, "is a pickle"),
    "old-pickle": ({"data": pickle.dumps(("os.system", None, ("true",), {}), 0)}, "is a pickle"),
    "msgpack": (
        {"data": zlib.compress(b"\x94\xb1worker.jobs.train\xc0\x91\x80\xff")},
        "serialization that is not read",
    ),
    "no-data": ({"status": b"queued"}, "has no data"),
    "empty": ({"data": b""}, "is cut off"),
    "cut": ({"data": zlib.compress(PAYLOAD)[:-5]}, "is cut off"),
    "large": ({"data": bytes(MAX_FIELD_BYTES + 1)}, f"{MAX_FIELD_BYTES + 1} bytes of data, but may have at most"),
    "large-meta": ({"data": PAYLOAD, "meta": bytes(MAX_FIELD_BYTES + 1)}, "bytes of meta, but may have at most"),
    "bomb": ({"data": zlib.compress(bytes(MAX_PAYLOAD_BYTES + 1))}, "when decompressed"),
    "many": ({str(number): b"" for number in range(MAX_FIELDS + 1)}, "has 65 fields, but may have at most 64"),
    "not-json": ({"data": b"{,"}, "is not JSON"),
    "digits": ({"data": b"[" + b"1" * 10_000 + b"]"}, "is not JSON"),
    "three": ({"data": b'["worker.jobs.train", null, []]'}, "is not [function, null, [arguments], {keywords}]"),
    "no-name": ({"data": b"[null, null, [], {}]"}, "is not [function, null, [arguments], {keywords}]"),
    "deep": ({"data": b'["f", null, [' + b"[" * 40 + b"]" * 40 + b"], {}]"}, "is nested more than 32 levels"),
    "deeper": ({"data": b"[" * 100_000}, "is nested more than 32 levels"),
    "no-timeout": ({"data": PAYLOAD, "timeout": b"0"}, "has the timeout b'0', but it must be 1 to 2592000"),
    "long-timeout": ({"data": PAYLOAD, "timeout": b"2592001"}, "has the timeout"),
    "half-timeout": ({"data": PAYLOAD, "timeout": b"1.5"}, "has the timeout"),
}


@pytest.mark.parametrize("job_id", BAD)
def test_poison_messages_name_job_value_and_bound(raw: Redis, job_id: str) -> None:
    stored, words = BAD[job_id]
    put_hash(raw, job_id, stored)
    with pytest.raises(PoisonMessage) as caught:
        fetch_job(job_id, raw)
    assert f"job {job_id} " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(("kind", "command"), [
    ("string", "SET x 1"), ("list", "RPUSH x 1"), ("set", "SADD x 1"), ("zset", "ZADD x 1 1"),
    ("stream", "XADD x * a 1"),
])  # fmt: skip
def test_a_job_key_of_another_type_is_poison_and_unchanged(raw: Redis, queue: Queue, kind: str, command: str) -> None:
    name, _, *values = command.split()
    raw.execute_command(name, "rq:job:x", *values)
    before = raw.dump("rq:job:x")
    with pytest.raises(PoisonMessage, match=f"job x is a {kind} in Redis, but must be a hash"):
        fetch_job("x", raw)
    quarantine.put(raw, queue, "x", "why")
    assert quarantine.drop(raw, "x")
    assert raw.dump("rq:job:x") == before
    assert raw.ttl("rq:job:x") == -1


def test_only_the_fields_in_use_are_transferred(raw: Redis, queue: Queue) -> None:
    job_id = queue.enqueue(FUNCTION, JOB).id
    raw.hset(f"rq:job:{job_id}", mapping={"exc_info": bytes(10**7), "result": bytes(10**7)})
    before = sent_by(raw)
    fetch_job(job_id, raw)
    assert sent_by(raw) - before < 100_000


def sent_by(raw: Redis) -> int:
    return int(raw.info("stats")["total_net_output_bytes"])


def test_a_missing_job_and_errors_of_redis_are_not_poison(queue: Queue, tmp_path: Path) -> None:
    with pytest.raises(NoSuchJobError):
        fetch_job("gone", queue.connection)
    job_id = queue.enqueue(FUNCTION, JOB).id
    with pytest.raises(RedisConnectionError):
        fetch_job(job_id, without_retries(f"unix://{tmp_path}/none"))
    with redis_server() as url:
        other = Redis.from_url(url)
        other.acl_setuser("poor", enabled=True, passwords=["+pass"], keys=["none"], categories=["+@all"])
        with pytest.raises(NoPermissionError):
            fetch_job(job_id, Redis.from_url(url.replace("unix://", "unix://poor:pass@")))
        full = Queue("preflight", connection=other, serializer=JSONSerializer)
        good, bad = full.enqueue(FUNCTION, JOB).id, full.enqueue(FUNCTION, JOB, job_timeout=10**12).id
        other.config_set("maxmemory", "1")
        assert fetch_job(good, other).func_name == FUNCTION
        with pytest.raises(PoisonMessage) as caught:
            fetch_job(bad, other)
        quarantine.put(other, full, bad, str(caught.value))
        assert full.get_job_ids() == [good]


def test_only_known_fields_are_restored(raw: Redis, queue: Queue, tmp_path: Path) -> None:
    """Callbacks, webhooks, dependencies, groups, repeats and results are not."""
    first, abort = queue.enqueue(FUNCTION, JOB), Callback("os.abort")
    job_id = queue.enqueue(
        FUNCTION, JOB, on_success=abort, on_failure=abort, on_stopped=abort,
        depends_on=Dependency([first], allow_failure=True), retry=Retry(max=50, interval=[60, 3600]),
        meta={"note": [1]}, description="\x1b[31m",
    ).id  # fmt: skip
    tripwire = tmp_path / "ran"
    raw.hset(f"rq:job:{job_id}", mapping={
        "webhooks": '[{"url": "http://127.0.0.1:1/", "status": "failed"}]', "group_id": "g", "repeats_left": "3",
        "repeat_intervals": "[1]", "result": pickle.dumps(Tripwire(tripwire)), "exc_info": "x", "origin": "other",
        "dependency_ids": "{", "ttl": "-7", "result_ttl": "soon", "failure_ttl": "9" * 17, "status": "nonsense",
    })  # fmt: skip
    job = fetch_job(job_id, raw)
    assert (job.meta, job.options.retries_left, job.status) == ({"note": [1]}, 50, "queued")
    assert job.ttl is job.result_ttl is job.failure_ttl is None
    assert set(job.fields) <= set(FIELDS)
    assert not tripwire.exists()


def test_no_pickle_is_read(raw: Redis, tmp_path: Path) -> None:
    tripwire = tmp_path / "ran"
    bait = pickle.dumps(Tripwire(tripwire))
    pickle.loads(bait)  # noqa: S301 - it is our own: it shows that the tripwire works
    assert tripwire.exists()
    tripwire.unlink()
    raw.hset("rq:job:whole", mapping={"data": zlib.compress(bait)})
    raw.hset("rq:job:parts", mapping={"data": zlib.compress(PAYLOAD), "meta": bait, "result": bait, "exc_info": bait})
    with pytest.raises(PoisonMessage, match="is a pickle"):
        fetch_job("whole", raw)
    assert fetch_job("parts", raw).meta == {}
    assert not tripwire.exists()


@pytest.mark.parametrize("name", ["os.system", "worker.jobs", "worker.jobs.fetch_job", "builtins.eval", ""])
def test_another_function_is_refused_and_not_imported(raw: Redis, name: str) -> None:
    raw.hset("rq:job:x", mapping={"data": json.dumps([name, None, ["true"], {}]), "retries_left": "3"})
    job = fetch_job("x", raw)
    with pytest.raises(InvalidConfig, match=r"is not allowed on this queue; enqueue 'worker\.jobs\.train'"):
        admit(job, raw, Settings())


def test_half_a_character_is_no_text_of_a_job(raw: Redis) -> None:
    """JSON may spell it, and nobody could write it into an answer."""
    raw.hset("rq:job:x", "data", json.dumps(["\ud800", None, ["true"], {}]))
    with pytest.raises(PoisonMessage, match="has half a character"):
        fetch_job("x", raw)


@pytest.mark.parametrize(("stored", "timeout"), [("1", 1), ("-1", -1), (str(MAX_TIMEOUT), MAX_TIMEOUT)])
def test_a_timeout_within_bounds_counts(raw: Redis, stored: str, timeout: int) -> None:
    raw.hset("rq:job:x", mapping={"data": PAYLOAD, "timeout": stored})
    assert fetch_job("x", raw).timeout == timeout
    raw.hdel("rq:job:x", "timeout")
    assert fetch_job("x", raw).timeout == JOB_TIMEOUT


def test_a_quarantined_id_is_removed_everywhere(raw: Redis, queue: Queue) -> None:
    bad, good = queue.enqueue(FUNCTION, JOB).id, queue.enqueue(FUNCTION, JOB).id
    raw.rpush(queue.key, bad)
    raw.rpush(queue.intermediate_queue_key, bad, good, bad)
    started = queue.started_job_registry.key
    raw.zadd(started, {f"{bad}:e1": 1, f"{bad}:e2": 2, f"{good}:e3": 3, f"{bad}x:e4": 4, bad: 5})
    assert quarantine.put(raw, queue, bad, "because", ttl=99)
    assert raw.lrange(queue.key, 0, -1) == [good.encode()]
    assert raw.lrange(queue.intermediate_queue_key, 0, -1) == [good.encode()]
    assert raw.zrange(started, 0, -1) == [f"{good}:e3".encode(), f"{bad}x:e4".encode()]
    assert raw.hget(f"rq:job:{bad}", "status") == b"failed"
    assert 0 < raw.ttl(f"rq:job:{bad}") <= 99
    ((name, entry),) = quarantine.entries(raw).items()
    assert (name, entry.reason, entry.queue) == (bad, "because", "preflight")


def test_a_job_is_quarantined_once_by_several_workers(raw: Redis, queue: Queue, settings: Settings) -> None:
    """The later ones, and a repetition whose answer was lost, publish nothing; a new submission is quarantined anew."""
    client = Client(settings.redis_url)
    job = queue.enqueue(FUNCTION, JOB)
    for number in range(1, 4):
        raw.rpush(queue.intermediate_queue_key, job.id)
        for reason in ("first", "second"):
            quarantine_job(raw, queue, settings, PoisonMessage(f"{reason} {number}", job.id), job.id)
        failures = [event for event in client.lifecycle_events(job.id) if isinstance(event, JobFailed)]
        assert [event.message for event in failures] == [
            f"first {each}; it is in quarantine as {job.id}" for each in range(1, number + 1)
        ]
        assert client.status(job.id).status == "failed"
        assert raw.hget(keys.TOTALS, "ended:failed:quarantined") == str(number).encode()
        raw.hset(f"rq:job:{job.id}", "status", "queued")


@given(job_id=st.binary(max_size=400))
@example(b"")
@example(b"*")
@example(b"a" * 10**6)
@example("\u2028\x1b[31m".encode())
def test_any_id_has_a_unique_printable_name(redis_url: str, job_id: bytes) -> None:
    raw = Redis.from_url(redis_url)
    raw.flushall()
    queue = Queue("preflight", connection=raw)
    raw.rpush(queue.key, job_id, job_id + b"x")
    raw.hset(b"rq:job:" + job_id, "data", "x")
    assert all(quarantine.put(raw, queue, one, "why") for one in (job_id, job_id + b"x"))
    names = {quarantine.name_of(one) for one in (job_id, job_id + b"x")}
    assert len(names) == 2
    assert raw.llen(queue.key) == 0
    assert set(quarantine.entries(raw)) == names
    for name in names:
        assert name.isascii()
        assert name.isprintable()
        assert 0 < len(name) <= 600
        assert quarantine.drop(raw, name)
        assert not quarantine.drop(raw, name)
    assert raw.exists(b"rq:job:" + job_id) == (len(job_id) > quarantine.MAX_ID_BYTES)


def test_the_oldest_tenth_is_deleted_beyond_a_bound(raw: Redis, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_ENTRIES", 50)
    for number in range(51):
        quarantine.put(raw, queue, f"job-{number}", "why")
    assert list(quarantine.entries(raw)) == [f"job-{number}" for number in range(5, 51)]


def test_shared_keys_of_another_type_are_left_alone(raw: Redis, queue: Queue) -> None:
    places = [queue.key, queue.intermediate_queue_key, queue.started_job_registry.key, keys.QUARANTINE]
    for key in places:
        raw.set(key, "somebody's")
    quarantine.put(raw, queue, "x", "why")
    assert [raw.get(key) for key in places] == [b"somebody's"] * 4


def test_an_invalid_entry_is_listed_and_can_be_dropped(raw: Redis) -> None:
    raw.hset(keys.QUARANTINE, mapping={"a": "{", "b": '{"at": "never"}', b"\xff\x1b": "x"})
    assert len(quarantine.entries(raw)) == 3
    assert quarantine.drop(raw, "a")


def test_a_worker_quarantines_poison_and_runs_the_next_job(
    raw: Redis, queue: Queue, client: Client, run_worker: RunWorker, tmp_path: Path
) -> None:
    """Poison in the queue, or left in the registries by a killed worker."""
    tripwire = tmp_path / "ran"
    raw.hset("rq:job:tripwire", "data", zlib.compress(pickle.dumps(Tripwire(tripwire))))
    raw.set("rq:job:string", "x")
    for job_id, (stored, _) in BAD.items():
        put_hash(raw, job_id, stored)
    odd = [b"a b", b"../../etc", b"\xff\x00\n", b"x" * 10_000, b""]
    raw.rpush(queue.intermediate_queue_key, "left-behind", b"\xfe")
    put_hash(raw, "left-behind", {"data": b"{"})
    raw.zadd(queue.started_job_registry.key, {b"\xfd:execution": 1})
    raw.rpush(queue.key, "tripwire", "string", "gone", *BAD, *odd)
    client.enqueue(digits_job(job_id="good"))
    worker = run_worker()
    assert client.status("good").status == "finished"
    put_away = quarantine.entries(raw)
    assert not any("please report it" in entry.reason for entry in put_away.values())
    assert put_away.keys() >= {*BAD, "tripwire", "string", "left-behind", "%FE", "a%20b", "%FF%00%0A", "(empty)"}
    assert raw.llen(queue.key) == raw.llen(queue.intermediate_queue_key) == 0
    assert raw.zrange(queue.started_job_registry.key, 0, -1) == []
    assert not tripwire.exists()
    assert all(json.loads(line)["message"] for line in worker.output().splitlines())


def test_a_worker_refuses_unsigned_and_too_large_jobs(settings: Settings, queue: Queue, run_worker: RunWorker) -> None:
    key = "sixteen letters!"
    client = Client(settings.redis_url, signing_key=key)
    client.enqueue(digits_job(job_id="signed"))
    client.enqueue(digits_job(job_id="long", epochs=4))
    client.enqueue(digits_job(job_id="large", epochs=2))
    Client(settings.redis_url, signing_key=key[::-1]).enqueue(digits_job(job_id="forged"))
    unsigned = digits_job(job_id="unsigned").model_dump(mode="json", exclude_unset=True)
    queue.enqueue(FUNCTION, unsigned, job_id="unsigned")
    limits = {"PREFLIGHT_MAX_EPOCHS": "3", "PREFLIGHT_MAX_SAMPLES": "1500"}
    worker = run_worker({"PREFLIGHT_SIGNING_KEY": key, **limits})
    states = {job_id: client.status(job_id) for job_id in ("signed", "long", "large", "forged", "unsigned")}
    assert states.pop("signed").status == "finished"
    assert {job_id: (state.reason, state.field) for job_id, state in states.items()} == {
        "long": ("invalid_config", "epochs"), "large": ("invalid_config", "epochs"),
        "forged": ("invalid_config", "signature"), "unsigned": ("invalid_config", "signature"),
    }  # fmt: skip
    assert key not in worker.output()


def test_the_commands_list_and_drop(redis_url: str, raw: Redis, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", redis_url)
    for job_id in ("a", b"b\n\xff", "c"):
        quarantine.put(raw, queue, job_id, "why \x1b[31m\nnot")
    listed = run("quarantine", "list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["a", "b%0A%FF", "c"]
    assert "\x1b" not in listed.stdout
    entries = [json.loads(line) for line in run("quarantine", "list", "--json").stdout.splitlines()]
    assert [entry["id"] for entry in entries] == ["a", "b%0A%FF", "c"]
    assert {entry["queue"] for entry in entries} == {"preflight"}
    assert run("quarantine", "drop", "b%0A%FF").stdout == "1 dropped\n"
    unknown = run("quarantine", "drop", "a", "nobody")
    assert (unknown.exit_code, "'nobody' is not in quarantine" in unknown.stderr) == (2, True)
    assert run("quarantine", "drop").exit_code == 2
    assert run("quarantine", "drop", "c", "--all").exit_code == 2
    assert run("quarantine", "drop", "--all").stdout == "1 dropped\n"
    assert run("quarantine", "list").stdout == ""
