"""Strikes: at a moment of a running job, then judged."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from tools.faults.jobs import Job, Moment, Verdict
from tools.faults.service import S, Service

TRIES: Final = 2
"""Number of times that a moment may pass by before another one is taken."""
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
    """Submit a job, strike at its moment, wait for its end and judge; None when the moment was missed.

    Where the scene runs several jobs at a time, the others are judged as this one is.
    """
    calibrates = moment is Moment.CALIBRATION
    job = scene.new_job(calibrate=calibrates, force_calibration=calibrates)
    jobs = [job, *scene.further_jobs()]
    for each in jobs:
        scene.submit(each)
    came = scene.wait_for(moment, job, random)
    struck = time.time()
    came = came and strike(scene, job, random)
    ended = [scene.await_end(each) for each in jobs]  # wait for all, also where one is lost
    return together([scene.verdict(each, struck) for each in jobs]) if came or not all(ended) else None


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict on all jobs of one round."""
    lost = [verdict.lost_s for verdict in verdicts if verdict.lost_s is not None]
    taken = [verdict.takeover_s for verdict in verdicts if verdict.takeover_s is not None]
    return Verdict(
        problems=tuple(dict.fromkeys(problem for verdict in verdicts for problem in verdict.problems)),
        late=tuple(dict.fromkeys(problem for verdict in verdicts for problem in verdict.late)),
        lost=any(verdict.lost for verdict in verdicts),
        lost_s=max(lost, default=None),
        double_runs=max(verdict.double_runs for verdict in verdicts),
        double_publications=sum(verdict.double_publications for verdict in verdicts),
        at_once=max(verdict.at_once for verdict in verdicts),
        orphans=max(verdict.orphans for verdict in verdicts),
        takeover_s=max(taken, default=None),
    )
