"""Strikes at checkpoint files."""

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

from tools.faults.container import hit
from tools.faults.jobs import Job
from tools.faults.preflight import PreflightScene
from tools.faults.scene import Scene
from tools.faults.strikes.processes import GRACE
from tools.faults.strikes.runs import Strike


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
    """Return the file that exists once something was executed that must not be."""
    return scene.directory / "tripwire"
