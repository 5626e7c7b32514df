"""Trials of hosts, long partitions, clocks and output."""

import math
import os
import signal
import time
from random import Random
from typing import Final

from tools.faults.container import Container, hit
from tools.faults.jobs import Job, Moment, Verdict
from tools.faults.means import Clock
from tools.faults.scene import Scene
from tools.faults.trials.runs import finished, judged

TAKEOVER_S: Final = 30.0
"""Seconds within which another host continues the job of a dead one."""


def host_dies(scene: Scene, random: Random) -> Verdict:
    """Kill everything on one host and start nothing there again; another host has an idle worker."""
    job, first, _ = _two_hosts(scene, random)
    struck = time.time()
    first.restarted = False
    hit(first.tree, signal.SIGKILL)
    scene.await_end(job)
    verdict = scene.verdict(job, struck)
    if verdict.takeover_s is not None and verdict.takeover_s > TAKEOVER_S:
        scene.late.append(f"taken over after {verdict.takeover_s:.0f} s")
    return verdict


def host_freezes(scene: Scene, random: Random) -> Verdict:
    """SIGSTOP everything on one host until another has taken over; it wakes up during or after the other's run."""
    job, first, second = _two_hosts(scene, random)
    struck, frozen = time.time(), first.tree
    hit(frozen, signal.SIGSTOP)
    if not scene.wait(lambda: second.supervisor is not None, 2 * TAKEOVER_S):
        scene.problems.append(f"not taken over within {2 * TAKEOVER_S:.0f} s")
    elif random.random() < 0.5:
        scene.sleep(random.uniform(0, 4))
    else:
        scene.await_end(job)
    hit(frozen, signal.SIGCONT)
    scene.await_end(job)
    scene.sleep(5)  # for whatever the late one does
    scene.most_trainings = 0  # the late one trains until it learns of the other; what counts is that it emits nothing
    return scene.verdict(job, struck)


def _two_hosts(scene: Scene, random: Random) -> tuple[Job, Container, Container]:
    """Return a job in the middle of its training, the container that trains it, and one with an idle worker."""
    first, job = scene.add_container(), scene.new_job(epochs=6)
    scene.submit(job)
    scene.wait_for(Moment.DEQUEUED, job, random)
    second = scene.add_container()
    scene.await_workers()
    if not scene.wait_for(Moment.MID_EPOCH, job, random):
        scene.problems.append("the job ended before the fault: this proves nothing")
    return job, first, second


def cut_for_long(scene: Scene, random: Random) -> Verdict:
    """Cut the way to Redis for a minute in the middle of a job that takes longer."""
    train_s = scene.expected.pace.train_s if scene.expected else 10.0
    job = scene.new_job(epochs=math.ceil(3 * 80 / train_s))
    scene.patience += 400
    scene.add_container()
    scene.submit(job)
    scene.wait_for(Moment.FIRST_STEP, job, random)
    struck = time.time()
    scene.proxy.cut()
    scene.sleep(60)
    scene.proxy.open()
    scene.await_end(job)
    return scene.verdict(job, struck)


def clock_steps(scene: Scene, random: Random) -> Verdict:
    """Set the clock of two workers and of Redis back by an hour and forth by two, while a job runs."""
    clock = Clock(scene.directory)
    scene.redis.kill()
    scene.redis.environment = clock.environment
    scene.redis.start()
    for _ in range(2):
        scene.add_container(clock.environment)
    job = scene.new_job()
    scene.submit(job)
    scene.wait_for(Moment.FIRST_STEP, job, random)
    for seconds in random.sample((-3600, 3600, 7200, 0), 3):
        clock.set(seconds)
        scene.sleep(random.uniform(1, 3))
    return finished(scene, job)


def stdout_closed(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Start the worker without a standard output."""
    scene.add_container(before=["sh", "-c", 'exec "$@" >&-', "sh"])
    job = scene.new_job()
    scene.submit(job)
    return judged(scene, job)


def stdout_broken(scene: Scene, random: Random) -> Verdict:
    """Write to a pipe whose reader goes away while the job runs."""
    reader, writer = os.pipe()
    scene.add_container(stdout=writer)
    os.close(writer)
    job = scene.new_job()
    scene.submit(job)
    scene.wait_for(Moment.FIRST_STEP, job, random)
    os.close(reader)
    return judged(scene, job)
