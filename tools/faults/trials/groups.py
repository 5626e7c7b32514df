"""Trials of groups: workers that train one job together are killed, stopped or frozen, at random."""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import psutil
from pydantic import JsonValue

from preflight.wire import GroupFormed
from tools.faults.container import Container, hit
from tools.faults.jobs import Job, Verdict
from tools.faults.preflight import PreflightScene

GROUP: Final = {"PREFLIGHT_GROUP": "on", "PREFLIGHT_STANDBY": "auto"}
FIELDS: Final[dict[str, JsonValue]] = {"batch_size": 1350, "epochs": 40, "deterministic": True}
"""Fields for few and large steps: each is a message to every member. Groups of equal size come to equal weights."""
PATIENCE_S: Final = 300.0
"""Seconds of patience beyond that of other trials: a lease ends, another attempt gathers, and kills continue."""
Hit = Callable[[Container, Random], None]


def kill(container: Container, random: Random) -> None:
    """SIGKILL the worker, its work-horse, a training process, or everything."""
    tree = container.tree
    trainers = [process for process in tree if _is_training(process)]
    targets: list[list[psutil.Process | None]] = [[container.worker], [container.supervisor], [*tree]]
    if trainers:
        targets.append([random.choice(trainers)])
    hit(random.choice(targets), signal.SIGKILL)


def stop(container: Container, random: Random) -> None:  # noqa: ARG001 - Hit's
    """SIGTERM the worker, as a deployment does."""
    hit([container.worker], signal.SIGTERM)


def freeze(container: Container, random: Random) -> None:
    """SIGSTOP everything for 2 to 20 seconds: less than a lease lasts, or more."""
    tree = container.tree
    hit(tree, signal.SIGSTOP)
    time.sleep(random.uniform(2, 20))
    hit(tree, signal.SIGCONT)


def struck(strike: Hit) -> Callable[[PreflightScene, Random], Verdict]:
    """Return a trial: two to four workers, two to three of them on one job, and one to three strikes."""

    def trial(scene: PreflightScene, random: Random) -> Verdict:
        demanded = random.randint(2, 3)
        for _ in range(random.randint(demanded, 4)):
            scene.add_container(GROUP)
        scene.patience += PATIENCE_S
        scene.await_workers()
        expected = _quiet_weights(scene, demanded)
        job = scene.new_job(**FIELDS, workers=demanded)
        scene.submit(job)
        if not scene.wait(lambda: _has_formed(scene, job), scene.patience):
            return Verdict(problems=("no group has formed",), lost=True)
        for _ in range(random.randint(1, 3)):
            scene.sleep(random.uniform(0, 8))
            strike(random.choice(scene.containers), random)
        return _judged(scene, job, expected)

    return trial


def _judged(scene: PreflightScene, job: Job, expected: str) -> Verdict:
    scene.await_end(job)
    scene.sleep(1.0)  # members learn that it is over
    scene.most_trainings = 0  # each member has one; after the end there is none
    verdict = replace(scene.verdict(job, math.inf), lost_s=None, takeover_s=None)
    result = scene.client.result(job.id)
    wrong = [
        *(["other weights than of an undisturbed group"] if result and result.model_sha256 != expected else []),
        *([f"trained by {result.workers} workers"] if result and result.workers != job.fields["workers"] else []),
    ]
    return replace(verdict, problems=(*verdict.problems, *wrong))


def _quiet_weights(scene: PreflightScene, workers: int) -> str:
    """Return the weights of an undisturbed group of so many workers."""

    def run() -> str:
        job = scene.new_job(**FIELDS, workers=workers)
        scene.submit(job)
        scene.await_end(job)
        return scene.result(job)

    return scene.group_weights(workers, run)


def _has_formed(scene: PreflightScene, job: Job) -> bool:
    return any(isinstance(event, GroupFormed) for event in scene.events(job))


def _is_training(process: psutil.Process) -> bool:
    try:
        return process.name() == "training"
    except psutil.Error:
        return False
