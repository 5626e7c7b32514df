"""RQ's records of a job: RQ's own classes, of the installed version, read what we write."""

import time
from dataclasses import dataclass
from functools import partial

import pytest
from click.testing import CliRunner
from pydantic import JsonValue
from redis import Redis
from rq import Queue, Retry, Worker
from rq.cli.cli import main
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from preflight.queue.untrusted_job import UntrustedJob, fetch_job
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.wire import FUNCTION, TrainResult
from worker.broker.fencing import Fence, Superseded
from worker.broker.requeue import RqJobRef
from worker.broker.rq_records import Execution, RqRecords, failed, finished
from worker.config.settings import Settings

JOB: dict[str, JsonValue] = {"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn"}
RESULT = TrainResult(job_id="j", attempt=1, status="finished")
TTL = 1000


@dataclass(frozen=True, slots=True)
class Running:
    """A job that a worker executes."""

    job: UntrustedJob
    execution: Execution
    fence: Fence
    records: RqRecords
    worker: Worker


def running(raw: Redis, queue: Queue, **options: object) -> Running:
    """Return a job that was taken, claimed and started."""
    rq_job = queue.enqueue(FUNCTION, args=(JOB,), job_id="j", **options)
    raw.lmove(queue.key, queue.intermediate_queue_key)
    worker = Worker([queue], connection=raw, serializer=JSONSerializer)
    worker.register_birth()
    records = RqRecords(raw, queue, worker.name, acceptance_ttl=TTL)
    job, execution = fetch_job(rq_job.id, raw), Execution("e" * 32, time.time())
    records.begin_execution(job, execution)
    fence = Fence(raw, "j", f"{worker.name}/{execution.id}", ttl=TTL, request="r")
    assert fence.claim("j").status == "claimed"
    records.start_job(job, execution, fence)
    return Running(job, execution, fence, records, worker)


def requeue(one: Running, queue: Queue) -> None:
    ref = RqJobRef(queue, "j", one.execution.id)
    one.records.requeue(one.job, ref, one.fence, partial(one.fence.requeue, ref, front=True))


def stored(raw: Redis) -> Job:
    return Job.fetch("j", connection=raw, serializer=JSONSerializer)


def test_rq_reads_a_started_job(raw: Redis, queue: Queue) -> None:
    one = running(raw, queue)
    job = stored(raw)
    assert (job.get_status(), job.worker_name, job.started_at is not None) == (JobStatus.STARTED, one.worker.name, True)
    assert queue.started_job_registry.get_job_ids(cleanup=False) == ["j"]
    assert [execution.id for execution in job.get_executions()] == [one.execution.id]
    assert raw.llen(queue.intermediate_queue_key) == 0
    (worker,) = Worker.all(connection=raw, serializer=JSONSerializer)
    assert (worker.get_state(), worker.get_current_job_id()) == ("busy", "j")
    one.records.renew_execution(one.job, "j", one.execution)
    assert stored(raw).last_heartbeat is not None


def test_rq_info_counts_a_running_job(raw: Redis, queue: Queue, settings: Settings) -> None:
    one = running(raw, queue)
    shown = CliRunner().invoke(main, ["info", "--url", settings.redis_url])
    assert "1 executing" in shown.output, shown.output
    assert f"{one.worker.name} " in shown.output


def test_rq_reads_a_success(raw: Redis, queue: Queue) -> None:
    """Recorded again, nothing changes."""
    one = running(raw, queue, result_ttl=77, meta={"a": 1})
    for _ in range(2):
        one.records.end_job(one.job, "j", finished(one.job, RESULT), one.execution, one.fence)
    job = stored(raw)
    assert (job.get_status(), job.meta, job.ended_at is not None) == (JobStatus.FINISHED, {"a": 1}, True)
    assert job.return_value() == RESULT.model_dump(mode="json", exclude_none=True)
    assert len(job.results()) == 1
    assert 0 < raw.ttl(job.key) <= 77
    assert 0 < raw.ttl(keys.rq_results("j")) <= 77
    assert queue.finished_job_registry.get_job_ids() == ["j"]
    assert queue.started_job_registry.get_job_ids() == []
    assert job.get_executions() == []
    one.worker.refresh()
    assert (one.worker.successful_job_count, one.worker.failed_job_count) == (1, 0)
    one.records.renew_execution(one.job, "j", one.execution)
    assert queue.started_job_registry.get_job_ids() == []


def test_an_end_is_recorded_once(raw: Redis, queue: Queue) -> None:
    """Enqueued again, the job's end is recorded again."""
    one, again = running(raw, queue), Execution("f" * 32, time.time())
    one.records.begin_execution(one.job, again)
    raw.rpush(queue.intermediate_queue_key, "j")
    end = finished(one.job, RESULT)
    one.records.end_job(one.job, "j", end, one.execution, one.fence)
    one.records.end_job(one.job, "j", end, again, None)
    assert len(stored(raw).results()) == 1
    assert queue.started_job_registry.get_job_ids() == []
    assert raw.llen(queue.intermediate_queue_key) == 0
    queue.enqueue(FUNCTION, args=(JOB,), job_id="j")
    one.records.end_job(one.job, "j", end, None, None)
    assert len(stored(raw).results()) == 2


def test_a_second_worker_does_not_record_an_end_again(raw: Redis, queue: Queue) -> None:
    """It took a job that was reclaimed too early: its heartbeat must not call that "started" after the end."""
    one, other = running(raw, queue), Execution("f" * 32, time.time())
    end = finished(one.job, RESULT)
    one.records.begin_execution(one.job, other)
    one.records.end_job(one.job, "j", end, one.execution, one.fence)
    one.records.renew_execution(one.job, "j", other)
    assert stored(raw).get_status() == JobStatus.FINISHED
    one.records.end_job(one.job, "j", end, other, None)
    assert len(stored(raw).results()) == 1


def test_rq_reads_a_failure(raw: Redis, queue: Queue) -> None:
    """The result has a time to live, which RQ's own lacks."""
    one = running(raw, queue, retry=Retry(max=2))
    one.records.end_job(one.job, "j", failed(one.job, "diverged: too fast"), one.execution, one.fence)
    job = stored(raw)
    latest = job.latest_result()
    assert job.get_status() == JobStatus.FAILED
    assert latest is not None
    assert (latest.type.name, latest.exc_string) == ("FAILED", "diverged: too fast")
    assert queue.failed_job_registry.get_job_ids() == ["j"]
    assert raw.ttl(job.key) > 0
    assert raw.ttl(keys.rq_results("j")) > 0


@pytest.mark.parametrize("outcome", ["finished", "failed"])
def test_a_ttl_of_zero_deletes_the_records(raw: Redis, queue: Queue, outcome: str) -> None:
    one = running(raw, queue, result_ttl=0, failure_ttl=0)
    end = finished(one.job, RESULT) if outcome == "finished" else failed(one.job, "why")
    for _ in range(2):
        one.records.end_job(one.job, "j", end, one.execution, one.fence)
        one.records.renew_execution(one.job, "j", one.execution)
    left = [text(key) for key in raw.keys("rq:*") if "worker" not in text(key)]
    assert left == ["rq:queues"]


def test_a_ttl_of_minus_one_keeps_the_records(raw: Redis, queue: Queue) -> None:
    one = running(raw, queue, result_ttl=-1)
    one.records.end_job(one.job, "j", finished(one.job, RESULT), one.execution, one.fence)
    assert raw.ttl("rq:job:j") == raw.ttl(keys.rq_results("j")) == -1
    assert raw.zscore(queue.finished_job_registry.key, "j") == float("inf")


def test_a_superseded_attempt_records_nothing(raw: Redis, queue: Queue) -> None:
    one = running(raw, queue)
    raw.delete(keys.lease("j"))
    assert Fence(raw, "j", "other/x", ttl=TTL, request="r").claim("j").status == "claimed"
    with pytest.raises(Superseded):
        one.records.end_job(one.job, "j", finished(one.job, RESULT), one.execution, one.fence)
    with pytest.raises(Superseded):
        one.records.start_job(one.job, one.execution, one.fence)
    assert stored(raw).get_status() == JobStatus.STARTED


def test_a_requeued_job_leaves_no_execution(raw: Redis, queue: Queue) -> None:
    """RQ's deletion of the job fails on a stale id."""
    one = running(raw, queue, result_ttl=0)
    requeue(one, queue)
    assert queue.get_job_ids() == ["j"]
    assert not raw.exists(keys.rq_executions("j"), keys.rq_worker_executions(one.worker.name))
    stored(raw).delete()
    assert not raw.exists("rq:job:j")


def test_records_of_a_running_job_are_restored(raw: Redis, queue: Queue) -> None:
    one = running(raw, queue, result_ttl=77, meta={"a": 1}, description="mine")
    raw.flushall()
    assert one.fence.renew_lease(progressed=False).records_lost
    one.records.start_job(one.job, one.execution, one.fence)
    assert not one.fence.renew_lease(progressed=False).records_lost
    job = stored(raw)
    assert (job.get_status(), job.meta, job.description, job.result_ttl) == (JobStatus.STARTED, {"a": 1}, "mine", 77)
    assert queue.started_job_registry.get_job_ids(cleanup=False) == ["j"]
    one.records.end_job(one.job, "j", finished(one.job, RESULT), one.execution, one.fence)
    assert stored(raw).get_status() == JobStatus.FINISHED


def test_a_job_is_requeued_although_its_records_were_lost(raw: Redis, queue: Queue) -> None:
    one = running(raw, queue)
    raw.flushall()
    requeue(one, queue)
    assert queue.get_job_ids() == ["j"]
    assert stored(raw).get_status() == JobStatus.QUEUED
    assert fetch_job("j", raw).args == [JOB]


def test_a_job_ends_although_its_records_were_lost(raw: Redis, queue: Queue) -> None:
    one = running(raw, queue)
    raw.flushall()
    one.records.end_job(one.job, "j", finished(one.job, RESULT), one.execution, one.fence)
    assert stored(raw).get_status() == JobStatus.FINISHED
    assert queue.started_job_registry.get_job_ids(cleanup=False) == []


def test_a_deleted_job_stays_deleted(raw: Redis, queue: Queue) -> None:
    one = running(raw, queue)
    stored(raw).delete()
    assert not one.fence.renew_lease(progressed=False).records_lost
    one.records.start_job(one.job, one.execution, one.fence)
    requeue(one, queue)
    assert not raw.exists("rq:job:j")
    assert queue.get_job_ids() == []


def test_job_keys_of_another_type_are_replaced(raw: Redis, queue: Queue) -> None:
    for key in (keys.rq_executions("j"), keys.rq_results("j")):
        raw.set(key, "1")
    one = running(raw, queue)
    raw.delete(keys.rq_execution("j", one.execution.id))
    raw.set(keys.rq_execution("j", one.execution.id), "1")
    raw.set(keys.rq_worker_executions(one.worker.name), "1")
    one.records.renew_execution(one.job, "j", one.execution)
    one.records.end_job(one.job, "j", finished(one.job, RESULT), one.execution, one.fence)
    assert stored(raw).return_value() == RESULT.model_dump(mode="json", exclude_none=True)
