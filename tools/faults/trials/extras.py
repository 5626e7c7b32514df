"""Trials of extras: the report of a finished job is interrupted or fails."""

import signal
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import psutil

from preflight.numbers import MIB
from tools.faults import means
from tools.faults.container import hit
from tools.faults.jobs import Job, Verdict
from tools.faults.preflight import PreflightScene
from tools.faults.trials.runs import GOOD, Trial, finished
from worker.jobs.stages.pending_extras import FILE_NAME
from worker.state.paths import JOBS

REPORTED_WITHIN: Final = 120.0
"""Longest wait for a report, in seconds; a worker looks once a minute for extras that others left or that failed."""


def kill_tree(scene: PreflightScene, report: psutil.Process) -> None:  # noqa: ARG001 - the signature of both
    """Kill the worker and all below it; it is started again."""
    hit(scene.container.tree, signal.SIGKILL)


def crash(scene: PreflightScene, report: psutil.Process) -> None:  # noqa: ARG001 - the signature of both
    """Kill the report's process alone."""
    hit([report], signal.SIGKILL)


def disk_full(scene: PreflightScene, random: Random) -> Verdict:
    """Fill the file system of the models once a model is published; later there is room."""
    with means.disk(scene.artifacts, 8 * MIB):
        verdict = at_report(_fill_for_a_while, delay_s=0.0)(scene, random)
        scene.close()  # no process may use the file system when it is unmounted
    return verdict


def _fill_for_a_while(scene: PreflightScene, report: psutil.Process) -> None:
    means.fill(scene.artifacts)
    hit([report], signal.SIGCONT)
    job = scene.settings.state_dir / JOBS
    ended = scene.wait(lambda: not psutil.pid_exists(report.pid), scene.patience)
    if not ended or not any(job.glob(f"*/*/{FILE_NAME}")):
        scene.problems.append("the report was made on a full disk")
    means.make_room(scene.artifacts)


def at_report(strike: Callable[[PreflightScene, psutil.Process], None], delay_s: float = 0.5) -> Trial[PreflightScene]:
    """Return a trial that strikes when the report's process runs; another one must make the report, once."""

    def trial(scene: PreflightScene, random: Random) -> Verdict:
        scene.add_container()
        scene.await_workers()
        job = scene.new_job(**GOOD)
        scene.submit(job)
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = _reports(scene)
            hit(found if delay_s == 0 else [], signal.SIGSTOP)
            return bool(found)

        if not scene.wait(is_there, scene.patience):
            return Verdict(problems=("no report was begun",), lost=not scene.ended(job))
        scene.sleep(random.uniform(0, delay_s))
        strike(scene, found[0])
        scene.wait(lambda: scene.client.status(job.id).report is not None, REPORTED_WITHIN)
        verdict = finished(scene, job)
        return replace(verdict, problems=(*verdict.problems, *_problems(scene, job)))

    return trial


def _reports(scene: PreflightScene) -> list[psutil.Process]:
    def is_report(process: psutil.Process) -> bool:
        try:
            return process.name() == "report"
        except psutil.Error:
            return False

    return [process for process in scene.container.tree if is_report(process)]


def _problems(scene: PreflightScene, job: Job) -> list[str]:
    result, told = scene.client.result(job.id), scene.kinds(job).count("report_ready")
    attempts = {event.attempt for event in scene.events(job)}
    return [
        *([] if result is not None and result.report else ["the result has no report"]),
        *([] if told == 1 else [f"the report is told {told} times"]),
        *([] if attempts == {1} else [f"the attempts are {sorted(attempts)}"]),
    ]
