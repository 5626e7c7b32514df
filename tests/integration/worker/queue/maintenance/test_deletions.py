"""Deleted jobs: records and files go, the id stays taken, and what runs or is in use is refused."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from redis import Redis
from rq import Queue
from support.files.named_models import finish_job
from support.web.service import Service, serving
from support.worker.services import StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.cli.app import main
from preflight.client.delete import CannotDelete
from preflight.errors import InvalidConfig
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import FUNCTION
from worker.broker.fencing import Fence, Superseded
from worker.config.settings import Settings
from worker.models.promoting import promote_artifact
from worker.models.store import Author, open_store
from worker.queue.maintenance import deletions
from worker.queue.maintenance.deletions import DeletedFiles, Deletions
from worker.state.paths import open_paths


def delete(client: Client, raw: Redis, queue: Queue, settings: Settings, job_id: str) -> None:
    """Ask for a deletion, and carry it out as a maintainer does."""
    client.delete(job_id)
    Deletions(raw, queue, settings).step()


def test_a_trained_job_is_deleted_and_its_id_is_trained_no_more(
    client: Client, raw: Redis, queue: Queue, settings: Settings, start_worker: StartWorker
) -> None:
    """By a real worker: records, model and checkpoints; another request under the id is refused, also by plain RQ."""
    worker = start_worker()
    client.enqueue(digits_job(job_id="old"))
    wait_for(client, "old", "finished")
    client.annotate("old", note="a note", tags=["base"])
    artifact = settings.artifact_dir / "old"
    assert artifact.is_dir()
    wait_until(lambda: not raw.exists(keys.lease("old")))
    done = CliRunner(env={"REDIS_URL": settings.redis_url}).invoke(main, ["delete", "old", "--yes"])
    assert (done.exit_code, done.output) == (0, "old is deleted\n"), worker.output()
    wait_until(lambda: not artifact.exists())
    assert not (settings.state_dir / "jobs" / "old").exists()
    left = {text(key) for key in raw.keys("*old*")}
    assert left <= {keys.fence("old"), keys.accepted("old")}
    assert all(raw.ttl(key) > 0 for key in left)
    assert client.status("old").status == "unknown"
    with pytest.raises(InvalidConfig, match=r"the id of a job that was deleted on .*; take another one"):
        client.enqueue(digits_job(job_id="old"))
    with pytest.raises(CannotDelete, match="not known"):
        client.delete("old")
    request = digits_job(job_id="old").model_dump(mode="json", exclude_unset=True)
    queue.enqueue(FUNCTION, args=(request,), job_id="old")
    state = wait_for(client, "old", "failed")
    assert (state.reason, state.field) == ("invalid_config", "job_id")
    assert not artifact.exists()


def test_an_outbox_forgets_a_deleted_job(raw: Redis, queue: Queue, settings: Settings, tmp_path: Path) -> None:
    client = Client(settings.redis_url, outbox=tmp_path / "outbox")
    client.enqueue(digits_job(job_id="kept", epochs=1), ensure=True)
    client.cancel("kept")
    delete(client, raw, queue, settings, "kept")
    assert client.status("kept").status == "unknown"
    assert client.resubmit() == []
    assert list((tmp_path / "outbox").iterdir()) == []


def test_what_waits_runs_or_is_in_use_is_refused(
    client: Client, raw: Redis, queue: Queue, settings: Settings, tmp_path: Path
) -> None:
    client.enqueue(digits_job(job_id="waits"))
    with pytest.raises(CannotDelete, match="'waits' is queued; cancel it"):
        client.delete("waits")
    client.cancel("waits")
    raw.set(keys.lease("waits"), "owner 1", px=12_000)  # an attempt that has not heard of it
    delete(client, raw, queue, settings, "waits")
    refused = client.deletion("waits")
    assert refused is not None
    assert (refused.refused or "").startswith("job 'waits' is running; cancel it")
    assert client.deleted_at("waits") is None
    assert client.status("waits").status == "cancelled"
    finish_job(raw, settings.artifact_dir, "used", 0)
    store = open_store(settings)
    promote_artifact(store, "production", settings.artifact_dir / "used", Author(by="test"), expected=None)
    with serving(settings, tmp_path) as service:
        assert_refused(service, "used", 409, "in_use", "in use as production; promote another one first")
        assert_refused(service, "nobodys", 404, "unknown_job", "is not known")
    delete(client, raw, queue, settings, "used")  # a web service without the volume asks for it all the same
    refused = client.deletion("used")
    assert refused is not None
    assert refused.refused == "the model of job 'used' is in use as production; promote another one first"
    assert (settings.artifact_dir / "used").is_dir()
    with serving(settings, tmp_path, PREFLIGHT_WEB_READONLY="on") as service:
        assert_refused(service, "waits", 403, "read_only", "changes nothing")


def assert_refused(service: Service, job_id: str, status: int, reason: str, words: str) -> None:
    answer = service.ask("DELETE", f"/v1/jobs/{job_id}")
    assert (answer.status, answer["reason"]) == (status, reason)
    assert words in str(answer["message"])


def test_models_of_an_alias_outlive_the_job(client: Client, raw: Redis, queue: Queue, settings: Settings) -> None:
    """One that an alias stood for can be rolled back to."""
    for seed, job in enumerate(("first", "second")):
        finish_job(raw, settings.artifact_dir, job, seed)
        artifact = settings.artifact_dir / job
        promote_artifact(open_store(settings), "production", artifact, Author(by="test"), expected=seed)
    delete(client, raw, queue, settings, "first")
    assert not (settings.artifact_dir / "first").exists()
    assert open_store(settings).rollback("production", Author(by="test")).current.job_id == "first"
    open_store(settings).resolve("production")


def test_a_frozen_attempt_writes_nothing_after_the_deletion(
    client: Client, raw: Redis, queue: Queue, settings: Settings
) -> None:
    raw.hset(keys.rq_job("job"), "status", "failed")
    fence = Fence(raw, "job", "owner", ttl=60, request="r")
    raw.hset(keys.rq_job("job"), "status", "started")
    assert fence.claim("job").status == "claimed"
    raw.delete(keys.lease("job"))
    raw.hset(keys.rq_job("job"), "status", "failed")
    delete(client, raw, queue, settings, "job")
    assert client.deleted_at("job") is not None
    with pytest.raises(Superseded):
        fence.publish([], before={}, kept=10)
    with pytest.raises(Superseded):
        fence.renew_lease(progressed=False)


def test_files_of_other_machines_go_once_nothing_uses_them(raw: Redis, settings: Settings) -> None:
    """Each worker looks at its disk; a directory that a process uses goes later, a symbolic link never."""
    paths = open_paths(settings, "gone", 1)
    elsewhere = settings.state_dir / "elsewhere"
    elsewhere.mkdir()
    settings.artifact_dir.mkdir(exist_ok=True)
    (settings.artifact_dir / "linked").symlink_to(elsewhere)
    raw.zadd(keys.DELETED, {b"gone": 5, b"linked": 6, b"../etc": 7, b"\xff": 8})
    files = DeletedFiles(raw, settings)
    files.step()
    assert paths.job.exists()
    paths.close()
    assert not files.due()
    files.step()
    assert not paths.job.exists()
    assert elsewhere.is_dir()


def test_a_second_with_more_deletions_than_a_page_is_read_to_its_end(
    raw: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "MAX_IDS", 3)
    raw.zadd(keys.DELETED, {f"job-{number}": 5 + (number >= 8) for number in range(10)})
    for number in range(10):
        (settings.artifact_dir / f"job-{number}").mkdir(parents=True)
    files = DeletedFiles(raw, settings)
    for _ in range(10):
        if files.due():
            files.step()
    assert not files.due()
    assert [*settings.artifact_dir.glob("job-*")] == []


def test_garbage_among_the_requests_is_dropped(raw: Redis, queue: Queue, settings: Settings) -> None:
    key = keys.deletions("preflight")
    odd, foreign = '{"rq_id": "d", "at": -1}', '{"rq_id": "b", "at": 1}'
    fields: dict[str | bytes, str] = {
        "a": "x",
        "../b": foreign,
        "c": "[" * 4000,
        b"\xff": "{}",
        "d": odd,
    }
    raw.hset(key, items=[part for pair in fields.items() for part in pair])
    raw.hset(key, "old", '{"rq_id": "old", "at": 1, "refused": "so"}')
    Deletions(raw, queue, settings).step()
    assert not raw.exists(key)
    assert not raw.exists(keys.DELETED)
