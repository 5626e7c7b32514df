"""Admission: which jobs are accepted."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue
from redis import Redis

from preflight.contract.recipes import RECIPES
from preflight.errors import InvalidConfig
from preflight.queue.signing import Terms, sign
from preflight.queue.untrusted_job import UntrustedJob, parse
from preflight.redis import keys
from preflight.wire import FUNCTION, parse_job
from training.data.dataset_info import DatasetInfo
from worker.admission.acceptance import Replayed, end_acceptance, renew_acceptance
from worker.admission.admit import admit
from worker.admission.limits import default_batch_of, require_samples_within_limit
from worker.config.settings import Settings, load

KEY = "sixteen letters!"
JOB: dict[str, JsonValue] = {
    "type": "preflight.train.v1", "dataset": "mnist", "model": "cnn", "job_id": "one", "epochs": 3, "batch_size": 64,
}  # fmt: skip


FIELDS: dict[str, int] = {"timeout": 600, "result_ttl": 700, "failure_ttl": 800, "ttl": 900, "retries_left": 2}
"""Of a signed job's hash."""
BEGAN: dict[str, int] = {}
"""When the test did, seconds since the epoch: what it signs twice is one message."""


@pytest.fixture(autouse=True)
def began() -> None:
    BEGAN["at"] = int(time.time())


@pytest.fixture
def signing() -> Settings:
    """Settings of a worker that accepts only signed jobs."""
    return load(signing_key=KEY)


def called(*arguments: object, **keywords: object) -> UntrustedJob:
    """Return a job as it is read from Redis."""
    return parse("one", {"data": json.dumps([FUNCTION, None, arguments, keywords]).encode()})


def signed(
    rq_id: str = "one", *, ago: int = 0, job: Mapping[str, JsonValue] = JOB,
    keywords: Mapping[str, object] | None = None, changed: Mapping[str, int | None] | None = None,
) -> UntrustedJob:  # fmt: skip
    """Return a job signed `ago` seconds ago, with hash or keywords `changed` since."""
    terms = Terms(signed_at=BEGAN["at"] - ago, timeout=600, result_ttl=700, failure_ttl=800, ttl=900, retries=2)
    sent = {"signature": sign(job, terms, KEY), "signed_at": terms.signed_at, "retries": 2, **(keywords or {})}
    fields = {name: str(value).encode() for name, value in {**FIELDS, **(changed or {})}.items() if value is not None}
    return parse(rq_id, {"data": json.dumps([FUNCTION, None, [job], sent]).encode(), **fields})


def refusal(job: UntrustedJob, connection: Redis | None = None, **limits: object) -> InvalidConfig:
    """Return the reason of a refusal; without `connection` Redis is not asked."""
    with pytest.raises(InvalidConfig) as caught:
        admit(job, connection or Redis(), load(**limits))
    return caught.value


def test_a_valid_job_is_admitted() -> None:
    assert admit(called(JOB), Redis(), Settings()) == parse_job(JOB)
    assert admit(called(JOB, signature="whatever"), Redis(), Settings()) == parse_job(JOB)


def test_only_one_function_is_allowed() -> None:
    assert refusal(replace(called(), func_name="os.system")).message == (
        "function 'os.system' is not allowed on this queue; enqueue 'worker.jobs.train'"
    )


@pytest.mark.parametrize(
    "job", [called(), called(JOB, JOB), called(JOB, job=JOB), called(job=JOB), called(JOB, signature="x", other=1)]
)
def test_there_is_one_argument(job: UntrustedJob) -> None:
    assert "but takes one positional argument, and no keyword but signature" in refusal(job).message


@pytest.mark.parametrize("argument", [None, 7, "x", [JOB]])
def test_the_argument_is_an_object(argument: JsonValue) -> None:
    assert "but must be an object; send a TrainJob" in refusal(called(argument)).message


@pytest.mark.parametrize("job", [{**JOB, "job_id": "two"}, {**JOB, "epochs": 2}, {**JOB, "seed": 0}])
def test_the_signature_of_another_job_is_refused(job: dict[str, JsonValue]) -> None:
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
def test_terms_changed_after_signing_are_refused(changed: dict[str, int | None]) -> None:
    assert refusal(signed(changed=changed), signing_key=KEY).field == "signature"


@pytest.mark.parametrize("keywords", [{"signed_at": 0}, {"retries": 3}, {"signature": "x"}])
def test_keywords_changed_after_signing_are_refused(keywords: dict[str, int]) -> None:
    assert "is not that of this job" in refusal(signed(keywords=keywords), signing_key=KEY).message


@pytest.mark.parametrize("name", ["signed_at", "retries"])
@pytest.mark.parametrize("value", [None, True, 1.0, "1", -1, 10**10 + 1, 10**200, [1]])
def test_signed_at_and_retries_are_whole_numbers(name: str, value: JsonValue) -> None:
    error = refusal(signed(keywords={name: value}), signing_key=KEY)
    assert f"the keyword {name} of the signed job is " in error.message


@pytest.mark.parametrize("keywords", [{}, {"signature": None}, {"signature": 7}, {"signature": [KEY]}])
def test_a_missing_signature_is_refused(keywords: dict[str, JsonValue]) -> None:
    error = refusal(called(JOB, **keywords), signing_key=KEY)
    assert (error.field, "the job has no signature" in error.message) == ("signature", True)


def test_a_signed_job_is_admitted_repeatedly(connection: Redis) -> None:
    assert admit(signed(ago=80), connection, load(signing_key=KEY, signature_seconds=100)) == parse_job(JOB)
    for left in (2, 1, 0, None):
        job = signed(ago=80, changed={"retries_left": left})
        assert admit(job, connection, load(signing_key=KEY, signature_seconds=60)) == parse_job(JOB)
    assert 0 < connection.ttl(keys.accepted("one")) <= 30 * 86_400


def test_a_job_without_ttls_is_signed_with_null(connection: Redis) -> None:
    terms = Terms(signed_at=int(time.time()), timeout=21_600)
    keywords = {"signature": sign(JOB, terms, KEY), "signed_at": terms.signed_at, "retries": 0}
    job = parse("r", {"data": json.dumps([FUNCTION, None, [JOB], keywords]).encode()})
    assert admit(job, connection, load(signing_key=KEY)) == parse_job(JOB)


def test_a_message_is_accepted_within_its_window(connection: Redis) -> None:
    late = refusal(signed(ago=200), connection, signing_key=KEY, signature_seconds=100)
    assert late.field == "signature"
    assert "s ago, but this worker takes it at most 100 s after that (PREFLIGHT_SIGNATURE_SECONDS)" in late.message
    early = refusal(signed(ago=-3700), connection, signing_key=KEY)
    assert "s ahead of this worker's clock, but may be at most 3600 s ahead" in early.message
    assert not connection.exists(keys.accepted("one"))
    assert admit(signed(ago=-3500), connection, load(signing_key=KEY)) == parse_job(JOB)


def test_a_message_serves_one_rq_id(connection: Redis, signing: Settings) -> None:
    admit(signed("first", ago=50), connection, signing)
    copied = refusal(signed("second", ago=50), connection, signing_key=KEY)
    assert isinstance(copied, Replayed)
    assert "was taken before under another RQ id, and serves once; sign the job again" in copied.message
    admit(signed("first", ago=50), connection, signing)


@pytest.mark.parametrize("rq_id", ["first", "second"])
def test_a_message_expires_with_its_job(connection: Redis, rq_id: str, signing: Settings) -> None:
    admit(signed("first", ago=50), connection, signing)
    end_acceptance(connection, "one", "another", signing)
    admit(signed("first", ago=50), connection, signing)
    end_acceptance(connection, "one", "first", signing)
    assert isinstance(refusal(signed(rq_id, ago=50), connection, signing_key=KEY), Replayed)
    assert signing.signature_seconds < connection.ttl(keys.accepted("one"))
    admit(signed(rq_id, ago=40), connection, signing)


def test_an_older_message_is_refused_once_a_newer_one_has_ended(connection: Redis, signing: Settings) -> None:
    admit(signed("first", ago=50), connection, signing)
    admit(signed("second", ago=40), connection, signing)
    end_acceptance(connection, "one", "second", signing)
    admit(signed("first", ago=50), connection, signing)
    older = refusal(signed("fourth", ago=55), connection, signing_key=KEY)
    assert isinstance(older, Replayed)
    assert "was signed before one of the same job that has ended" in older.message


def test_a_message_of_a_finished_job_is_accepted(connection: Redis, signing: Settings) -> None:
    admit(signed("first", ago=50), connection, signing)
    end_acceptance(connection, "one", "first", signing)
    connection.set(keys.result("one"), "{}")
    assert admit(signed("second", ago=50), connection, signing) == parse_job(JOB)


def test_a_job_cancelled_in_the_queue_is_not_replayed(connection: Redis) -> None:
    connection.hset(keys.state("one"), mapping={"status": "cancelled", "updated_at": str(time.time() - 10)})
    assert isinstance(refusal(signed(ago=20), connection, signing_key=KEY), Replayed)
    admit(signed(ago=5), connection, load(signing_key=KEY))


def test_a_job_beyond_the_limits_uses_its_message_up(connection: Redis) -> None:
    refused = signed("first", ago=50)
    assert refusal(refused, connection, signing_key=KEY, max_epochs=2).field == "epochs"
    assert isinstance(refusal(signed("second", ago=50), connection, signing_key=KEY), Replayed)


def test_the_acceptance_of_a_running_job_is_renewed(connection: Redis) -> None:
    job = signed("first", ago=80)
    renew_acceptance(connection, job, "one", load(signing_key=KEY))
    admit(signed("first", ago=80), connection, load(signing_key=KEY, signature_seconds=60))
    assert isinstance(refusal(signed("second", ago=80), connection, signing_key=KEY), Replayed)
    connection.delete(keys.accepted("one"))
    renew_acceptance(connection, job, "one", load())
    assert not connection.exists(keys.accepted("one"))


@pytest.mark.parametrize(("kind", "command"), [("string", "SET"), ("list", "RPUSH")])
def test_acceptance_of_another_type_is_ignored(connection: Redis, signing: Settings, kind: str, command: str) -> None:
    connection.execute_command(command, keys.accepted("one"), "x")
    renew_acceptance(connection, signed(), "one", signing)
    end_acceptance(connection, "one", "one", signing)
    assert connection.type(keys.accepted("one")) == kind


def test_an_invalid_acceptance_record_is_ignored(connection: Redis) -> None:
    connection.hset(keys.accepted("one"), mapping={"carrier:x": "one", "signed_at:x": "y", "newest_ended": "z"})
    connection.set(keys.state("one"), "z")
    admit(signed(), connection, load(signing_key=KEY))


def test_numbers_are_signed_as_they_were_sent(connection: Redis) -> None:
    job: dict[str, JsonValue] = {**JOB, "epochs": 2.0}
    assert admit(signed(job=job), connection, load(signing_key=KEY)).epochs == 2


def test_a_signed_job_must_have_an_id() -> None:
    nameless = {name: value for name, value in JOB.items() if name != "job_id"}
    job = called(nameless, signature="x", signed_at=1, retries=0)
    assert refusal(job, signing_key=KEY).field == "job_id"


@pytest.mark.parametrize(("fields", "limits", "message"), [
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
])  # fmt: skip
def test_errors_name_the_limit(fields: dict[str, JsonValue], limits: dict[str, int], message: str) -> None:
    error = refusal(called({**JOB, **fields}), None, **limits)
    assert error.message == message
    assert message.startswith(f"{error.field} ")


def test_an_unlimited_timeout_exceeds_every_limit() -> None:
    endless = replace(called(JOB), timeout=-1)
    assert refusal(endless, max_job_timeout=10**9).message == (
        "job_timeout is -1 (never), but this worker takes at most 1000000000 (PREFLIGHT_MAX_JOB_TIMEOUT); ask for less"
    )
    assert admit(endless, Redis(), Settings()) == parse_job(JOB)


def test_repeats_without_end_are_refused() -> None:
    job = called(JOB)
    endless = replace(job, options=replace(job.options, repeats_left=10**9))
    assert refusal(endless).message == (
        "repeat is 1000000000, but this worker takes at most 1000 (PREFLIGHT_MAX_REPEATS); ask for less"
    )
    assert admit(endless, Redis(), load(max_repeats=10**9)) == parse_job(JOB)


def test_a_job_at_the_limits_is_admitted() -> None:
    limits = load(
        max_epochs=3, max_batch_size=64, max_samples=180_000, max_threads=4, max_loader_workers=2,
        max_calibration_seconds=3.5, max_job_timeout=21_600,
    )  # fmt: skip
    plan: JsonValue = {"threads": 4, "interop": 4, "loader_workers": 2}
    job = admit(called({**JOB, "plan": plan, "calibration_seconds": 3.5}), Redis(), limits)
    require_samples_within_limit(job.spec(), 60_000, limits)


def test_limits_hold_for_recipes() -> None:
    job: dict[str, JsonValue] = {"type": "preflight.train.v1", "dataset": "mnist", "recipe": "fast"}
    assert refusal(called(job), max_batch_size=RECIPES["fast"].batch_size - 1).field == "batch_size"


@pytest.mark.parametrize("most", [179_999, 59_999])
def test_samples_are_counted_over_all_epochs(most: int) -> None:
    require_samples_within_limit(parse_job(JOB).spec(), 60_000, Settings())
    with pytest.raises(InvalidConfig) as caught:
        require_samples_within_limit(parse_job(JOB).spec(), 60_000, load(max_samples=most))
    assert f"180000 samples of 60000 an epoch, but this worker trains on at most {most}" in caught.value.message
    assert "(PREFLIGHT_MAX_SAMPLES); ask for fewer epochs" in caught.value.message


def test_samples_are_counted_in_epochs_of_their_own_length() -> None:
    spec = parse_job({**JOB, "epoch_samples": 1_000}).spec()
    require_samples_within_limit(spec, 60_000, load(max_samples=3_000))
    with pytest.raises(InvalidConfig, match="3000 samples of 1000 an epoch"):
        require_samples_within_limit(spec, 60_000, load(max_samples=2_999))


def test_samples_are_counted_as_far_as_a_short_training_goes() -> None:
    for fields, asked in (({"train_samples": 1_000}, 3_000), ({"max_steps": 5}, 5 * 64)):
        spec = parse_job({**JOB, **fields}).spec()
        require_samples_within_limit(spec, 60_000, load(max_samples=asked))
        with pytest.raises(InvalidConfig, match=f"makes {asked} samples"):
            require_samples_within_limit(spec, 60_000, load(max_samples=asked - 1))


@pytest.mark.parametrize(("train", "batch"), [(83, 83), (320, 320), (5_000, 320)])
def test_a_recipe_takes_all_samples_of_a_small_set_in_a_batch(train: int, batch: int) -> None:
    """Ten folders of ten photographs are fewer than the batch of a recipe; the digest stays that of the request."""
    asked = {"type": "preflight.train.v1", "dataset": "photos", "recipe": "fast"}
    job = parse_job(asked, require_dataset=lambda _: None)
    info = DatasetInfo(
        name="photos@1", path=Path("nowhere"), shape=(3, 64, 64), classes=10, train_count=train, test_count=10,
        mean=33.0, std=78.0, sources=(),
    )  # fmt: skip
    settled = job.settled("photos@1", default_batch_of(job, info))
    assert (settled.spec().batch_size, settled.spec().dataset) == (batch, "photos@1")
    assert settled.digest() == job.digest()
