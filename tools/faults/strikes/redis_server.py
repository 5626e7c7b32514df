"""Strikes at Redis and the way to it."""

import subprocess
import sys
import time
from random import Random
from typing import Final

from tools.faults.jobs import Job
from tools.faults.scene import Scene
from tools.faults.strikes.runs import Strike

WATCH_ERRORS: Final = 50
"""Number of times in a row that a success cannot be booked."""
TOUCH: Final = """
import redis, sys
pipe = redis.Redis(unix_socket_path=sys.argv[1]).pipeline(transaction=True)
while True:
    pipe.sadd(sys.argv[2], "x").srem(sys.argv[2], "x").execute()
"""
"""A client that changes a key without a pause; nobody ever sees the member."""


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


def fail_over(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    """Let a replica take over as planned, and hand back: the old primary lives on, with every connection open."""
    pair = scene.pair()
    pair.fail_over()
    scene.sleep(random.uniform(0, 4))
    pair.fail_over()
    return True


def fail_over_behind(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    """Let a replica take over that has nothing of the last moments, and hand back as planned."""
    pair = scene.pair()
    pair.lag()
    scene.sleep(random.uniform(0.05, 1))
    pair.fail_over_behind()
    scene.sleep(random.uniform(0, 4))
    pair.fail_over()
    return True


def touch_dependents(scene: Scene, job: Job, random: Random) -> bool:  # noqa: ARG001 - Strike's
    """Change the key that RQ watches while it books a success, until that has failed many times, or nobody watches."""
    before, command = _watches(scene), [sys.executable, "-c", TOUCH, str(scene.redis.path)]
    with subprocess.Popen([*command, f"rq:job:{job.id}:dependents"]) as other:
        scene.wait(lambda: scene.ended(job) or _watches(scene) - before > WATCH_ERRORS, scene.patience)
        other.kill()
    return _watches(scene) - before != 1  # one alone may have gone through before anybody touched the key


def _watches(scene: Scene) -> int:
    """Return how often clients have begun to watch a key: once for each time that a success is booked, or tried to."""
    known: dict[str, dict[str, int]] = scene.connection.info("commandstats")
    return known.get("cmdstat_watch", {}).get("calls", 0)
