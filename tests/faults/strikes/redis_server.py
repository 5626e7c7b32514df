"""What is done to a service while a job of its runs, at a moment of that job's."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from faults.preflight import PreflightScene
from faults.stage import Job, Moment, S, Scene, Service, Verdict, hit

TRIES: Final = 2
"""How often a moment may pass by before another one is taken."""
GRACE: Final = 10.0
"""Seconds between a platform's SIGTERM and its SIGKILL; Docker's default."""
STOPS_WITHIN: Final = 3.0
"""Seconds that this service promises for a stop, while a small model trains."""
WATCH_ERRORS: Final = 50
"""So many times in a row a success cannot be booked."""
TOUCH: Final = """
import redis, sys
pipe = redis.Redis(unix_socket_path=sys.argv[1]).pipeline(transaction=True)
while True:
    pipe.sadd(sys.argv[2], "x").srem(sys.argv[2], "x").execute()
"""
"""A client that changes a key without a pause; nobody ever sees the member."""

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


# --- processes


def kill_training(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit([scene.trainer()], signal.SIGKILL)


def kill_supervisor(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit([scene.container.supervisor], signal.SIGKILL)


def kill_worker(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit([scene.container.worker], signal.SIGKILL)


def kill_tree(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return hit(scene.container.tree, signal.SIGKILL)


def stop(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    return _stopped(scene, codes=(0,))


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


def _stopped(scene: Scene, codes: tuple[int, ...]) -> bool:
    """Stop as a platform does, and note what is not as promised."""
    container, began = scene.container, time.monotonic()
    exits = len(container.exits)
    if not hit([container.worker], signal.SIGTERM):
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


# --- Redis


def restart_redis(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    scene.redis.kill()
    scene.sleep(random.uniform(0, 2))
    scene.redis.start()
    return True


def empty_redis(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    scene.redis.kill()
    scene.redis.empty()
    scene.sleep(random.uniform(0, 2))
    scene.redis.start()
    scene.emptied = True
    return True


def cut(seconds: float) -> Strike[Scene]:
    """Return a strike that cuts the way to Redis for so long."""

    def strike(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
        scene.proxy.cut()
        scene.sleep(seconds)
        scene.proxy.open()
        return True

    return strike


def hang(seconds: float) -> Strike[Scene]:
    """Return a strike that makes Redis silent for so long: connections stay, answers do not come."""

    def strike(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
        scene.redis.halt()
        silent_until = time.monotonic() + seconds
        while time.monotonic() < silent_until:
            time.sleep(0.05)  # not through `wait`: the scene itself asks Redis
        scene.redis.go_on()
        return True

    return strike


def touch_dependents(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    """Change the key that RQ watches while it books a success, until that has failed many times, or nobody watches."""
    before, command = _watches(scene), [sys.executable, "-c", TOUCH, str(scene.redis.path)]
    with subprocess.Popen([*command, f"rq:job:{job.id}:dependents"]) as other:
        scene.wait(lambda: scene.ended(job) or _watches(scene) - before > WATCH_ERRORS, scene.patience)
        other.kill()
    return _watches(scene) - before != 1  # one alone may have gone through before anybody touched the key


def _watches(scene: Scene) -> int:
    """Return how often anybody has begun to watch a key: once for each time that a success is booked, or tried to."""
    known: dict[str, dict[str, int]] = scene.connection.info("commandstats")
    return known.get("cmdstat_watch", {}).get("calls", 0)


# --- checkpoints


def damage(how: Callable[[PreflightScene, list[Path], Random], None]) -> Strike[PreflightScene]:
    """Return a strike that kills the whole tree, damages the newest checkpoint, and starts the container again."""

    def strike(scene: PreflightScene, job: Job, random: Random) -> bool:
        container = scene.container
        container.restarted = False
        hit(container.tree, signal.SIGKILL)
        scene.wait(container.ended, GRACE)
        whole = [path for path in scene.checkpoints(job) if path.suffix == ".json"]
        if whole:
            how(scene, [whole[-1], whole[-1].with_suffix(".safetensors")], random)
            scene.damaged = 1
        container.restarted = True
        scene.await_end(job)
        if tripwire(scene).exists():
            scene.problems.append("what was in the checkpoint has been executed")
        return bool(whole)

    return strike


def truncate(scene: PreflightScene, files: list[Path], random: Random) -> None:  # noqa: ARG001 - damage's
    file = random.choice(files)
    os.truncate(file, random.randrange(file.stat().st_size))


def flip_bit(scene: PreflightScene, files: list[Path], random: Random) -> None:  # noqa: ARG001 - damage's
    file = random.choice(files)
    content = bytearray(file.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)


def plant_bomb(scene: PreflightScene, files: list[Path], random: Random) -> None:
    for file in random.sample(files, random.randint(1, len(files))):
        file.write_bytes(pickle.dumps(Bomb(str(tripwire(scene)))))


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._path}",)


def tripwire(scene: Scene) -> Path:
    """Return the file that is there when something was executed that must not be."""
    return scene.directory / "tripwire"
