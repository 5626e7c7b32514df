"""Trials of one id enqueued many times."""

import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

from tools.faults.jobs import Job, Moment, Verdict
from tools.faults.scene import Scene
from tools.faults.trials.runs import finished


def enqueued_twice(scene: Scene, random: Random) -> Verdict:
    """Enqueue one id again and again, before and while it runs, where two workers wait."""
    job = scene.new_job()
    for _ in range(2):
        scene.add_container()
    for _ in range(3):
        scene.submit(job)
        scene.enqueue(job)
    scene.wait_for(Moment.MID_EPOCH, job, random)
    scene.submit(job)
    scene.enqueue(job)
    return _settled(scene, job)


def enqueued_by_many(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Enqueue one id from twenty clients at the same time, half of them with RQ's own means."""
    job, barrier = scene.new_job(), threading.Barrier(20)
    for _ in range(2):
        scene.add_container()

    def client(number: int) -> None:
        barrier.wait()
        (scene.submit if number % 2 else scene.enqueue)(job)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(client, range(20)))
    return _settled(scene, job)


def _settled(scene: Scene, job: Job) -> Verdict:
    """Wait until nothing of a job is left in the queue or running, and judge."""
    scene.await_end(job)
    scene.wait(lambda: scene.connection.llen(scene.queue.key) == 0 and not scene.strangers(), scene.patience)
    return finished(scene, job)
