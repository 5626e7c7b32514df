"""Strikes at processes: kills and stops."""

import signal
import time
from collections.abc import Sequence
from random import Random
from typing import Final

import psutil

from tools.faults.container import hit
from tools.faults.jobs import Job
from tools.faults.scene import Scene

GRACE: Final = 10.0
"""Seconds between a platform's SIGTERM and its SIGKILL; Docker's default."""
STOPS_WITHIN: Final = 3.0
"""Seconds that this service promises for a stop, while a small model trains."""


def kill_training(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit([scene.trainer()], signal.SIGKILL)


def kill_supervisor(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit([scene.container.supervisor], signal.SIGKILL)


def kill_standby(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit([scene.container.standby], signal.SIGKILL)


def freeze_standby(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit([scene.container.standby], signal.SIGSTOP)


def kill_worker(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit([scene.container.worker], signal.SIGKILL)


def kill_tree(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit(scene.container.tree, signal.SIGKILL)


def stop(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return _stopped(scene, codes=(0,))


def stop_everything(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    """Stop as systemd's KillMode=control-group and Heroku do: every process gets the signal, in no order."""
    tree = scene.container.tree
    return _stopped(scene, codes=(0,), targets=random.sample(tree, len(tree)))


def stop_twice(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    if not hit([scene.container.worker], signal.SIGTERM):
        return False
    scene.sleep(random.uniform(0, 0.5))
    return _stopped(scene, codes=(0, 1))  # 0: it was over before the second came


def stop_without_grace(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    tree = scene.container.tree
    if not hit(tree[:1], signal.SIGTERM):
        return False
    scene.sleep(random.uniform(0, 0.02))
    return hit([*tree, *scene.container.tree], signal.SIGKILL)


def _stopped(scene: Scene, codes: tuple[int, ...], targets: Sequence[psutil.Process] | None = None) -> bool:
    """Stop as a platform does, and note broken promises; `targets` get the signal, by default the worker."""
    container, began = scene.container, time.monotonic()
    exits = len(container.exits)
    if not hit([container.worker] if targets is None else targets, signal.SIGTERM):
        return len(container.exits) > exits or container.ended()
    if not scene.wait(lambda: len(container.exits) > exits, GRACE):
        hit(container.tree, signal.SIGKILL)
        scene.problems.append(f"did not end within {GRACE:.0f} s of SIGTERM")
        return True
    seconds, code = time.monotonic() - began, container.exits[exits]
    if code not in codes:
        scene.problems.append(f"exit code {code} after SIGTERM")
    if seconds > STOPS_WITHIN:
        scene.late.append(f"took {seconds:.1f} s to stop")
    return True
