"""What a form offers, and the check of a job that is not enqueued: by a real worker and the jobs before."""

import time
from pathlib import Path

import pytest
from redis import Redis
from support.files.named_models import finish_job
from support.web.service import JOB, Service, serving
from support.worker.services import StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from worker.config.settings import Settings
from worker.models.promoting import promote_artifact
from worker.models.store import Author, open_store


def check(service: Service, **fields: object) -> tuple[int, object, str]:
    """Return status, field and message of a check."""
    found = service.ask("POST", "/v1/check", {**JOB, **fields})
    return found.status, found["field"] if found.status != 200 else None, str(found["message"])


def test_a_form_offers_what_the_workers_have(
    service: Service, client: Client, start_worker: StartWorker, raw: Redis
) -> None:
    """Data sets with their sizes, models, recipes; a job is refused as the worker would, and judged by those before."""
    empty = service.ask("GET", "/v1/choices")
    assert (empty["datasets"], empty["models"]) == ([], [])
    assert check(service)[2].endswith(
        "No worker is running, so it waits until one is started. How long it takes is not known yet: no finished "
        "job like it was found."
    )
    start_worker(environment={"PREFLIGHT_MAX_EPOCHS": "50"})
    wait_until(lambda: raw.hlen(keys.catalog("preflight")) > 3)
    client.enqueue(digits_job(job_id="before", model="cnn", epochs=2))
    wait_for(client, "before", "finished")
    wait_until(lambda: service.ask("GET", "/v1/choices")["datasets"] != [])
    offered = service.ask("GET", "/v1/choices?dataset=digits")
    datasets, recipes = offered["datasets"], offered["recipes"]
    assert isinstance(datasets, list)
    assert isinstance(recipes, list)
    (mnist,) = [each for each in datasets if each["name"] == "mnist"]
    assert mnist == {"name": "mnist", "train": 60_000, "test": 10_000, "classes": 10, "shape": [1, 28, 28]}
    assert "cnn" in str(offered["models"])
    assert [each["name"] for each in recipes] == ["fast", "balanced", "best"]
    assert recipes[0]["here"] == {"jobs": 0}
    assert recipes[0]["text"] == "99.2\u202f% on MNIST; time not known yet"
    # The worker is free a moment after its job has ended, and the table of jobs is read again now and then.
    wait_until(lambda: "It starts at once. The last such job took about " in check(service, epochs=2)[2])
    status, _, message = check(service, epochs=2)
    assert status == 200
    assert message.startswith("Trains cnn for 2 epochs on digits")
    for fields, field, words in (
        ({"dataset": "mnits"}, "dataset", "dataset 'mnits' is not known (did you mean 'mnist'?); the workers have"),
        ({"model": "cnm"}, "model", "model 'cnm' is not known (did you mean 'cnn'?); the workers have"),
        ({"epochs": 51}, "epochs", "epochs is 51, but this worker takes at most 50 (PREFLIGHT_MAX_EPOCHS)"),
        ({"dataset": "mnist", "batch_size": 60_000}, "batch_size", "use at most 55000"),
        ({"dataset": "mnist", "augmentation": {"hue": 0.1}}, "augmentation.hue", "images of mnist are grey"),
        ({"epochs": 0}, "epochs", "epochs is 0"),
    ):  # fmt: skip
        status, found, message = check(service, **fields)
        assert (status, found) == (422, field), message
        assert words in message
        refused = service.ask("POST", "/v1/jobs", {**JOB, **fields})
        assert (refused.status, refused["message"]) == (422, message)
    repeated = service.ask("POST", "/v1/jobs", {**JOB, "job_id": "before", "dataset": "mnits"})
    assert (repeated.status, repeated["same_request"]) == (409, False)  # it was accepted before
    assert client.ids() == ["before"]


@pytest.mark.slow
def test_garbage_in_what_workers_say_is_left_out(service: Service, raw: Redis) -> None:
    """A catalog of any content is no error; what is too old or none of theirs is not offered."""
    now, key = time.time(), keys.catalog("preflight")
    good = f'{{"at": {now:.0f}, "train": 5, "newer_field": 1}}'
    fields: dict[str | bytes, str] = {
        "dataset good": good, "dataset old": '{"at": 5}', "dataset long": '{"at": 1, "version": "' + "x" * 600 + '"}',
        "dataset odd": "[[[", "model m": good, "dataset " + "x" * 300: good, "dataset later": '{"at": 1e400}',
        b"dataset \xff": good,
    }  # fmt: skip
    raw.hset(key, items=[part for pair in fields.items() for part in pair])
    raw.sadd("rq:workers:preflight", "rq:worker:w")
    for limits in (b"{", b"[]", b'{"max_epochs": "many"}', b'{"max_epochs": -5}', b"\xff" * 2000):
        raw.hset("rq:worker:w", keys.LIMITS, limits)
        time.sleep(0.55)  # an answer is kept for half a second
        offered = service.ask("GET", "/v1/choices")
        assert (offered["datasets"], offered["models"]) == ([{"name": "good", "train": 5}], ["m"])
        assert check(service, dataset="good", model="m", epochs=9)[0] == 200
    raw.delete(key)
    raw.set(key, "x")
    time.sleep(0.55)
    assert service.ask("GET", "/v1/choices").status in (200, 503)


def test_a_check_enqueues_nothing(settings: Settings, tmp_path: Path, client: Client) -> None:
    """A read-only service checks, too: it changes nothing."""
    with serving(settings, tmp_path, PREFLIGHT_WEB_READONLY="on") as service:
        assert service.ask("POST", "/v1/check", JOB).status == 200
        assert service.ask("POST", "/v1/check", {**JOB, "epochs": "three"}).status == 422
        assert service.ask("POST", "/v1/check", b"{").status == 400
    assert client.ids() == []


def test_a_model_of_another_network_is_no_beginning(service: Service, settings: Settings, raw: Redis) -> None:
    """Known by its alias or its job; what is not known here, the worker decides."""
    finish_job(raw, settings.artifact_dir, "first", 0)
    promote_artifact(open_store(settings), "production", settings.artifact_dir / "first", Author(by="test"))
    raw.hset(keys.state("first"), mapping={"status": "finished", "model": "cnn"})
    for reference in ("production", "first"):
        assert check(service, init_from=reference)[0] == 200
        status, field, message = check(service, init_from=reference, model="resnet18")
        assert (status, field) == (422, "init_from")
        assert "whose network is 'cnn', but the job trains 'resnet18'; set model to 'cnn'" in message
    assert check(service, init_from="nobodys")[0] == 200
