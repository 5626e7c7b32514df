"""Which jobs are let in."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from pydantic import JsonValue
from redis import Redis

from training.config.recipes import RECIPES
from training.errors import InvalidConfig
from worker.broker import keys
from worker.config.settings import Settings, load
from worker.queue.admission.admit import Replayed, admit, end_accepted, keep_accepted, within_samples
from worker.queue.admission.signing import Terms, sign
from worker.queue.untrusted_job import SafeJob, parse
from worker.wire import FUNCTION, parse_job

KEY = "sixteen letters!"
JOB: dict[str, JsonValue] = {
    "type": "preflight.train.v1", "dataset": "mnist", "model": "cnn", "job_id": "one", "epochs": 3, "batch_size": 64,
}  # fmt: skip


def called(*arguments: object, function: str = FUNCTION, **keywords: object) -> SafeJob:
    """Return the job of a call."""
    return restored(arguments, keywords, function)


def restored(arguments: Sequence[object], keywords: Mapping[str, object], function: str = FUNCTION) -> SafeJob:
    """Return a job as it is restored from Redis; nothing of it needs a server."""
    return parse("one", {"data": json.dumps([function, None, arguments, keywords]).encode()})


FIELDS: dict[str, int] = {"timeout": 600, "result_ttl": 700, "failure_ttl": 800, "ttl": 900, "retries_left": 2}
"""Of a signed job's hash."""


BEGAN: dict[str, int] = {}
"""When the test did, seconds since the epoch: what it signs twice is one message."""


@pytest.fixture(autouse=True)
def began() -> None:
    """Note the time."""
    BEGAN["at"] = int(time.time())


@pytest.fixture
def redis(redis_url: str) -> Redis:
    """An empty Redis."""
    connection = Redis.from_url(redis_url, decode_responses=True)
    connection.flushall()
    return connection


def signed(
    rq_id: str = "one", *, ago: int = 0, job: Mapping[str, JsonValue] = JOB,
    keywords: Mapping[str, object] | None = None, changed: Mapping[str, int | None] | None = None,
) -> SafeJob:  # fmt: skip
    """Return a job that was signed `ago` seconds ago, and whose hash or keywords were `changed` since."""
    terms = Terms(signed_at=BEGAN["at"] - ago, timeout=600, result_ttl=700, failure_ttl=800, ttl=900, retries=2)
    sent = {"signature": sign(job, terms, KEY), "signed_at": terms.signed_at, "retries": 2, **(keywords or {})}
    fields = {name: str(value).encode() for name, value in {**FIELDS, **(changed or {})}.items() if value is not None}
    return parse(rq_id, {"data": json.dumps([FUNCTION, None, [job], sent]).encode(), **fields})


def refusal(job: SafeJob, connection: Redis | None = None, **limits: object) -> InvalidConfig:
    """Return why a job is not let in; without `connection` Redis is not asked."""
    with pytest.raises(InvalidConfig) as caught:
        admit(job, connection or Redis(), load(**limits))
    return caught.value


def test_a_good_job_is_admitted() -> None:
    """It arrives as the TrainJob that was sent; a signature is no hindrance where none is asked for."""
    assert admit(called(JOB), Redis(), Settings()) == parse_job(JOB)
    assert admit(called(JOB, signature="whatever"), Redis(), Settings()) == parse_job(JOB)


def test_only_one_function_may_be_named() -> None:
    """Another one is refused before its arguments are looked at."""
    assert refusal(called(function="os.system")).message == (
        "function 'os.system' is not allowed on this queue; enqueue 'worker.jobs.train'"
    )


@pytest.mark.parametrize(
    "job", [called(), called(JOB, JOB), called(JOB, job=JOB), called(job=JOB), called(JOB, signature="x", other=1)]
)
def test_there_is_one_argument(job: SafeJob) -> None:
    """And no keyword but the signature."""
    assert "but takes one positional argument, and no keyword but signature" in refusal(job).message


@pytest.mark.parametrize("argument", [None, 7, "x", [JOB]])
def test_the_argument_is_an_object(argument: JsonValue) -> None:
    """Anything else is named by its type."""
    assert "but must be an object; send a TrainJob" in refusal(called(argument)).message


@pytest.mark.parametrize("job", [{**JOB, "job_id": "two"}, {**JOB, "epochs": 2}, {**JOB, "seed": 0}])
def test_the_signature_of_another_job_is_refused(job: dict[str, JsonValue]) -> None:
    """That of another id, of another value, or with a field more."""
    copied = replace(signed(job=job), args=[JOB])
    error = refusal(copied, signing_key=KEY)
    assert error.field == "signature"
    assert "is not that of this job with signed_at " in error.message
    assert (
        "timeout 600, result_ttl 700, failure_ttl 800, ttl 900 and retries 2 under this worker's key" in error.message
    )


@pytest.mark.parametrize(
    "changed",
    [{"timeout": -1}, {"timeout": None}, {"result_ttl": -1}, {"failure_ttl": None}, {"ttl": 901}, {"retries_left": 3}],
)
def test_terms_that_were_changed_after_signing_are_refused(changed: dict[str, int | None]) -> None:
    """A captured message may not run longer, be kept longer or be tried more often."""
    assert refusal(signed(changed=changed), signing_key=KEY).field == "signature"


@pytest.mark.parametrize("keywords", [{"signed_at": 0}, {"retries": 3}, {"signature": "x"}])
def test_keywords_that_were_changed_after_signing_are_refused(keywords: dict[str, int]) -> None:
    """They are signed, too."""
    assert "is not that of this job" in refusal(signed(keywords=keywords), signing_key=KEY).message


@pytest.mark.parametrize("name", ["signed_at", "retries"])
@pytest.mark.parametrize("value", [None, True, 1.0, "1", -1, 10**10 + 1, 10**200, [1]])
def test_signed_at_and_retries_are_whole_numbers(name: str, value: JsonValue) -> None:
    """Within bounds; one sentence names the keyword."""
    error = refusal(signed(keywords={name: value}), signing_key=KEY)
    assert f"the keyword {name} of the signed job is " in error.message


@pytest.mark.parametrize("keywords", [{}, {"signature": None}, {"signature": 7}, {"signature": [KEY]}])
def test_a_missing_signature_is_refused(keywords: dict[str, JsonValue]) -> None:
    """A worker with a key takes nothing unsigned."""
    error = refusal(restored([JOB], keywords), signing_key=KEY)
    assert (error.field, "the job has no signature" in error.message) == ("signature", True)


def test_a_signed_job_is_admitted_as_often_as_it_comes(redis: Redis) -> None:
    """Under its RQ id: tried again with fewer retries left, and later than its window."""
    assert admit(signed(ago=80), redis, load(signing_key=KEY, signature_seconds=100)) == parse_job(JOB)
    for left in (2, 1, 0, None):
        job = signed(ago=80, changed={"retries_left": left})
        assert admit(job, redis, load(signing_key=KEY, signature_seconds=60)) == parse_job(JOB)
    assert 0 < redis.ttl(keys.accepted("one")) <= 30 * 86_400


def test_a_job_without_ttls_is_signed_with_null(redis: Redis) -> None:
    """And with RQ's default of a worker for the timeout."""
    terms = Terms(signed_at=int(time.time()), timeout=21_600)
    keywords = {"signature": sign(JOB, terms, KEY), "signed_at": terms.signed_at, "retries": 0}
    job = parse("r", {"data": json.dumps([FUNCTION, None, [JOB], keywords]).encode()})
    assert admit(job, redis, load(signing_key=KEY)) == parse_job(JOB)


def test_a_message_is_taken_within_its_window(redis: Redis) -> None:
    """Counted from its signing; a clock that is an hour ahead is tolerated."""
    late = refusal(signed(ago=200), redis, signing_key=KEY, signature_seconds=100)
    assert late.field == "signature"
    assert "s ago, but this worker takes it at most 100 s after that (PREFLIGHT_SIGNATURE_SECONDS)" in late.message
    early = refusal(signed(ago=-3700), redis, signing_key=KEY)
    assert "s ahead of this worker's clock, but may be at most 3600 s ahead" in early.message
    assert not redis.exists(keys.accepted("one"))
    assert admit(signed(ago=-3500), redis, load(signing_key=KEY)) == parse_job(JOB)


def test_a_message_serves_one_rq_id(redis: Redis) -> None:
    """A copy is refused while the job waits, runs or waits for its next attempt."""
    settings = load(signing_key=KEY)
    admit(signed("first", ago=50), redis, settings)
    copied = refusal(signed("second", ago=50), redis, signing_key=KEY)
    assert isinstance(copied, Replayed)
    assert "was taken before under another RQ id, and serves once; sign the job anew" in copied.message
    admit(signed("first", ago=50), redis, settings)


@pytest.mark.parametrize("rq_id", ["first", "second"])
def test_a_message_ends_with_its_job(redis: Redis, rq_id: str) -> None:
    """It is refused under whatever RQ id; signed anew, the job is taken again."""
    settings = load(signing_key=KEY)
    admit(signed("first", ago=50), redis, settings)
    end_accepted(redis, "one", "another", settings)
    admit(signed("first", ago=50), redis, settings)
    end_accepted(redis, "one", "first", settings)
    assert isinstance(refusal(signed(rq_id, ago=50), redis, signing_key=KEY), Replayed)
    assert settings.signature_seconds < redis.ttl(keys.accepted("one"))
    admit(signed(rq_id, ago=40), redis, settings)


def test_an_older_message_is_refused_once_a_newer_one_has_ended(redis: Redis) -> None:
    """But not while that goes on: another message of a job that runs takes nothing from it."""
    settings = load(signing_key=KEY)
    admit(signed("first", ago=50), redis, settings)
    admit(signed("second", ago=40), redis, settings)
    end_accepted(redis, "one", "second", settings)
    admit(signed("first", ago=50), redis, settings)
    older = refusal(signed("fourth", ago=55), redis, signing_key=KEY)
    assert isinstance(older, Replayed)
    assert "was signed before one of the same job that has ended" in older.message


def test_a_finished_job_is_given_its_result_again(redis: Redis) -> None:
    """Nothing is trained, so a copy is let in to where the stored result is booked."""
    settings = load(signing_key=KEY)
    admit(signed("first", ago=50), redis, settings)
    end_accepted(redis, "one", "first", settings)
    redis.set(keys.result("one"), "{}")
    assert admit(signed("second", ago=50), redis, settings) == parse_job(JOB)


def test_a_job_that_was_cancelled_in_the_queue_is_not_replayed(redis: Redis) -> None:
    """No worker has taken it, so its state says so."""
    redis.hset(keys.state("one"), mapping={"status": "cancelled", "updated_at": str(time.time() - 10)})
    assert isinstance(refusal(signed(ago=20), redis, signing_key=KEY), Replayed)
    admit(signed(ago=5), redis, load(signing_key=KEY))


def test_a_job_beyond_the_limits_uses_its_message_up(redis: Redis) -> None:
    """It ends as failed, and does not run when a limit is raised later."""
    refused = signed("first", ago=50)
    assert refusal(refused, redis, signing_key=KEY, max_epochs=2).field == "epochs"
    assert isinstance(refusal(signed("second", ago=50), redis, signing_key=KEY), Replayed)


def test_the_record_of_a_running_job_is_kept(redis: Redis) -> None:
    """A Redis that lost its data gets it back, so that the job is taken again when it is handed back late."""
    job = signed("first", ago=80)
    keep_accepted(redis, job, "one", load(signing_key=KEY))
    admit(signed("first", ago=80), redis, load(signing_key=KEY, signature_seconds=60))
    assert isinstance(refusal(signed("second", ago=80), redis, signing_key=KEY), Replayed)
    redis.delete(keys.accepted("one"))
    keep_accepted(redis, job, "one", load())
    assert not redis.exists(keys.accepted("one"))


@pytest.mark.parametrize("kind", ["string", "list"])
def test_a_record_of_another_type_ends_no_running_job(redis: Redis, kind: str) -> None:
    """It is left as it is."""
    if kind == "string":
        redis.set(keys.accepted("one"), "x")
    else:
        redis.rpush(keys.accepted("one"), "x")
    keep_accepted(redis, signed(), "one", load(signing_key=KEY))
    end_accepted(redis, "one", "one", load(signing_key=KEY))
    assert redis.type(keys.accepted("one")) == kind


def test_a_record_of_garbage_counts_as_none(redis: Redis) -> None:
    """Neither fields that are no numbers nor a state of another type raise anything."""
    redis.hset(keys.accepted("one"), mapping={"carrier:x": "one", "signed_at:x": "y", "newest_ended": "z"})
    redis.set(keys.state("one"), "z")
    admit(signed(), redis, load(signing_key=KEY))


def test_the_signature_is_that_of_the_numbers_as_they_were_sent(redis: Redis) -> None:
    """A whole number with a fraction is read as an integer, after its signature was compared."""
    job: dict[str, JsonValue] = {**JOB, "epochs": 2.0}
    assert admit(signed(job=job), redis, load(signing_key=KEY)).epochs == 2


def test_a_signed_job_names_its_id() -> None:
    """RQ's id is not signed, so that one signature would serve for any number of ids."""
    nameless = {name: value for name, value in JOB.items() if name != "job_id"}
    job = restored([nameless], {"signature": "x", "signed_at": 1, "retries": 0})
    assert refusal(job, signing_key=KEY).field == "job_id"


@pytest.mark.parametrize(
    ("fields", "limits", "message"),
    [
        ({}, {"max_epochs": 2},
         "epochs is 3, but this worker takes at most 2 (PREFLIGHT_MAX_EPOCHS); ask for less"),
        ({}, {"max_batch_size": 63},
         "batch_size is 64, but this worker takes at most 63 (PREFLIGHT_MAX_BATCH_SIZE); ask for less"),
        ({"plan": {"eval_batch": 65}}, {"max_batch_size": 64},
         "plan.eval_batch is 65, but this worker takes at most 64 (PREFLIGHT_MAX_BATCH_SIZE); ask for less"),
        ({"plan": {"threads": 5}}, {"max_threads": 4},
         "plan.threads is 5, but this worker takes at most 4 (PREFLIGHT_MAX_THREADS); ask for less"),
        ({"plan": {"interop": 5}}, {"max_threads": 4},
         "plan.interop is 5, but this worker takes at most 4 (PREFLIGHT_MAX_THREADS); ask for less"),
        ({"plan": {"loader_workers": 1}}, {"max_loader_workers": 0},
         "plan.loader_workers is 1, but this worker takes at most 0 (PREFLIGHT_MAX_LOADER_WORKERS); ask for less"),
        ({"calibration_seconds": 3.5}, {"max_calibration_seconds": 2.5},
         "calibration_seconds is 3.5, but this worker takes at most 2.5 (PREFLIGHT_MAX_CALIBRATION_SECONDS); "
         "ask for less"),
        ({}, {"max_job_timeout": 21_599},
         "job_timeout is 21600, but this worker takes at most 21599 (PREFLIGHT_MAX_JOB_TIMEOUT); ask for less"),
    ],
)  # fmt: skip
def test_a_limit_of_the_worker_is_named(fields: dict[str, JsonValue], limits: dict[str, int], message: str) -> None:
    """With the value, the bound and the variable that sets it."""
    error = refusal(called({**JOB, **fields}), None, **limits)
    assert error.message == message
    assert message.startswith(f"{error.field} ")


def test_a_job_without_an_end_is_above_every_limit() -> None:
    """RQ's -1 is no small number of seconds."""
    endless = replace(called(JOB), timeout=-1)
    assert refusal(endless, max_job_timeout=10**9).message == (
        "job_timeout is -1 (never), but this worker takes at most 1000000000 (PREFLIGHT_MAX_JOB_TIMEOUT); ask for less"
    )
    assert admit(endless, Redis(), Settings()) == parse_job(JOB)


def test_a_job_at_the_limits_is_admitted() -> None:
    """At most means at most."""
    limits = load(
        max_epochs=3, max_batch_size=64, max_samples=180_000, max_threads=4, max_loader_workers=2,
        max_calibration_seconds=3.5, max_job_timeout=21_600,
    )  # fmt: skip
    plan: JsonValue = {"threads": 4, "interop": 4, "loader_workers": 2}
    job = admit(called({**JOB, "plan": plan, "calibration_seconds": 3.5}), Redis(), limits)
    within_samples(job.spec(), 60_000, limits)


def test_a_limit_holds_for_what_a_recipe_asks_for() -> None:
    """What is bounded is what will be trained, not what the job spells out."""
    job: dict[str, JsonValue] = {"type": "preflight.train.v1", "dataset": "mnist", "recipe": "fast"}
    assert refusal(called(job), max_batch_size=RECIPES["fast"].batch_size - 1).field == "batch_size"


@pytest.mark.parametrize("most", [179_999, 59_999])
def test_the_samples_are_counted_over_all_epochs(most: int) -> None:
    """Once the data set is known; without the setting there is no limit."""
    within_samples(parse_job(JOB).spec(), 60_000, Settings())
    with pytest.raises(InvalidConfig) as caught:
        within_samples(parse_job(JOB).spec(), 60_000, load(max_samples=most))
    assert f"180000 samples of 60000 an epoch, but this worker trains on at most {most}" in caught.value.message
    assert "(PREFLIGHT_MAX_SAMPLES); ask for fewer epochs" in caught.value.message
