"""Strikes: at a moment of a running job, then judged."""

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from tools.faults.jobs import Job, Moment, Verdict
from tools.faults.service import S, Service

TRIES: Final = 2
"""How often a moment may pass by before another one is taken."""
Strike = Callable[[S, Job, Random], bool]
"""Does something bad to a scene and returns whether there was anything to do it to."""
Run = Callable[[Service[S], Random], Verdict]
"""Tries a fault once on a service."""


def at(strike: Strike[S], *moments: Moment) -> Run[S]:
    """Return a run that strikes while the usual job runs, at a random one of `moments` that the service has."""

    def run(service: Service[S], random: Random) -> Verdict:
        missed: list[Moment] = []
        for moment in random.sample(moments, len(moments)):
            for _ in range(TRIES):
                with service.borrowed() as scene:
                    if moment not in scene.moments:
                        break
                    verdict = play(scene, strike, moment, random)
                    if verdict is not None:
                        return replace(scene.sums(verdict), moment=moment, missed=tuple(missed))
                missed.append(moment)
        return Verdict(not_run="every moment was missed", missed=tuple(missed))

    return run


def play(scene: S, strike: Strike[S], moment: Moment, random: Random) -> Verdict | None:
    """Have a job, strike at its moment, wait for its end and judge; None when the moment was missed."""
    calibrates = moment is Moment.CALIBRATION
    job = scene.new_job(calibrate=calibrates, force_calibration=calibrates)
    scene.submit(job)
    came = scene.wait_for(moment, job, random)
    struck = time.time()
    came = came and strike(scene, job, random)
    ended = scene.await_end(job)
    return scene.verdict(job, struck) if came or not ended else None
