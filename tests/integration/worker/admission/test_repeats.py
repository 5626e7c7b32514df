"""Repeats on a real Redis: the next run of a job of RQ's `Repeat`."""

import pytest
from redis import Redis
from rq import Queue, Repeat
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from preflight.queue.untrusted_job import UntrustedJob, fetch_job
from preflight.wire import FUNCTION
from worker.admission.repeats import enqueue_repeat, next_id
from worker.broker.fencing import Fence, Superseded

JOB = {"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}


def enqueue(queue: Queue, repeat: Repeat, **fields: object) -> UntrustedJob:
    queue.enqueue(
        FUNCTION, args=({**JOB, **fields},), job_id="nightly", repeat=repeat, meta={"team": "a"}, result_ttl=7
    )
    return fetch_job("nightly", queue.connection)


def unclaimed(raw: Redis) -> Fence:
    return Fence(raw, "nightly", "w/e", ttl=100, request="r")


def stored(raw: Redis, name: str) -> Job:
    return Job.fetch(name, connection=raw, serializer=JSONSerializer)


def test_the_next_run_is_a_job_of_its_own(raw: Redis, queue: Queue) -> None:
    """Enqueued once, however often; with the options and the meta of the first, under an id of its own."""
    job = enqueue(queue, Repeat(times=3), job_id="nightly")
    for _ in range(2):
        enqueue_repeat(raw, queue, job, unclaimed(raw))
    assert queue.get_job_ids() == ["nightly", "nightly-repeat-2"]
    following = stored(raw, "nightly-repeat-2")
    assert (following.repeats_left, following.get_status(), following.meta) == (2, JobStatus.QUEUED, {"team": "a"})
    assert following.args == [{**JOB, "job_id": "nightly-repeat-2"}]
    assert (following.func_name, following.timeout, following.result_ttl) == (FUNCTION, job.timeout, 7)


def test_intervals_are_used_in_turn_and_the_last_one_again(raw: Redis, queue: Queue) -> None:
    job = enqueue(queue, Repeat(times=3, interval=[60, 3600]))
    enqueue_repeat(raw, queue, job, unclaimed(raw))
    enqueue_repeat(raw, queue, fetch_job("nightly-repeat-2", raw), unclaimed(raw))
    enqueue_repeat(raw, queue, fetch_job("nightly-repeat-3", raw), unclaimed(raw))
    second, third, fourth = (stored(raw, f"nightly-repeat-{number}") for number in (2, 3, 4))
    assert (second.repeat_intervals, third.repeat_intervals, fourth.repeat_intervals) == ([3600], [3600], [3600])
    assert (second.repeats_left, third.repeats_left, fourth.repeats_left) == (2, 1, 0)
    assert second.args == [JOB]
    registry = queue.scheduled_job_registry
    times = [registry.get_scheduled_time(job).timestamp() for job in (second, third, fourth)]
    assert (round((times[1] - times[0]) / 60), round((times[2] - times[0]) / 60)) == (59, 59)
    assert fetch_job("nightly-repeat-4", raw).options.repeats_left == 0


def test_a_superseded_attempt_repeats_nothing(raw: Redis, queue: Queue) -> None:
    job, fence = enqueue(queue, Repeat(times=1)), unclaimed(raw)
    fence.claim("nightly")
    raw.hset("preflight:{nightly}:fence", mapping={"attempt": 2, "owner": "other"})
    with pytest.raises(Superseded):
        enqueue_repeat(raw, queue, job, fence)
    assert queue.get_job_ids() == ["nightly"]


@pytest.mark.parametrize(
    ("stored", "left", "pause"),
    [
        ({"repeats_left": "0"}, 0, 0),
        ({"repeats_left": "-1"}, 0, 0),
        ({"repeats_left": "1000000000", "repeat_intervals": "[0]"}, 10**9, 0),
        ({"repeats_left": "99999999999"}, 10**9, 0),
        ({"repeats_left": "1e3", "repeat_intervals": "5"}, 0, 5),
        ({"repeats_left": "1", "repeat_intervals": "[-5]"}, 1, 0),
        ({"repeats_left": "1", "repeat_intervals": "[" * 9999}, 1, 0),
        ({"repeats_left": "1", "repeat_intervals": '{"a": 1}'}, 1, 0),
        ({"repeats_left": "1", "repeat_intervals": "[999999999999]"}, 1, 0),
    ],
)  # fmt: skip
def test_hostile_repeats_are_bounded(raw: Redis, queue: Queue, stored: dict[str, str], left: int, pause: int) -> None:
    queue.enqueue(FUNCTION, args=(JOB,), job_id="j")
    for name, value in stored.items():
        raw.hset("rq:job:j", name, value)
    options = fetch_job("j", raw).options
    assert (options.repeats_left, options.repeat_pause) == (left, pause)


def test_ids_of_next_runs() -> None:
    assert [next_id("a"), next_id("a-repeat-2"), next_id("a-repeat-9")] == ["a-repeat-2", "a-repeat-3", "a-repeat-10"]
    long = "x" * 64
    seen = [long]
    for _ in range(12):
        seen.append(next_id(seen[-1]))
    assert len(set(seen)) == 13
    assert max(map(len, seen)) == 64
    assert next_id("y" * 64) != next_id("x" * 64)
