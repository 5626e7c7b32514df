"""Trials: faults in a separate scene, then judged."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from pydantic import JsonValue

from tools.faults.jobs import Job, Verdict
from tools.faults.means import NotHere
from tools.faults.scene import Scene
from tools.faults.service import S, Service
from tools.faults.strikes.runs import Run

GOOD: Final[dict[str, JsonValue]] = {"epochs": 1, "batch_size": 32, "deterministic": False}
"""Fields that make a job short."""
Trial = Callable[[S, Random], Verdict]
"""Does something bad in a scene without containers, and judges."""


def alone(trial: Trial[S]) -> Run[S]:
    """Return a run that gives a trial a separate scene."""

    def run(service: Service[S], random: Random) -> Verdict:
        with service.fresh() as scene:
            try:
                verdict = trial(scene, random)
            except NotHere as missing:
                return Verdict(not_run=str(missing))
            return scene.sums(verdict)

    return run


def finished(scene: Scene, job: Job) -> Verdict:
    """Wait for the end of a job and judge it; lost training does not count."""
    scene.await_end(job)
    return replace(scene.verdict(job, math.inf), lost_s=None, takeover_s=None)


def judged(scene: Scene, job: Job) -> Verdict:
    verdict = finished(scene, job)
    return replace(verdict, problems=(*verdict.problems, *worker_problems(scene)))


def worker_problems(scene: Scene) -> list[str]:
    """Return a sentence where the worker ended: the fault must end its jobs alone."""
    ends = len(scene.container.exits)
    return [f"the worker ended {ends} times"] if ends else []
