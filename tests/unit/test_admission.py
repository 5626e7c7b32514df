"""Which jobs are let in."""

import json
from collections.abc import Mapping, Sequence

import pytest
from pydantic import JsonValue

from training.errors import InvalidConfig
from training.recipes import RECIPES
from worker.admission import admit, within_samples
from worker.safe_job import SafeJob, parse
from worker.settings import Settings, load
from worker.signing import sign
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


def refusal(job: SafeJob, **limits: object) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        admit(job, load(**limits))
    return caught.value


def test_a_good_job_is_admitted() -> None:
    """It arrives as the TrainJob that was sent; a signature is no hindrance where none is asked for."""
    assert admit(called(JOB), Settings()) == parse_job(JOB)
    assert admit(called(JOB, signature="whatever"), Settings()) == parse_job(JOB)


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


@pytest.mark.parametrize(
    "signature", ["", sign(JOB, KEY)[::-1], sign({**JOB, "job_id": "two"}, KEY), sign(JOB, KEY * 2)]
)
def test_a_wrong_signature_is_refused(signature: str) -> None:
    """That of another job, of another id, of another key, or none that anybody made."""
    error = refusal(called(JOB, signature=signature), signing_key=KEY)
    assert error.field == "signature"
    assert "is not that of this job under this worker's key" in error.message


@pytest.mark.parametrize("keywords", [{}, {"signature": None}, {"signature": 7}, {"signature": [KEY]}])
def test_a_missing_signature_is_refused(keywords: dict[str, JsonValue]) -> None:
    """A worker with a key takes nothing unsigned."""
    error = refusal(restored([JOB], keywords), signing_key=KEY)
    assert (error.field, "the job has no signature" in error.message) == ("signature", True)


def test_a_signed_job_is_admitted() -> None:
    """Signed with the worker's key, over all its fields."""
    assert admit(called(JOB, signature=sign(JOB, KEY)), load(signing_key=KEY)) == parse_job(JOB)


def test_the_signature_is_that_of_the_numbers_as_they_were_sent() -> None:
    """A whole number with a fraction is read as an integer, after its signature was compared."""
    job: dict[str, JsonValue] = {**JOB, "epochs": 2.0}
    assert admit(called(job, signature=sign(job, KEY)), load(signing_key=KEY)).epochs == 2


def test_a_signed_job_names_its_id() -> None:
    """RQ's id is not signed, so that one signature would serve for any number of ids."""
    nameless = {name: value for name, value in JOB.items() if name != "job_id"}
    assert refusal(called(nameless, signature="x"), signing_key=KEY).field == "job_id"


@pytest.mark.parametrize(
    ("fields", "limits", "message"),
    [
        ({}, {"max_epochs": 2},
         "epochs is 3, but this worker takes at most 2 (PREFLIGHT_MAX_EPOCHS); ask for less"),
        ({}, {"max_batch_size": 63},
         "batch_size is 64, but this worker takes at most 63 (PREFLIGHT_MAX_BATCH_SIZE); ask for less"),
        ({"plan": {"eval_batch": 65}}, {"max_batch_size": 64},
         "plan.eval_batch is 65, but this worker takes at most 64 (PREFLIGHT_MAX_BATCH_SIZE); ask for less"),
    ],
)  # fmt: skip
def test_a_limit_of_the_worker_is_named(fields: dict[str, JsonValue], limits: dict[str, int], message: str) -> None:
    """With the value, the bound and the variable that sets it."""
    error = refusal(called({**JOB, **fields}), **limits)
    assert error.message == message
    assert message.startswith(f"{error.field} ")


def test_a_job_at_the_limits_is_admitted() -> None:
    """At most means at most."""
    limits = load(max_epochs=3, max_batch_size=64, max_samples=180_000)
    job = admit(called(JOB), limits)
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
