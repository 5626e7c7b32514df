"""Trials of memory and disks."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from pydantic import JsonValue

from preflight.numbers import MIB
from tools.faults import means
from tools.faults.container import hit
from tools.faults.hungry import ENTRY_POINTS
from tools.faults.jobs import Job, Verdict
from tools.faults.preflight import PreflightScene
from tools.faults.scene import Scene
from tools.faults.trials.runs import GOOD, Trial, judged, worker_problems

MEMORY: Final = 1280 * MIB
"""Bytes that have room for a process with torch and eight hungry samples, not for sixteen."""
HUNGRY: Final[dict[str, JsonValue]] = {
    "epochs": 1, "batch_size": 32, "validation_samples": 1400, "deterministic": False,
    "plan": {"threads": 1, "eval_batch": 32},
}  # fmt: skip
"""Fields that make a job of a hungry model short: three steps."""


def memory_runs_out(**fields: JsonValue) -> Trial[Scene]:
    """Return a trial of a job that needs more memory than its cgroup allows, until its batches are halved."""

    def trial(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
        with _hungry(scene, **fields) as job:
            return judged(scene, job)

    return trial


def memory_is_never_enough(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Run a job that needs more memory than there is however small its batches: it must fail for that reason."""
    with _hungry(scene, model="hungry-in-training", batch_size=256, validation_samples=1200) as job:
        scene.await_end(job)
        return Verdict(problems=(*scene.failure_problems(job, "out_of_memory"), *worker_problems(scene)))


@contextmanager
def _hungry(scene: Scene, **fields: JsonValue) -> Iterator[Job]:
    """Yield a job of a hungry model that a worker in a cgroup takes, and see that memory did run out."""
    package = scene.site / "hungry-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: hungry\nVersion: 1\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    before = means.memory_kills()
    with means.memory_limit(MEMORY) as enter:
        scene.add_container(before=enter)
        job = scene.new_job(**(HUNGRY | fields))
        scene.submit(job)
        yield job
        scene.close()  # a cgroup can be removed when no process is in it
    if means.memory_kills() == before:
        scene.problems.append("the kernel killed nothing for memory: this proves nothing")


def artifacts_full(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Fill the file system of the artifacts; later there is room."""
    return _refused_then_finished(scene, means.fill, means.make_room)


def artifacts_read_only(scene: Scene, random: Random) -> Verdict:  # noqa: ARG001 - Trial's
    """Mount the file system of the artifacts read-only; later it is writable."""
    return _refused_then_finished(scene, means.make_read_only, means.make_writable)


def _refused_then_finished(scene: Scene, spoil: Callable[[Path], None], mend: Callable[[Path], None]) -> Verdict:
    with means.disk(scene.artifacts, 8 * MIB):
        scene.add_container()
        scene.await_workers()
        spoil(scene.artifacts)
        job = scene.new_job()
        scene.submit(job)
        scene.await_end(job)
        scene.problems += scene.failure_problems(job, "artifact_error")
        if scene.trained(job):
            scene.problems.append("it was trained first")
        mend(scene.artifacts)
        after = scene.new_job(**GOOD)
        scene.submit(after)
        verdict = judged(scene, after)
        scene.close()  # no process may use the file system when it is unmounted
    return verdict


def checkpoints_full(scene: PreflightScene, random: Random) -> Verdict:
    """Fill the file system of the checkpoints during the training, and kill the training: the old one must suffice."""
    state = scene.settings.state_dir
    with means.disk(state, 64 * MIB):
        scene.add_container()
        job = scene.new_job()
        scene.submit(job)
        scene.wait(lambda: len(scene.checkpoints(job)) > 1, scene.patience)
        means.fill(state)
        scene.sleep(random.uniform(1, 3))
        scene.damaged = 1000  # none could be written: what was trained since is lost
        struck = time.time()
        hit([scene.trainer()], signal.SIGKILL)
        scene.wait(lambda: scene.kinds(job).count("dataloader_config") > 1, scene.patience)
        means.make_room(state)
        scene.await_end(job)
        if "job_resumed" not in scene.kinds(job):
            scene.problems.append("the old checkpoint was not gone on from")
        verdict = scene.verdict(job, struck)
        scene.problems += worker_problems(scene)
        scene.close()
    return verdict
